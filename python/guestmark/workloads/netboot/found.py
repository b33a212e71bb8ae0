"""What the trials of a cell have found out, where the boot happened: nested, that is inside the outer guest."""

from collections.abc import Iterator

from guestmark.stats.analysis import CellResult
from guestmark.workloads.netboot.facts import Netboot


def latest_first(result: CellResult) -> Iterator[Netboot]:
    """Of each trial that got as far as the files, the last one first."""
    for trial in reversed(result.trials):
        found = trial.facts.of(Netboot)
        if found is not None:
            yield found.inner.facts if found.inner is not None else found

"""The conditions a run was made under: one list of checks, each of which may limit what its figures mean.

A check is a function of `Compared` (cells that are held against each other) or `Whole` (the run) that yields
findings. Severe is what makes a figure one about something else than its words say: it takes verdicts back. What the
user asked for by name stays a warning beside the figure, and what cannot be known is a note.
"""

from collections.abc import Callable, Iterable, Sequence

from guestmark.stats.conditions.builds import builds
from guestmark.stats.conditions.clocks import clocks
from guestmark.stats.conditions.evidence import Compared, Whole
from guestmark.stats.conditions.frequency import frequencies, governor, throttling, turbo
from guestmark.stats.conditions.host import foreign_load, steal
from guestmark.stats.conditions.placement import parity, placement
from guestmark.stats.conditions.storage import storage, unwritten
from guestmark.stats.conditions.surroundings import environment
from guestmark.stats.validity import Finding, Severity

__all__ = ["OF_CELLS", "OF_RUN", "Compared", "Whole", "of_cells", "of_run"]

OF_CELLS: tuple[Callable[[Compared], Iterable[Finding]], ...] = (
    parity,
    placement,
    storage,
    unwritten,
    builds,
    clocks,
    foreign_load,
    steal,
    throttling,
    frequencies,
)
OF_RUN: tuple[Callable[[Whole], Iterable[Finding]], ...] = (environment, governor, turbo)

_ORDER = (Severity.SEVERE, Severity.WARNING, Severity.NOTE)


def of_cells(compared: Compared) -> tuple[Finding, ...]:
    """All findings about cells that are compared, the severe ones first."""
    return _sorted(finding for check in OF_CELLS for finding in check(compared))


def of_run(whole: Whole) -> tuple[Finding, ...]:
    """All findings about the run, the severe ones first."""
    return _sorted(finding for check in OF_RUN for finding in check(whole))


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    found: Sequence[Finding] = list(findings)
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))

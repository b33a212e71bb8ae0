"""How fast the processors were allowed to be, and how fast they were."""

import math
import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from guestmark.core.model import Cell
from guestmark.stats.conditions.evidence import Compared, Whole, trials_of
from guestmark.stats.validity import Finding, Severity

FEW_THROTTLED = (
    0.1  # share of a cell's trials that may have met a throttled processor without taking verdicts back
)
APART = 0.10  # relative, of two cells' frequencies
_STEADY = frozenset({"performance", "userspace"})
_PERFORMANCE = "set the governor to performance while you measure: cpupower frequency-set -g performance"


def governor(whole: Whole) -> Iterator[Finding]:
    """A governor that lets the frequency follow the load; a note where nobody can see it."""
    for environment in whole.environments[:1]:
        known: Mapping[str, Any] = environment.get("frequency") or {}
        found = known.get("governor")
        if not environment.get("processor"):
            return
        if found is None:
            guest = (environment.get("virtualization") or {}).get("hypervisor")
            yield Finding(
                "governor unknown",
                Severity.NOTE,
                "the frequency governor is not visible"
                + (": this host is itself a virtual machine" if guest else ""),
                advice="ask whoever runs the host, or measure on bare metal",
            )
            continue
        several = [found] if isinstance(found, str) else list(found)
        if moving := [name for name in several if name not in _STEADY]:
            yield Finding(
                "governor",
                Severity.WARNING,
                f"the frequency governor is {' and '.join(several)}: short runs may end before the processor is fast"
                if len(moving) == len(several)
                else f"the processors have different frequency governors: {' and '.join(several)}",
                advice=_PERFORMANCE,
            )


def turbo(whole: Whole) -> Iterator[Finding]:
    """Boost, whose reach depends on heat and on how many processors are busy."""
    for environment in whole.environments[:1]:
        if (environment.get("frequency") or {}).get("boost") is True:
            yield Finding(
                "turbo",
                Severity.NOTE,
                "turbo is on: how fast a processor is depends on its heat and on how many others are busy",
                advice="for steadier figures switch it off: no_turbo or boost in /sys/devices/system/cpu",
            )


def throttling(compared: Compared) -> Iterator[Finding]:
    """Processors that were slowed down because of their heat; severe when the baseline met it and others did not,
    or the other way round.
    """
    met = {cell.id: _throttled(compared, cell) for cell in compared.cells}
    if not any(hot for hot, _ in met.values()):
        return
    baseline = compared.baseline
    spoilt = [] if baseline is None else [
        name for name in met if name != baseline.id and _unequal(met[name], met[baseline.id])
    ]  # fmt: skip
    hot, whole = (sum(column) for column in zip(*met.values(), strict=True))
    where = "; ".join(f"{name} {trials_of(*counts)}" for name, counts in met.items() if counts[0])
    yield Finding(
        "throttling",
        Severity.SEVERE if spoilt else Severity.WARNING,
        f"the processor was too hot and was slowed down: {where}",
        hot / whole,
        cells=tuple(spoilt),
        advice="cool it, wait between runs, or set a lower maximum frequency",
    )


def _throttled(compared: Compared, cell: Cell) -> tuple[int, int]:
    counts = [trial.noise.get("throttled") for trial in compared.good(cell)]
    return sum(isinstance(count, int) and count > 0 for count in counts), len(counts)


def _unequal(mine: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether one side was throttled in two trials or more and in clearly larger a share of its trials."""
    shares = [hot / whole if whole else 0.0 for hot, whole in (mine, other)]
    return max(mine[0], other[0]) >= 2 and abs(shares[0] - shares[1]) > FEW_THROTTLED


def frequencies(compared: Compared) -> Iterator[Finding]:
    """Cells that were measured at another frequency than the baseline, of which their ratio is a part."""
    baseline = compared.baseline
    reference = None if baseline is None else _megahertz(compared, baseline)
    if baseline is None or not reference:
        return
    for cell in compared.cells:
        mine = None if cell.baseline or cell.null_of is not None else _megahertz(compared, cell)
        if mine and abs(math.log(mine / reference)) > math.log1p(APART):
            yield Finding(
                "frequency",
                Severity.WARNING,
                f"the processor ran at {mine / 1000:.2f} GHz for {cell.id} and at {reference / 1000:.2f} GHz for "
                f"{baseline.id}: part of the ratio is that",
                mine / reference - 1,
                advice=_PERFORMANCE,
            )


def _megahertz(compared: Compared, cell: Cell) -> float | None:
    """The typical frequency at the end of the cell's trials."""
    ends = [
        float(seen[-1])
        for trial in compared.good(cell)
        if isinstance(seen := trial.noise.get("frequency_mhz"), list | tuple) and seen
    ]
    return statistics.median(ends) if ends else None

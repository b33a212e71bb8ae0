"""Checks that machines had their processors to themselves: other programs, and the hypervisor below this host.

Load widens intervals and does not bias them. It affects all cells of one platform alike, as their order is random, and
the interval includes the scatter that it adds. Different platforms may be affected differently. A share s of the time
spent waiting makes a run up to 1/(1 - s) times as long, so ratios of clock times between platforms are less certain by
that factor. Processor time, counts and printed figures do not wait.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guestmark.core.metric_spec import SYSTEM, USER, WALL
from guestmark.core.model import Cell, Trial
from guestmark.stats.conditions.evidence import ComparedCells, WholeRun, format_trial_count
from guestmark.stats.noise import (
    THRESHOLDS,
    compute_foreign_share,
    compute_stolen_share,
    compute_waiting_share,
)
from guestmark.stats.validity import Finding, Severity

# Up to this ratio of processor time to wall time, at most one thread ran at a time.
_ONE_THREAD = 1.02
# Larger shares are limited to this one, since 1/(1 - s) grows without bound.
_MOST = 0.9


def check_foreign_load(compared: ComparedCells) -> Iterator[Finding]:
    """Check for other programs on the machines' processors."""
    share = compute_foreign_share(_yield_local_noise(compared))
    if share is not None and share > THRESHOLDS["foreign_cpu"]:
        yield _report_lost_time(
            compared,
            "foreign load",
            share,
            f"other programs used {100 * share:.0f} % of the processors",
            "stop other programs, or move them to other processors: --set placement=cpus=LIST, taskset, a cpuset",
        )


def check_steal(compared: ComparedCells) -> Iterator[Finding]:
    """Check for processor time that the hypervisor of a virtual host gave to other guests."""
    share = compute_stolen_share(_yield_local_noise(compared))
    if share is not None and share > THRESHOLDS["steal"]:
        yield _report_lost_time(
            compared,
            "steal",
            share,
            f"the hypervisor below this host took {100 * share:.0f} % of the processors' time (steal)",
            "measure on a machine of your own, or on dedicated processors",
        )


def _yield_local_noise(compared: ComparedCells) -> Iterator[Mapping[str, object]]:
    """Yield the noise of trials on this host; it does not describe other machines' processors."""
    for cell in compared.cells:
        if not cell.platform.is_elsewhere:
            yield from (trial.noise for trial in compared.list_good_trials(cell))


def _report_lost_time(compared: ComparedCells, name: str, share: float, message: str, advice: str) -> Finding:
    """Return a finding on a lost share of processor time, and on the error it may cause in ratios between platforms."""
    base = compared.baseline
    widens: dict[str, float] = {}
    slows: dict[str, float] = {}
    for cell in compared.cells:
        if base is None or cell.platform == base.platform:
            continue
        widens[cell.id] = -math.log1p(-_find_largest_waiting_share(compared, cell, share))
        if cell.platform.is_guest:
            slows[cell.id] = -math.log1p(-_find_guest_held_share(compared, cell, share))
    widest = max(widens.values(), default=0.0)
    costs = ""
    if widest >= -math.log1p(-_MOST):
        costs = f"; ratios between platforms may be off by a factor of {math.exp(widest):.0f} or more"
    elif widest > 0.005:
        costs = f"; ratios between platforms may be off by up to {100 * math.expm1(widest):.0f} %"
    return Finding(
        name, Severity.WARNING, f"{message}{costs}", share, advice=advice, widens=widens, slows=slows
    )


def _find_largest_waiting_share(compared: ComparedCells, cell: Cell, share: float) -> float:
    """Return the share of its time that the cell or its baseline may have waited; at most `share`."""
    waited: list[float] = []
    for side in (cell, compared.baseline):
        if side is not None:
            found = _compute_mean_waiting_share(compared.list_good_trials(side))
            if found is None:
                found = share
            waited.append(found)
    return min(share, max(waited), _MOST)


def _find_guest_held_share(compared: ComparedCells, cell: Cell, share: float) -> float:
    """Return the share of time that a guest may have been kept from its processor while its own clock counted."""
    waited = _compute_mean_waiting_share(compared.list_good_trials(cell))
    return min(max(share, waited or 0.0), _MOST)


def _compute_mean_waiting_share(trials: Sequence[Trial]) -> float | None:
    """Return the share of time spent waiting for a processor; None if unknown."""
    # The threads of a hypervisor are watched. On the host itself, a single thread waits whenever it does not run.
    threads = compute_waiting_share(trial.noise for trial in trials)
    if threads is not None:
        return threads
    spent = []
    for trial in trials:
        used = wall = 0.0
        for measurement in trial.measurements:
            if measurement.metric in {USER, SYSTEM}:
                used += measurement.value
            elif measurement.metric == WALL:
                wall = measurement.value
        if wall > 0:
            spent.append(used / wall)
    if not spent or max(spent) > _ONE_THREAD:
        return None
    return max(0.0, 1 - sum(spent) / len(spent))


# Verdicts are withdrawn only if the throttled shares of two cells' trials differ by more than this.
FEW_THROTTLED = 0.1
# Relative difference between two cells' frequencies above which it is reported.
FREQUENCIES_APART = 0.10
_STEADY = frozenset({"performance", "userspace"})
_PERFORMANCE = "set the governor to performance while you measure: cpupower frequency-set -g performance"


def check_governor(whole: WholeRun) -> Iterator[Finding]:
    """Check for a governor that lets the frequency follow the load; a note if it is not visible."""
    for environment in whole.environments[:1]:
        known: Mapping[str, Any] = environment.get("frequency") or {}
        found = known.get("governor")
        if not environment.get("processor"):
            return
        if found is None:
            message = "the frequency governor is not visible"
            if (environment.get("virtualization") or {}).get("hypervisor"):
                message += ": this host is itself a virtual machine"
            yield Finding(
                "governor unknown",
                Severity.NOTE,
                message,
                advice="ask the administrator of the physical host, or measure on bare metal",
            )
            continue
        several = [found] if isinstance(found, str) else list(found)
        moving = [name for name in several if name not in _STEADY]
        if not moving:
            continue
        names = " and ".join(several)
        message = f"the processors have different frequency governors: {names}"
        if len(moving) == len(several):
            message = f"the frequency governor is {names}: short runs may end before the processor reaches full speed"
        yield Finding("governor", Severity.WARNING, message, advice=_PERFORMANCE)


def check_turbo(whole: WholeRun) -> Iterator[Finding]:
    """Check for boost, whose frequency depends on heat and on how many processors are busy."""
    for environment in whole.environments[:1]:
        if (environment.get("frequency") or {}).get("boost") is True:
            yield Finding(
                "turbo",
                Severity.NOTE,
                "turbo is on: a processor's speed depends on its temperature and on how many others are busy",
                advice="for steadier figures, turn it off by no_turbo or boost in /sys/devices/system/cpu",
            )


def check_throttling(compared: ComparedCells) -> Iterator[Finding]:
    """Check for processors slowed down by heat; severe if only the baseline was affected, or only others were."""
    met = {cell.id: _count_throttled(compared, cell) for cell in compared.cells}
    hot = whole = 0
    places = []
    for name, counts in met.items():
        hot += counts[0]
        whole += counts[1]
        if counts[0]:
            places.append(f"{name} {format_trial_count(*counts)}")
    if not hot:
        return
    baseline = compared.baseline
    spoilt = []
    if baseline is not None:
        own = met[baseline.id]
        spoilt = [name for name in met if name != baseline.id and _is_throttled_unequally(met[name], own)]
    yield Finding(
        "throttling",
        Severity.SEVERE if spoilt else Severity.WARNING,
        f"the processor was too hot and was slowed down: {'; '.join(places)}",
        hot / whole,
        cells=tuple(spoilt),
        advice="improve the cooling, wait between runs, or set a lower maximum frequency",
    )


def _count_throttled(compared: ComparedCells, cell: Cell) -> tuple[int, int]:
    counts = [trial.noise.get("throttled") for trial in compared.list_good_trials(cell)]
    return sum(isinstance(count, int) and count > 0 for count in counts), len(counts)


def _is_throttled_unequally(mine: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return True if one side was throttled in at least two trials, and in a clearly larger share of its trials."""
    share, other_share = (hot / max(whole, 1) for hot, whole in (mine, other))
    return max(mine[0], other[0]) >= 2 and abs(share - other_share) > FEW_THROTTLED


def check_frequencies(compared: ComparedCells) -> Iterator[Finding]:
    """Check for cells measured at another frequency than the baseline, as that is then part of their ratio."""
    baseline = compared.baseline
    if baseline is None:
        return
    reference = _find_typical_megahertz(compared, baseline)
    if not reference:
        return
    for cell in compared.cells:
        if cell.baseline or cell.null_of is not None:
            continue
        mine = _find_typical_megahertz(compared, cell)
        if mine and abs(math.log(mine / reference)) > math.log1p(FREQUENCIES_APART):
            yield Finding(
                "frequency",
                Severity.WARNING,
                f"the processor ran at {mine / 1000:.2f} GHz for {cell.id} and at {reference / 1000:.2f} GHz for "
                f"{baseline.id}: this difference is part of the ratio",
                mine / reference - 1,
                advice=_PERFORMANCE,
            )


def _find_typical_megahertz(compared: ComparedCells, cell: Cell) -> float | None:
    """Return the median frequency at the end of the cell's trials; None if unknown."""
    ends = []
    for trial in compared.list_good_trials(cell):
        if isinstance(seen := trial.noise.get("frequency_mhz"), list | tuple) and seen:
            ends.append(float(seen[-1]))
    return statistics.median(ends) if ends else None

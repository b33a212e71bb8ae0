"""Whether the machines had the processors they were given: others that ran there, and the host's own host.

Load costs width, not the answer. Cells of one platform suffer from it alike, whatever it does meanwhile: their order is
random, and what it adds to the scatter is in the interval. Platforms that are unlike need not suffer alike. A share s
of the time for which they waited makes a run up to 1/(1 - s) times as long, so ratios of clock times between them are
known less well by that. Processor time, counts and printed figures do not wait.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from guestmark.core.metric_spec import SYSTEM, USER, WALL
from guestmark.core.model import Cell, Trial
from guestmark.stats.conditions.evidence import Compared
from guestmark.stats.noise import THRESHOLDS, foreign_share, stolen_share, waiting_share
from guestmark.stats.validity import Finding, Severity

_ONE_THREAD = 1.02  # processor time of a run over its wall time, up to which only one thread ran
_MOST = 0.9  # a larger share is no longer a time that a run waits for


def foreign_load(compared: Compared) -> Iterator[Finding]:
    """Other programs on the machines' processors."""
    share = foreign_share(_noise_here(compared))
    if share is not None and share > THRESHOLDS["foreign_cpu"]:
        yield _taken(
            compared,
            "foreign load",
            share,
            f"other programs had {100 * share:.0f} % of the processors that the machines ran on",
            "stop what else runs here, or keep it elsewhere: --set placement=cpus=LIST, taskset, a cpuset",
        )


def steal(compared: Compared) -> Iterator[Finding]:
    """Time that the hypervisor of a virtual host gave to others."""
    share = stolen_share(_noise_here(compared))
    if share is not None and share > THRESHOLDS["steal"]:
        yield _taken(
            compared,
            "steal",
            share,
            f"the host's own host took {100 * share:.0f} % of the processors' time (steal)",
            "measure on a machine of your own, or on dedicated processors",
        )


def _noise_here(compared: Compared) -> Iterator[Mapping[str, object]]:
    """Of the trials that were made on this host: it says nothing about another machine's processors."""
    for cell in compared.cells:
        if not cell.platform.is_elsewhere:
            yield from (trial.noise for trial in compared.good(cell))


def _taken(compared: Compared, name: str, share: float, said: str, advice: str) -> Finding:
    base = compared.baseline
    unlike = [cell for cell in compared.cells if base is not None and cell.platform != base.platform]
    widens = {cell.id: -math.log1p(-_suffered(compared, cell, share)) for cell in unlike}
    widest = max(widens.values(), default=0.0)
    costs = ""
    if widest >= -math.log1p(-_MOST):
        costs = f"; ratios between platforms may be off by a factor of {math.exp(widest):.0f} or more"
    elif widest > 0.005:
        costs = f"; ratios between platforms may be off by up to {100 * math.expm1(widest):.0f} %"
    return Finding(name, Severity.WARNING, f"{said}{costs}", share, advice=advice, widens=widens)


def _suffered(compared: Compared, cell: Cell, share: float) -> float:
    """For which share of its time the cell, or its baseline, may have waited for a processor; at most `share`."""
    both = [one for one in (cell, compared.baseline) if one is not None]
    waited = [_waited(compared.good(one)) for one in both]
    return min(share, max(share if found is None else found for found in waited), _MOST)


def _waited(trials: Sequence[Trial]) -> float | None:
    """As its hypervisor's threads did; on the host the part of the time that one thread did not run. None: unknown."""
    threads = waiting_share(trial.noise for trial in trials)
    if threads is not None:
        return threads
    spent = [
        sum(each.value for each in trial.measurements if each.metric in {USER, SYSTEM}) / wall.value
        for trial in trials
        for wall in trial.measurements
        if wall.metric == WALL and wall.value > 0
    ]
    if not spent or max(spent) > _ONE_THREAD:
        return None
    return max(0.0, 1 - sum(spent) / len(spent))

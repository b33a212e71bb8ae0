"""How many iterations a trial holds."""

import math
from collections.abc import Sequence

from guestmark.plan.model import Trial, TrialStatus

MAX_ITERATIONS = 10
_BOOT_S = 1.0  # what another boot costs, about


def choose(duration_s: float) -> int:
    """Iterations per boot when one takes `duration_s` seconds.

    r = sqrt(cost of a boot / cost of an iteration) for equal variances at both levels, which is all that is known
    before the first block (Kalibera and Jones, "Rigorous benchmarking in reasonable time", 2013, §6); at most
    `MAX_ITERATIONS`, since iterations of one boot are no replicates.
    """
    if duration_s <= 0:
        return MAX_ITERATIONS
    return max(round(min(math.sqrt(_BOOT_S / duration_s), MAX_ITERATIONS)), 1)


def chosen_before(trials: Sequence[Trial]) -> int | None:
    """What was chosen in an earlier trial of cells that compare with each other, in the order in which they ran.

    It stays for the whole run, resumed or not, and is the same for all of them: the median of seven runs and a single
    run are not the same question, even of equal cells.
    """
    for trial in trials:
        if trial.status is TrialStatus.OK and trial.measurements:
            return len(trial.measurements[0].iterations)
    return None

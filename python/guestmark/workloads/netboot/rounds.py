"""Whether a run held as many rounds in each boot as its own scatter asks for."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np

from guestmark.core.model import TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node, Note
from guestmark.page.text import line
from guestmark.stats.analysis import WorkloadResult
from guestmark.stats.estimands import iterations
from guestmark.stats.repetition import best_iterations, scatter_of
from guestmark.workloads.netboot.metrics import DOWNLOAD

_STARTS = 4  # fewer say next to nothing about how much starts scatter
_TIMES = 2  # a number that is off by less costs next to nothing: the optimum is flat


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The scatter of rounds and of boots, and how many rounds of a boot are best; nothing where that is not known."""
    cells = [result for result in workload.shown if result.trials]
    blocks = sorted({trial.block for result in cells for trial in result.trials})
    row = {block: number for number, block in enumerate(blocks)}
    found = [iterations(DOWNLOAD.name, result.trials, row) for result in cells]
    matrices = [matrix for matrix in found if matrix is not None]
    good = [
        trial for result in cells for trial in result.trials if trial.status is TrialStatus.OK and trial.run_s
    ]
    scatter = scatter_of(matrices) if len(matrices) == len(cells) else None
    if scatter is None or scatter.starts < _STARTS:
        return []
    each_s = fmean(fmean(trial.run_s) for trial in good)
    start_s = fmean(max(trial.duration_s - sum(trial.run_s), 0.0) for trial in good)
    best, held = best_iterations(scatter, start_s, each_s), matrices[0].shape[1]
    said = (
        f"rounds of one boot scatter by {np.sqrt(scatter.within):.1%}, boots by {np.sqrt(scatter.between):.1%}, and a "
        f"boot takes {start_s:.1f} s beside rounds of {each_s:.1f} s: "
        f"{best} rounds of each boot are best in a given time"
    )
    if best >= _TIMES * held or held >= _TIMES * best:
        said += f" (--iterations {best}; this run has {held})"
    return [Note(line(said))]

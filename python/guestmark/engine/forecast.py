"""A forecast for a plan before its first block: how earlier runs in the ledger scattered, and how long they took.

It uses runs on this host with the same questions; without any, runs of the same workload and platforms.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guestmark.core.errors import LedgerError
from guestmark.core.gate import Gate, read_plan_gates
from guestmark.core.model import Plan, TrialStatus, boots_any_machine
from guestmark.core.units import format_count, format_duration
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRatio, StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page.claims import Claim
from guestmark.page.figures import describe_precision, format_limit
from guestmark.stats.estimands import arrange_iterations
from guestmark.stats.gates import ALPHA, find_smallest_detected_ratio
from guestmark.stats.paired import NOMINAL, t_quantile
from guestmark.stats.repetition import Scatter, estimate_scatter

_NEWEST_RUNS = 3  # the number of runs that are read
# From fewer degrees of freedom, two runs of one experiment would choose different numbers of iterations.
_FEWEST_STARTS = 20
# For the choice of iterations, one variance is at most this many times the other.
_LARGEST_VARIANCE_RATIO = 16.0


@dataclass(frozen=True, slots=True)
class RunForecast:
    """A forecast from `runs` earlier runs.

    `within` is the variance between iterations on one machine over the variance between machines. `half_width` is that
    of the widest log ratio after `seconds`; None if the runs had other questions. `gates` are the plan's, each with
    the smallest ratio that 3 in 4 runs like the last one would find broken.
    """

    runs: int
    within: float | None = None
    half_width: float | None = None
    seconds: float | None = None
    gates: tuple[tuple[Gate, float], ...] = ()

    @property
    def sentence(self) -> str:
        """The expected precision and duration, as a sentence; empty if nothing is known."""
        if self.half_width is None or self.seconds is None:
            return ""
        told = f"{describe_precision(self.half_width)} in about {format_duration(self.seconds)}"
        sentence = f"{told}, as in {format_count(self.runs, 'earlier run')} here"
        for gate, size in self.gates:
            sentence += f"; {gate.text}: {Claim.GATE_FINDS.format(size=format_limit(gate.limit, size))}"
        return sentence


def forecast_run(plan: Plan, ledger: Ledger, environment: Mapping[str, Any]) -> RunForecast | None:
    """Return a forecast from the ledger for a plan in which machines boot.

    None for other plans: their first blocks take hardly any time, and then allow a forecast themselves.
    """
    host = run_history.identify_host(environment)
    if not host or not boots_any_machine(plan.cells) or not plan.metrics:
        return None
    same, alike = run_history.make_question_keys(plan)
    if (last := _find_newest_runs(ledger, host, same)) is not None:
        rows, ids = last
        runs = _load_runs(ledger, ids)
        within = _estimate_variance_ratio(runs)
        if not runs:
            return RunForecast(0, within)
        newest = [row for row in rows if row.run_id == ids[-1]]
        took = [run.plan.context.elapsed_s for run in runs if run.plan.context.elapsed_s]
        return RunForecast(
            len(runs),
            within,
            max((row.high - row.low) / 2 for row in newest),
            statistics.median(took) if took else None,
            _find_detectable_ratios(plan, newest),
        )
    # Runs with other questions still show how trials of this kind scatter.
    if (last := _find_newest_runs(ledger, host, alike)) is not None:
        runs = _load_runs(ledger, last[1])
        return RunForecast(len(runs), _estimate_variance_ratio(runs))
    return None


def _find_newest_runs(
    ledger: Ledger, host: str, keys: Collection[str]
) -> tuple[Sequence[StoredRatio], list[str]] | None:
    """Return the earlier ratios with these keys, and the ids of the newest runs among them, the newest last."""
    rows = ledger.find_earlier_ratios(host, keys, time.time(), most=_NEWEST_RUNS)
    ids = list(dict.fromkeys(row.run_id for row in sorted(rows, key=lambda row: row.created_at)))
    if not ids:
        return None
    return rows, ids[-_NEWEST_RUNS:]


def _find_detectable_ratios(plan: Plan, last: Sequence[StoredRatio]) -> tuple[tuple[Gate, float], ...]:
    """Return the gates of the primary metric, each with the ratio that is detected in its least precise cell."""
    primary = {"", plan.metrics[0].name}
    gates = [gate for gate in read_plan_gates(plan) if gate.loss is None and gate.metric in primary]
    found = []
    for gate in gates:
        cells = {cell.id for cell in plan.cells if gate.selects_cell(cell)}
        sizes = []
        for row in last:
            if row.cell_id in cells and row.blocks > 1:
                quantile = t_quantile(row.blocks - 1, (1 + NOMINAL) / 2)
                error = (row.high - row.low) / 2 / quantile
                sizes.append(find_smallest_detected_ratio(gate, error, row.blocks - 1, ALPHA / len(gates)))
        known = [size for size in sizes if size is not None]
        if known and len(known) == len(sizes):
            found.append((gate, max(known) if gate.above else min(known)))
    return tuple(found)


def _load_runs(ledger: Ledger, ids: Collection[str]) -> list[StoredRun]:
    runs = []
    for run_id in ids:
        try:
            runs.append(ledger.load_run(run_id))
        except LedgerError:
            # One damaged run must not keep the others from being used.
            continue
    return runs


def _estimate_scatter(run: StoredRun) -> Scatter | None:
    """Return the pooled scatter of all cells in the primary metric: a comparison has the scatter of both its sides."""
    blocks = sorted({trial.block for trial in run.trials})
    row = {block: number for number, block in enumerate(blocks)}
    matrices = []
    for cell in run.plan.cells:
        mine = [each for each in run.trials if each.cell_id == cell.id and each.status is TrialStatus.OK]
        if (found := arrange_iterations(run.plan.metrics[0].name, mine, row)) is not None:
            matrices.append(found)
    return estimate_scatter(matrices)


def _estimate_variance_ratio(runs: Sequence[StoredRun]) -> float | None:
    """Return the variance within machines divided by that between them; None below `_FEWEST_STARTS` starts."""
    starts, within, between = 0, 0.0, 0.0
    for run in runs:
        if (scatter := _estimate_scatter(run)) is not None:
            starts += scatter.starts
            within += scatter.within * scatter.starts
            between += scatter.between * scatter.starts
    if starts < _FEWEST_STARTS:
        return None
    ratio = within / between if between > 0 else _LARGEST_VARIANCE_RATIO
    return min(max(ratio, 1 / _LARGEST_VARIANCE_RATIO), _LARGEST_VARIANCE_RATIO)

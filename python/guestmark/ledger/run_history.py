"""Compares a run with earlier ones in its ledger: reads these before it is judged, and stores its ratios afterwards."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from guestmark.core.errors import UsageError
from guestmark.core.model import Cell, Plan
from guestmark.ledger.codec import to_plain
from guestmark.ledger.model import StoredRatio, StoredRun
from guestmark.ledger.store import Ledger
from guestmark.stats.across_runs import NO_HISTORY, History, PastNull, PastRatio
from guestmark.stats.analysis import Analysis, WorkloadResult, analyse_run
from guestmark.stats.compare import MIN_BLOCKS, Comparison
from guestmark.stats.conditions.surroundings import compare_environments

T = TypeVar("T")

_DIGITS = 32
# These differ in every build, and are left out if the version itself is reported.
_UNSAID = frozenset({"agent", "kernel build"})
# Above this share of flagged blocks, null comparisons show nothing about a quiet host.
_DISTURBED = 0.5


def analyse_with_history(ledger: Ledger, run: StoredRun) -> Analysis:
    """Return the run's analysis in comparison with earlier runs in the ledger."""
    return analyse_run(
        run.plan, run.trials, run.unusable, environments=run.environments, history=read_history(ledger, run)
    )


def read_history(ledger: Ledger, run: StoredRun) -> History:
    """Return the results of earlier runs on the same host for the same ratios, and for similar null comparisons.

    Reads the index and the environments of the runs that it names, never a trial.
    """
    here = identify_host(run.environment)
    if not here or not run.plan.metrics:
        return NO_HISTORY
    ratio_keys: dict[str, str] = {}
    null_keys: dict[str, str] = {}
    for cell in run.plan.cells:
        if key := _make_ratio_key(cell, run.plan):
            ratio_keys[cell.id] = key
        if cell.null_of is None:
            null_keys[cell.id] = _make_null_copy_key(cell, run.plan)
    rows = ledger.find_earlier_ratios(here, {*ratio_keys.values(), *null_keys.values()}, run.created_at)
    if not rows:
        return NO_HISTORY
    by_key: dict[str, list[StoredRatio]] = {}
    for row in rows:
        by_key.setdefault(row.what, []).append(row)
    past = _select_by_cell(ratio_keys, by_key, make_past)
    nulls = _select_by_cell(null_keys, by_key, _make_past_null)
    asked = set(ratio_keys.values())
    steps = _find_changes_between_runs(ledger, run, [row.run_id for row in rows if row.what in asked])
    between: dict[str, str] = {}
    for step in steps[:-1]:
        between |= step
    return History(past, nulls, changed=steps[-1] if steps else {}, between=between)


def _select_by_cell(
    keys: Mapping[str, str], by_key: Mapping[str, Sequence[StoredRatio]], make: Callable[[StoredRatio], T]
) -> dict[str, list[T]]:
    """Return what `make` makes of the ratios under each cell's key, for cells whose key has some."""
    return {cell_id: list(map(make, by_key[key])) for cell_id, key in keys.items() if key in by_key}


def _find_changes_between_runs(
    ledger: Ledger, run: StoredRun, earlier: Iterable[str]
) -> list[dict[str, str]]:
    """Return how the environment changed from each run to the next, ending with `run`."""
    environments = ledger.read_last_environments(list(dict.fromkeys(earlier)))
    hypervisors = frozenset(
        os.path.basename(trial.command_line[0]) for trial in run.trials if trial.command_line
    )
    chain = [*environments.values(), run.environment]
    return [_find_environment_changes(old, new, hypervisors) for old, new in itertools.pairwise(chain)]


def store_ratios(ledger: Ledger, run: StoredRun, analysis: Analysis) -> None:
    """Store the run's ratios, for later runs to compare with.

    Ratios that a severe finding withdraws are not stored, nor those without an interval.
    """
    here = identify_host(run.environment)
    if here:
        rows: list[StoredRatio] = []
        for workload in analysis.workloads:
            rows += _make_ratios(workload, analysis, run, here)
        ledger.store_ratios(run.id, rows)


def _make_ratios(
    workload: WorkloadResult, analysis: Analysis, run: StoredRun, here: str
) -> list[StoredRatio]:
    """Return the ratios of the primary metric that later runs may be compared with."""
    if not workload.metrics or workload.metrics[0] != run.plan.metrics[0]:
        return []
    metric = workload.metrics[0].name
    withdrawn: set[str] = set()
    for finding in (*analysis.findings, *workload.findings):
        if finding.severity == "severe":
            withdrawn |= set(finding.cells)
    disturbed = len(analysis.flagged_blocks) > _DISTURBED * analysis.blocks
    by_id = {result.cell.id: result for result in workload.cells}
    found = []
    for result in workload.cells:
        comparison = result.comparison.get(metric)
        copied = by_id.get(result.cell.null_of or "")
        base = copied or workload.baseline
        if comparison is None or result.cell.id in withdrawn:
            continue
        if base is None or metric not in base.summary:
            continue
        # Null comparisons on a busy host show nothing about a quiet one.
        if copied is not None and disturbed:
            continue
        key = _make_ratio_key(result.cell, run.plan)
        if copied is not None:
            key = _make_null_copy_key(copied.cell, run.plan)
        ratio = _make_stored_ratio(run, here, result.cell.id, key, comparison, base.summary[metric].median)
        if ratio is not None:
            found.append(ratio)
    return found


def _make_stored_ratio(  # noqa: PLR0917 (the columns of a row)
    run: StoredRun, here: str, cell_id: str, key: str, comparison: Comparison, typical: float
) -> StoredRatio | None:
    """Return the row of a comparison; None if it has no interval of its own."""
    ratio, interval = comparison.ratio, comparison.ci
    if ratio is None or interval is None or interval[0] <= 0 or comparison.n < MIN_BLOCKS:
        return None
    return StoredRatio(
        run_id=run.id,
        cell_id=cell_id,
        host=here,
        what=key,
        created_at=run.created_at,
        log_ratio=math.log(ratio),
        low=math.log(interval[0]),
        high=math.log(interval[1]),
        blocks=comparison.n,
        typical=typical,
    )


def identify_run_host(run: StoredRun) -> str:
    """Return `identify_host` of a stored run."""
    return identify_host(run.environment)


def find_ratios(run: StoredRun, analysis: Analysis) -> dict[str, tuple[PastRatio, str]]:
    """Return the run's ratios of its primary metric, each with its cell's id, by the key of its question."""
    found = {}
    for workload in analysis.workloads:
        for row in _make_ratios(workload, analysis, run, identify_run_host(run)):
            cell = next(cell for cell in run.plan.cells if cell.id == row.cell_id)
            if cell.null_of is None:
                found[row.what] = (make_past(row), row.cell_id)
    return found


def make_question_keys(plan: Plan) -> tuple[list[str], list[str]]:
    """Return the keys of the questions that a plan asks, and of the kinds of its cells."""
    same: dict[str, None] = {}
    alike: dict[str, None] = {}
    for cell in plan.cells:
        if key := _make_ratio_key(cell, plan):
            same[key] = None
        alike[_make_null_copy_key(cell, plan)] = None
    return list(same), list(alike)


def make_question_key(run: StoredRun, cell_id: str) -> str:
    """Return the key of the question that the run asks about a cell; empty if nothing is compared."""
    cell = _find_planned_cell(run.plan, cell_id)
    if cell is None or not run.plan.metrics:
        return ""
    return _make_ratio_key(cell, run.plan)


def _find_planned_cell(plan: Plan, cell_id: str) -> Cell | None:
    for cell in plan.cells:
        if cell.id == cell_id:
            return cell
    return None


def refuse_other_questions(runs: Sequence[StoredRun], cell_id: str) -> None:
    """Raise `UsageError` if runs that have a cell of this id ask different questions about it.

    The same question may have been asked on other processors, as on another host.
    """
    asked: dict[str, str] = {}
    for run in runs:
        cell = _find_planned_cell(run.plan, cell_id)
        if cell is not None and run.plan.metrics:
            baseline = _find_baseline(cell, run.plan) or cell
            key = _digest_question(replace(cell, processors=0), replace(baseline, processors=0), run.plan)
            asked.setdefault(key, run.id)
    if len(asked) > 1:
        one, other = list(asked.values())[:2]
        raise UsageError(
            f"runs {one} and {other} ask different questions about {cell_id}",
            hint="name runs of the same command and settings; guestmark compare shows what differs",
        )


def make_past(row: StoredRatio) -> PastRatio:
    """Return a stored ratio as the statistics use it."""
    return PastRatio(
        row.run_id, row.created_at, math.exp(row.log_ratio), math.exp(row.low), math.exp(row.high), row.blocks
    )


def _make_past_null(row: StoredRatio) -> PastNull:
    return PastNull(row.log_ratio, row.blocks, row.typical)


def _make_ratio_key(cell: Cell, plan: Plan) -> str:
    """Return a digest of a question: workload, platforms, factors and processors of both sides, and metric."""
    baseline = _find_baseline(cell, plan)
    if cell.baseline or cell.null_of is not None or baseline is None:
        return ""
    return _digest_question(cell, baseline, plan)


def _find_baseline(cell: Cell, plan: Plan) -> Cell | None:
    for other in plan.cells:
        if other.baseline and other.compares_with(cell):
            return other
    return None


def _digest_question(cell: Cell, baseline: Cell, plan: Plan) -> str:
    return _digest_parts("ratio", _describe_side(cell), _describe_side(baseline), plan.metrics[0].name)


def _make_null_copy_key(cell: Cell, plan: Plan) -> str:
    """Return a digest of a cell's kind: its workload and platform, whatever its parameters and factors are."""
    return _digest_parts("null", cell.workload.name, str(cell.platform), plan.metrics[0].name)


def _describe_side(cell: Cell) -> Sequence[Any]:
    params = {name: value for name, value in cell.workload.params.items() if name != "env"}
    return [
        cell.workload.name,
        params,
        str(cell.platform),
        dict(sorted(cell.factors.items())),
        cell.processors,
    ]


def identify_host(environment: Mapping[str, Any]) -> str:
    """Return a digest of the machine that measured a run; empty if it was not recorded (before version 0.3)."""
    machine, processor = environment.get("machine"), environment.get("processor") or {}
    if not machine:
        return ""
    return _digest_parts(
        "host", machine, processor.get("model"), processor.get("count"), processor.get("architecture")
    )


def _digest_parts(*parts: Any) -> str:
    told = json.dumps(to_plain(parts), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]


def _find_environment_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], hypervisors: frozenset[str]
) -> dict[str, str]:
    decisive, other = compare_environments(old, new, hypervisors)
    kept = {"guestmark", "guestmark commit", "memory", "huge pages"}
    every = decisive | {name: said for name, said in other.items() if name in kept}
    return {name: said for name, said in every.items() if name not in _UNSAID or "kernel" not in every}

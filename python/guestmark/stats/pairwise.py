"""Comparisons of any two cells of a run, not only of each cell with its baseline."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from guestmark.core.metric import Metric
from guestmark.core.model import Trial
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import (
    Comparison,
    Table,
    Verdict,
    Widening,
    compare_tables,
    invert_comparison,
    widen_interval,
    withdraw_verdict,
)
from guestmark.stats.family import hold_to_family_level, limit_to_typical_run
from guestmark.stats.noise import Null
from guestmark.stats.validity import list_severe_by_cell, subtract_carry_over

Array = NDArray[np.float64]
# Ids of cells: the first over the second.
Pair = tuple[str, str]


def list_values_by_block(trials: Iterable[Trial], metric: str) -> dict[int, float]:
    """Return the finite values of a metric in trials that are ok, by block."""
    values = {}
    for trial in trials:
        measurement = trial.find_good_measurement(metric)
        if measurement is not None and math.isfinite(measurement.value):
            values[trial.block] = measurement.value
    return values


def list_block_ratios(reference: Iterable[Trial], trials: Iterable[Trial], metric: str) -> dict[int, float]:
    """Return the ratio of `trials` to `reference` by block, where a block has both and both are above 0."""
    base, cell = list_values_by_block(reference, metric), list_values_by_block(trials, metric)
    ratios = {}
    for block in sorted(cell):
        if base.get(block, 0) > 0 and cell[block] > 0:
            ratios[block] = cell[block] / base[block]
    return ratios


def find_shown_leader(cells: Sequence[CellResult], metric: Metric, analysis: Analysis) -> CellResult | None:
    """Return the cell with the lowest typical value; None unless all others are shown to be slower."""
    first = min(cells, key=lambda result: result.summary[metric.name].typical)
    pairs = [(first.cell.id, result.cell.id) for result in cells if result is not first]
    compared = compare_pairs(pairs, metric, analysis)
    for pair in pairs:
        if pair not in compared or compared[pair].verdict is not Verdict.FASTER:
            return None
    return first if pairs else None


def explain_doubt(result: CellResult, workload: WorkloadResult, metric: str, analysis: Analysis) -> str:
    """Return the severe findings that forbid any verdict on a cell in a metric, as text; empty without any."""
    primary = bool(workload.metrics) and metric == workload.metrics[0].name
    findings = [*workload.findings, *analysis.findings]
    if not primary:
        findings = [finding for finding in findings if not finding.primary_only]
    return ", ".join(list_severe_by_cell(findings).get(result.cell.id, ()))


def compare_pairs(pairs: Sequence[Pair], metric: Metric, analysis: Analysis) -> dict[Pair, Comparison]:
    """Compare every pair in one metric; pairs without a common block are left out.

    A pair that includes its table's baseline gets the verdict of its row, so that a report does not contradict itself.
    The p values of the others are adjusted over all pairs, at the level that typical runs have in a table.
    """
    owner: dict[str, WorkloadResult] = {}
    for workload in analysis.workloads:
        for result in workload.cells:
            owner[result.cell.id] = workload
    results = {result.cell.id: result for result in analysis.cells}
    rows = {}
    for pair in pairs:
        if (row := _find_in_table(pair, owner, results, metric)) is not None:
            rows[pair] = row
    return _compare_other_pairs(pairs, metric, analysis, owner, results) | rows


def _find_in_table(
    pair: Pair,
    owner: Mapping[str, WorkloadResult],
    results: Mapping[str, CellResult],
    metric: Metric,
) -> Comparison | None:
    """Return the comparison that a pair has in its table, or its inverse; None if neither cell is the baseline."""
    first, second = pair
    baseline = owner[second].baseline
    if baseline is None or owner[first] is not owner[second]:
        return None
    if baseline.cell.id not in pair:
        return None
    is_first_over_baseline = second == baseline.cell.id
    cell_id = first if is_first_over_baseline else second
    row = results[cell_id].comparison.get(metric.name)
    if row is None or row.ratio is None:
        return None
    return row if is_first_over_baseline else invert_comparison(row)


def _compare_other_pairs(
    pairs: Sequence[Pair],
    metric: Metric,
    analysis: Analysis,
    owner: Mapping[str, WorkloadResult],
    results: Mapping[str, CellResult],
) -> dict[Pair, Comparison]:
    blocks = analysis.list_blocks()
    arrays = {}
    for name in dict.fromkeys(itertools.chain.from_iterable(pairs)):
        arrays[name] = subtract_carry_over(
            arrange_block_values(results[name], metric.name, blocks),
            owner[name].carried.get(metric.name),
            name,
        )
    tables: dict[str, Table] = {}
    for base in dict.fromkeys(second for _, second in pairs):
        above = {first: arrays[first] for first, second in pairs if second == base}
        nulls, history = _collect_null_evidence(owner[base], metric, analysis, blocks)
        tables[base] = Table(
            {base: arrays[base], **above}, base, metric.better, analysis.plan.policy.margin, nulls, history
        )
    found = {}
    for base, row in compare_tables(tables).items():
        for first, comparison in row.items():
            found[first, base] = comparison
    compared = {}
    for pair in pairs:
        if pair in found and found[pair].ratio is not None:
            owners = owner[pair[0]], owner[pair[1]]
            compared[pair] = _allow_for_findings(found[pair], pair, owners, results, metric, analysis)
    return compared


def arrange_block_values(result: CellResult, metric: str, blocks: Sequence[int]) -> Array:
    """Return a cell's values of a metric in these blocks, shape (K,); NaN if a block has none."""
    values = list_values_by_block(result.trials, metric)
    return np.array([values.get(block, np.nan) for block in blocks])


def _collect_null_evidence(
    workload: WorkloadResult, metric: Metric, analysis: Analysis, blocks: Sequence[int]
) -> tuple[list[tuple[Array, Array]], Sequence[Null]]:
    """Return null comparisons: this run's copies, and for the primary metric also earlier runs' comparisons."""
    results = {result.cell.id: result for result in workload.cells}
    copies = []
    for result in workload.null_cells:
        if result.cell.null_of in results:
            copies.append(
                (
                    arrange_block_values(result, metric.name, blocks),
                    arrange_block_values(results[result.cell.null_of], metric.name, blocks),
                )
            )
    # The ledger keeps null comparisons of the primary metric only.
    if not workload.metrics or metric.name != workload.metrics[0].name:
        return copies, ()
    summaries = {name: result.summary for name, result in results.items()}
    cells = [result.cell for result in workload.cells]
    return copies, analysis.history.find_nulls(cells, summaries, metric)


def _allow_for_findings(  # noqa: PLR0917 (all of it is what one comparison is judged by)
    comparison: Comparison,
    pair: Pair,
    owners: tuple[WorkloadResult, WorkloadResult],
    results: Mapping[str, CellResult],
    metric: Metric,
    analysis: Analysis,
) -> Comparison:
    """Return the comparison, widened and withdrawn as the findings about either cell demand."""
    margin = analysis.plan.policy.margin
    both = list(zip(pair, owners, strict=True))
    spread = math.hypot(*(owner.compute_systematic_spread(name, metric) for name, owner in both))
    reach = sum(owner.compute_noise_reach(name, metric) for name, owner in both)
    # Here both cells may be corrected, each with its own error; in a table only one is.
    allowed = widen_interval(comparison, Widening(margin, spread, reach))
    comparison = limit_to_typical_run(hold_to_family_level(allowed), margin)
    reasons = []
    for name, owner in both:
        if reason := explain_doubt(results[name], owner, metric.name, analysis):
            reasons.append(reason)
    if not reasons:
        return comparison
    return withdraw_verdict(comparison, ", ".join(dict.fromkeys(reasons)))

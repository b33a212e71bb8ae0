"""What the trials of a run show, computed in one place for the live table, the final report and every
export.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guestmark.core.findings import FailedRuns, machine_of
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, CellStatus, LeftOut, Plan, Trial, TrialStatus, WorkloadSpec
from guestmark.stats import estimands
from guestmark.stats.across_runs import NO_HISTORY, History
from guestmark.stats.compare import (
    WIDENED_REASON,
    Comparison,
    Table,
    bias_between_runs,
    compare_table,
    compare_tables,
    estimate_noise_floor,
    is_processor_time,
    null_differs,
    waits_for_processor,
    widen_interval,
    withdraw_verdict,
)
from guestmark.stats.conditions import WholeRun, check_run, estimate_carry_over, examine_cells
from guestmark.stats.family import judge_family
from guestmark.stats.machines import shared_half_width
from guestmark.stats.noise import Null, find_disturbed_blocks
from guestmark.stats.paired import Summary, log_ratios, summarise_trials
from guestmark.stats.tails import failed_share
from guestmark.stats.trials import Answers, widen_answers, withdraw_answers
from guestmark.stats.validity import CarryOver, Finding, severe_by_cell, subtract_carry_over

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell: how it went, and by metric name its summary and its comparison.

    A null cell is compared with the cell it copies, every other cell with its workload's baseline; the
    baseline itself has no comparisons.
    """

    cell: Cell
    status: CellStatus
    reason: str  # one line; empty when every trial is ok
    trials: tuple[Trial, ...]  # in block order
    summary: Mapping[str, Summary]
    comparison: Mapping[str, Comparison]
    answers: Answers | None = None  # of the primary metric; None for the baseline and for unequal iterations

    @property
    def differing_null_metrics(self) -> tuple[str, ...]:
        """Names of the metrics in which this null cell differs from the cell it copies, which it
        should not.
        """
        if self.cell.null_of is None:
            return ()
        return tuple(name for name, comparison in self.comparison.items() if null_differs(comparison))


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Cells that are compared with each other, in plan order, and what their comparisons share.

    Mostly they run one workload, the first one's: `workload`. A plan may also compare across workloads.
    """

    workload: WorkloadSpec
    metrics: tuple[Metric, ...]  # in table order, the primary one first; only those that were measured
    cells: tuple[CellResult, ...]
    noise_floors: Mapping[str, float]  # by metric name, |ratio - 1|; absent when unknown
    widened: tuple[str, ...]  # metrics whose intervals are wider because a null cell differs
    findings: tuple[
        Finding, ...
    ] = ()  # what limits what these cells mean; a severe one takes their verdicts back
    biases: Mapping[str, float] = field(
        default_factory=dict
    )  # by metric, what equal cells may differ by, as a log
    carried: Mapping[str, CarryOver] = field(default_factory=dict, compare=False, repr=False)  # by metric
    shared: Mapping[str, Mapping[str, float]] = field(default_factory=dict, compare=False, repr=False)
    machines: int = 1  # that measured it

    def systematic_spread(self, cell_id: str, metric: Metric) -> float:
        """The half-width of the 95 % interval, of the log ratio, of what is independent of the scatter of blocks."""
        carried = self.carried.get(metric.name)
        error = 0.0 if carried is None else carried.error.get(cell_id, 0.0)
        return math.hypot(self.biases.get(metric.name, 0.0), error)

    def machine_spread(self, cell_id: str, metric: Metric, known: Comparison | None) -> float:
        """Return what machines that share a run add to `systematic_spread`, a half-width of the log ratio.

        With it the interval of `known` is no narrower than the one over machines.
        """
        half = self.shared.get(metric.name, {}).get(cell_id, 0.0)
        if known is None or known.ci is None or known.ci[0] <= 0:
            return half
        return math.sqrt(max(half**2 - (math.log(known.ci[1] / known.ci[0]) / 2) ** 2, 0.0))

    @property
    def degrees_of_freedom(self) -> int | None:
        """Degrees of freedom where they are those of machines that share the run, not of blocks."""
        return self.machines - 1 if self.shared else None

    def noise_reach(self, cell_id: str, metric: Metric) -> float:
        """The log by which what others did on the host may be the reason of a ratio."""
        if is_processor_time(metric):
            return sum(finding.slows.get(cell_id, 0.0) for finding in self.findings)
        return (
            sum(finding.widens.get(cell_id, 0.0) for finding in self.findings)
            if waits_for_processor(metric)
            else 0.0
        )

    @property
    def title(self) -> str:
        """The title of its table: the group's name, else the workload's."""
        group = self.cells[0].cell.group if self.cells else ""
        return group or self.workload.label or self.workload.name

    @property
    def baseline(self) -> CellResult | None:
        """The cell the others are compared with."""
        return next((result for result in self.cells if result.cell.baseline), None)

    @property
    def shown_cells(self) -> tuple[CellResult, ...]:
        """The cells that a table shows: all but the null cells, or all when there is nothing else to compare."""
        others = tuple(result for result in self.cells if result.cell.null_of is None)
        return others if len(others) > 1 else self.cells

    @property
    def null_cells(self) -> tuple[CellResult, ...]:
        """The null cells."""
        return tuple(result for result in self.cells if result.cell.null_of is not None)


@dataclass(frozen=True, slots=True)
class Analysis:
    """A whole run, workload by workload in plan order."""

    plan: Plan
    workloads: tuple[WorkloadResult, ...]
    blocks: int  # that hold at least one trial
    trials: int
    failed: int
    flagged_blocks: tuple[int, ...]  # disturbed by the host; kept in every estimate, and reported
    disturbances: Mapping[str, int]  # for each rule of `stats.THRESHOLDS` that flagged: in how many blocks
    findings: tuple[Finding, ...] = ()  # about the run; those about cells are with their workload
    history: History = NO_HISTORY  # earlier runs of the same host

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """All cells, in plan order."""
        order = {cell.id: position for position, cell in enumerate(self.plan.cells)}
        results = [result for workload in self.workloads for result in workload.cells]
        return tuple(sorted(results, key=lambda result: order[result.cell.id]))


def analyse_run(
    plan: Plan,
    trials: Iterable[Trial],
    left_out: Iterable[LeftOut] = (),
    *,
    metrics: Collection[str] | None = None,
    environments: Sequence[Mapping[str, Any]] = (),
    history: History = NO_HISTORY,
) -> Analysis:
    """Summaries and comparisons of every cell, paired by block within each workload.

    Only trials that are ok give values; a missing or failed trial takes its block out of the comparisons it
    belongs to and of nothing else. `metrics` limits the work to these names, and to its primary metric where a
    workload has none of them; `environments` are those the run was started and resumed in, `history` what is known
    of earlier ones. Raises nothing for any trials that refer to cells of the plan; trials of unknown cells are ignored.
    """
    kept = list(trials)
    blocks = sorted({trial.block for trial in kept})
    by_cell: dict[str, list[Trial]] = {cell.id: [] for cell in plan.cells}
    for trial in sorted(kept, key=lambda one: one.block):
        if trial.cell_id in by_cell:
            by_cell[trial.cell_id].append(trial)
    known = tuple(left_out)
    groups: list[list[Cell]] = []
    for cell in plan.cells:
        for cells in groups:
            if cells[0].compares_with(cell):
                cells.append(cell)
                break
        else:
            groups.append([cell])
    flagged, disturbances = find_disturbed_blocks(kept, blocks)
    findings = check_run(WholeRun(plan, kept, environments))
    return Analysis(
        plan=plan,
        workloads=tuple(
            _analyse_workload(
                plan,
                cells,
                by_cell,
                blocks=blocks,
                left_out=known,
                wanted=metrics,
                of_the_run=findings,
                history=history,
            )
            for cells in groups
        ),
        blocks=len(blocks),
        trials=len(kept),
        failed=sum(trial.status is not TrialStatus.OK for trial in kept),
        flagged_blocks=flagged,
        disturbances=disturbances,
        findings=findings,
        history=history,
    )


def _analyse_workload(
    plan: Plan,
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    *,
    blocks: Sequence[int],
    left_out: Sequence[LeftOut],
    wanted: Collection[str] | None,
    of_the_run: Sequence[Finding],
    history: History,
) -> WorkloadResult:
    measured = _collect_metrics(plan, (trial for cell in cells for trial in by_cell[cell.id]))
    metrics = [metric for metric in measured if wanted is None or metric.name in wanted] or measured[:1]
    row = {block: position for position, block in enumerate(blocks)}
    known = _examine_cells(plan, cells, by_cell, row, measured, of_the_run)
    each = {
        metric.name: _analyse_metric(
            plan, cells, by_cell, row, metric, history, known if metric == measured[0] else None
        )
        for metric in metrics
    }
    carried = {name: one.carried for name, one in each.items() if one.carried is not None}
    whole = WorkloadResult(
        cells[0].workload,
        tuple(metrics),
        (),
        {name: one.floor for name, one in each.items() if one.floor is not None},
        tuple(name for name, one in each.items() if one.differs),
        known.findings,
        {name: one.bias for name, one in each.items()},
        carried,
        {name: one.shared for name, one in each.items() if one.shared},
        len({machine_of(trial.facts) for cell in cells for trial in by_cell[cell.id]}),
    )
    answers = (
        estimands.answer_questions(plan, cells, by_cell, row, measured[0], carried=carried)
        if measured
        else {}
    )
    compared = _compare_metrics({name: one.table for name, one in each.items()}, measured[:1])
    comparisons: dict[str, Mapping[str, Comparison]] = {}
    for cell in cells:
        if cell.null_of is not None:
            comparisons[cell.id] = {
                name: one.nulls[cell.id] for name, one in each.items() if cell.id in one.nulls
            }
            continue
        found = {name: compared[name][cell.id] for name in each if cell.id in compared.get(name, ())}
        comparisons[cell.id], answer = _judge_cell(plan, cell, whole, known, found, answers.get(cell.id))
        if answer is not None:
            answers[cell.id] = answer
    summaries = {
        cell.id: {name: one.summaries[cell.id] for name, one in each.items() if cell.id in one.summaries}
        for cell in cells
    }
    results = tuple(
        CellResult(
            cell,
            *_cell_status(cell, by_cell[cell.id], left_out),
            tuple(by_cell[cell.id]),
            summaries[cell.id],
            comparisons[cell.id],
            answers.get(cell.id),
        )
        for cell in cells
    )
    return replace(whole, cells=results)


@dataclass(frozen=True, slots=True)
class _MetricEvidence:
    """What is known of one metric before anything is decided: by cell its summaries and null comparisons."""

    summaries: Mapping[str, Summary]
    nulls: Mapping[str, Comparison]
    table: Table | None
    floor: float | None
    bias: float  # what equal cells may differ by, as a log
    differs: bool  # a null cell from the one that it copies
    carried: CarryOver | None
    shared: Mapping[
        str, float
    ]  # by cell, how well its log ratio is known from the machines that shared the run


def _analyse_metric(  # noqa: PLR0917 (as `estimands.answer_questions`)
    plan: Plan,
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    row: Mapping[int, int],
    metric: Metric,
    history: History,
    primary: "_CellFindings | None",
) -> _MetricEvidence:
    plain = {cell.id: _values_by_block(metric.name, by_cell[cell.id], row) for cell in cells}
    summaries = {name: summary for name, array in plain.items() if (summary := summarise_trials(array)).n}
    carried = estimate_carry_over(plan, cells, by_cell, plain, row) if primary is None else primary.carried
    values = {name: subtract_carry_over(array, carried, name) for name, array in plain.items()}
    copies = {cell.id: cell.null_of for cell in cells if cell.null_of in values and cell.null_of is not None}
    pairs = [(values[copy], values[of]) for copy, of in copies.items()]
    like = {name: {metric.name: summary} for name, summary in summaries.items()}
    earlier = [] if primary is None else history.nulls_for(cells, like, metric)
    nulls = {
        copy: compare_table(
            {of: values[of], copy: values[copy]}, of, better=metric.better, margin=plan.policy.margin
        )[copy]
        for copy, of in copies.items()
        if copy in summaries
    }
    apart = [abs(math.log(null.ratio)) for null in nulls.values() if null_differs(null) and null.ratio]
    return _MetricEvidence(
        summaries,
        {copy: estimands.retract_null_difference(null) for copy, null in nulls.items()},
        _build_table(metric, plan, cells, values, null_pairs=pairs, earlier=earlier),
        estimate_noise_floor(pairs, len(row), earlier),
        max([bias_between_runs(pairs, earlier), *apart]),
        bool(apart),
        carried,
        _machine_half_widths(cells, by_cell, values, row),
    )


def _machine_half_widths(
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    values: Mapping[str, Array],
    row: Mapping[int, int],
) -> dict[str, float]:
    """By cell `machines.shared_half_width` of its log ratio to the baseline; nothing of a run of one machine."""
    baseline = next((cell.id for cell in cells if cell.baseline), None)
    machines = {row[trial.block]: machine_of(trial.facts) for trial in by_cell.get(baseline or "", ())}
    if baseline is None or len(set(machines.values())) < 2:
        return {}
    found = {}
    for cell in cells:
        both = ~(np.isnan(values[cell.id]) | np.isnan(values[baseline]))
        d = log_ratios(values[cell.id], values[baseline])
        if cell.id != baseline and d is not None and d.size:
            names = [machines[int(at)] for at in np.flatnonzero(both)]
            if (half := shared_half_width(d, names)) is not None:
                found[cell.id] = half
    return found


def _judge_cell(  # noqa: PLR0917 (all of it is what one cell is judged by)
    plan: Plan,
    cell: Cell,
    whole: WorkloadResult,
    known: "_CellFindings",
    found: Mapping[str, Comparison],
    answer: Answers | None,
) -> tuple[dict[str, Comparison], Answers | None]:
    """A cell's comparisons by metric and its answers, with what may add to them and what takes them back."""
    if not found:
        return {}, answer
    margin, first = plan.policy.margin, whole.metrics[0]
    comparisons = {}
    for metric in whole.metrics:
        if metric.name in found:
            spread, reach = whole.systematic_spread(cell.id, metric), whole.noise_reach(cell.id, metric)
            spread = math.hypot(spread, whole.machine_spread(cell.id, metric, found[metric.name]))
            comparison = widen_interval(
                found[metric.name],
                margin,
                WIDENED_REASON,
                spread=spread,
                reach=reach,
                freedom=whole.degrees_of_freedom,
            )
            reason = (known.spoilt if metric == first else known.wholly).get(cell.id)
            comparisons[metric.name] = withdraw_verdict(comparison, reason) if reason else comparison
    if answer is not None:
        spread, reach = whole.systematic_spread(cell.id, first), whole.noise_reach(cell.id, first)
        spread = math.hypot(spread, whole.machine_spread(cell.id, first, answer.typical))
        answer = widen_answers(
            answer, margin, WIDENED_REASON, spread=spread, reach=reach, freedom=whole.degrees_of_freedom
        )
        if reason := known.spoilt.get(cell.id):
            answer = withdraw_answers(answer, reason)
    # The typical run is asked once: the headline also counts the first block's single iterations.
    headline, answer, others = judge_family(comparisons.pop(first.name, None), answer, comparisons, margin)
    return others if headline is None else {first.name: headline, **others}, answer


@dataclass(frozen=True, slots=True)
class _CellFindings:
    """The findings about cells that are compared, and by cell what follows from them."""

    findings: tuple[Finding, ...] = ()
    spoilt: Mapping[str, str] = field(
        default_factory=dict
    )  # why the primary metric's verdicts are taken back
    wholly: Mapping[str, str] = field(default_factory=dict)  # why all metrics' are
    carried: CarryOver | None = None  # what trials of the primary metric owe to those before them


def _examine_cells(  # noqa: PLR0917 (as `estimands.answer_questions`)
    plan: Plan,
    cells: Sequence[Cell],
    by_cell: Mapping[str, Sequence[Trial]],
    row: Mapping[int, int],
    measured: Sequence[Metric],
    of_the_run: Sequence[Finding],
) -> _CellFindings:
    if not measured:
        return _CellFindings()
    primary = measured[0]
    values = {
        cell.id: _values_by_block(primary.name, by_cell[cell.id] if cell in cells else (), row)
        for cell in plan.cells
    }
    findings = examine_cells(plan, cells, by_cell, values, row, primary)
    every = (*findings, *of_the_run)
    return _CellFindings(
        findings,
        _withdrawal_reasons(every),
        _withdrawal_reasons(finding for finding in every if not finding.primary_only),
        next((finding.carried for finding in findings if finding.carried is not None), None),
    )


def _withdrawal_reasons(findings: Iterable[Finding]) -> dict[str, str]:
    """Why, by cell: the names of all findings that take its verdicts back."""
    return {cell_id: ", ".join(names) for cell_id, names in severe_by_cell(findings).items()}


def _build_table(
    metric: Metric,
    plan: Plan,
    cells: Sequence[Cell],
    values: Mapping[str, Array],
    *,
    null_pairs: Sequence[tuple[Array, Array]],
    earlier: Sequence[Null],
) -> Table | None:
    """The workload's cells that have this metric, null cells left out; None without a baseline that has it."""
    baseline = next((cell.id for cell in cells if cell.baseline), None)
    if baseline is None or np.isnan(values[baseline]).all():
        return None
    table = {
        cell.id: values[cell.id]
        for cell in cells
        if cell.null_of is None and (cell.baseline or not np.isnan(values[cell.id]).all())
    }
    return Table(table, baseline, metric.better, plan.policy.margin, null_pairs, earlier)


def _compare_metrics(
    tables: Mapping[str, Table | None], primary: Sequence[Metric]
) -> dict[str, dict[str, Comparison]]:
    """Comparisons by metric and cell: the primary metric by itself, p values of all others adjusted together."""
    first = {metric.name for metric in primary}
    present = {name: table for name, table in tables.items() if table is not None}
    return compare_tables({name: table for name, table in present.items() if name in first}) | compare_tables(
        {name: table for name, table in present.items() if name not in first}
    )


def _collect_metrics(plan: Plan, trials: Iterable[Trial]) -> list[Metric]:
    """The metrics that the trials hold: the plan's first and in its order, then others as they appear."""
    seen: dict[str, Metric] = {}
    for trial in trials:
        for measurement in trial.measurements:
            seen.setdefault(measurement.metric.name, measurement.metric)
    ordered = [metric.name for metric in plan.metrics if metric.name in seen]
    return [seen[name] for name in dict.fromkeys([*ordered, *seen])]


def _values_by_block(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array:
    """Values of a metric, shape (K,), one per block; NaN where there is none that is finite."""
    values = np.full(len(row), np.nan)
    for trial in trials:
        if trial.status is TrialStatus.OK:
            for measurement in trial.measurements:
                if measurement.metric.name == name and math.isfinite(measurement.value):
                    values[row[trial.block]] = measurement.value
    return values


def _cell_status(cell: Cell, trials: Sequence[Trial], left_out: Sequence[LeftOut]) -> tuple[CellStatus, str]:
    if not trials:
        if (entry := next((entry for entry in left_out if entry.covers(cell)), None)) is not None:
            return CellStatus.UNUSABLE, entry.reason
        return CellStatus.PENDING, "no trial has ended yet"
    failures = [trial.reason or "failed" for trial in trials if trial.status is not TrialStatus.OK]
    if not failures:
        failing = _describe_failing_runs(trials)
        return (CellStatus.PARTIAL if failing else CellStatus.OK), failing
    reason, _ = Counter(failures).most_common(1)[0]
    others = "" if len(set(failures)) == 1 else f" (and {len(set(failures)) - 1} other reasons)"
    said = f"{len(failures)} of {len(trials)} trials failed: {reason}{others}"
    return (CellStatus.FAILED if len(failures) == len(trials) else CellStatus.PARTIAL), said


def _describe_failing_runs(trials: Sequence[Trial]) -> str:
    """How often runs of good trials failed, with an interval; empty where none did."""
    known = [(trial, trial.facts.of(FailedRuns)) for trial in trials]
    found = [fact for _, fact in known if fact is not None]
    if not found:
        return ""
    failed = np.array([0 if fact is None else fact.failed for _, fact in known], dtype=np.float64)
    tried = np.array(
        [_count_runs(trial) if fact is None else fact.tried for trial, fact in known], dtype=np.float64
    )
    share, (low, high) = failed_share(failed, tried)
    said = f"fails in {share:.0%} [{low:.0%}, {high:.0%}] of runs ({failed.sum():.0f} of {tried.sum():.0f})"
    return f"{said}: {found[0].reason}"


def _count_runs(trial: Trial) -> int:
    return max((len(measurement.iterations) for measurement in trial.measurements), default=1)

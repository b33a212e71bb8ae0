"""Analysis of a run's trials, in one place for the live table, the final report and every export."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from guestmark.core.findings import FailedRuns, find_machine
from guestmark.core.metric import Metric
from guestmark.core.model import (
    Cell,
    CellStatus,
    LeftOut,
    Plan,
    Trial,
    TrialStatus,
    WorkloadSpec,
    find_baseline_id,
    find_left_out,
)
from guestmark.core.units import format_count, format_share
from guestmark.stats import estimands
from guestmark.stats.across_runs import NO_HISTORY, History
from guestmark.stats.cell_answers import Answers, widen_answers, withdraw_answers
from guestmark.stats.compare import (
    Comparison,
    Table,
    Widening,
    compare_table,
    compare_tables,
    estimate_bias_between_runs,
    estimate_noise_floor,
    is_processor_time,
    null_differs,
    waits_for_processor,
    widen_interval,
    withdraw_verdict,
)
from guestmark.stats.conditions import WholeRun, check_run, estimate_carry_over, examine_cells
from guestmark.stats.family import judge_family
from guestmark.stats.machines import compute_shared_half_width
from guestmark.stats.noise import Null, find_disturbed_blocks
from guestmark.stats.paired import Summary, log_ratios, summarise_trials
from guestmark.stats.tails import estimate_failed_share
from guestmark.stats.validity import (
    CarryOver,
    Finding,
    find_carry_over,
    list_severe_by_cell,
    subtract_carry_over,
)

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CellResult:
    """One cell's status, and by metric name its summary and its comparison.

    A null cell is compared with the cell it copies, every other cell with its workload's baseline. The baseline itself
    has no comparisons.
    """

    cell: Cell
    status: CellStatus
    # One line; empty if every trial is ok.
    reason: str
    trials: tuple[Trial, ...]  # in block order
    summary: Mapping[str, Summary]
    comparison: Mapping[str, Comparison]
    # Answers about the primary metric; None for the baseline and for unequal numbers of iterations.
    answers: Answers | None = None

    @property
    def good_trials(self) -> tuple[Trial, ...]:
        """The trials that did not fail, in block order; facts of a failed one say nothing about the cell."""
        return tuple(trial for trial in self.trials if trial.status is TrialStatus.OK)

    @property
    def differing_null_metrics(self) -> tuple[str, ...]:
        """Names of the metrics in which this null cell differs from the cell it copies; it should not."""
        if self.cell.null_of is None:
            return ()
        return tuple(name for name, comparison in self.comparison.items() if null_differs(comparison))


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Cells that are compared with each other, in plan order, and what their comparisons have in common.

    Usually all cells run one workload. A plan may also compare across workloads; `workload` is then the first cell's.
    """

    workload: WorkloadSpec
    # The metrics that were measured, in table order, the primary one first.
    metrics: tuple[Metric, ...]
    cells: tuple[CellResult, ...]
    # For each metric, the |ratio - 1| that equal cells reach; absent if unknown.
    noise_floors: Mapping[str, float]
    # Metrics whose intervals are wider because a null cell differs from the cell it copies.
    widened: tuple[str, ...]
    # Findings that limit what these cells mean; a severe one withdraws their verdicts.
    findings: tuple[Finding, ...] = ()
    # For each metric, the log ratio by which equal cells may differ.
    biases: Mapping[str, float] = field(default_factory=dict)
    # For each metric, how a trial is affected by the cell that ran before it.
    carried: Mapping[str, CarryOver] = field(default_factory=dict, compare=False, repr=False)
    # For each metric and cell, the half-width of its log ratio over the machines that share the run.
    shared: Mapping[str, Mapping[str, float]] = field(default_factory=dict, compare=False, repr=False)
    machines: int = 1

    def compute_systematic_spread(self, cell_id: str, metric: Metric) -> float:
        """Return the 95 % half-width, on the log ratio, of errors that do not come from the scatter of blocks."""
        carried = self.carried.get(metric.name)
        error = 0.0
        if carried is not None:
            error = carried.error.get(cell_id, 0.0)
        return math.hypot(self.biases.get(metric.name, 0.0), error)

    def compute_machine_spread(self, cell_id: str, metric: Metric, known: Comparison | None) -> float:
        """Return the half-width, on the log ratio, that machines sharing a run add to `compute_systematic_spread`.

        With it the interval of `known` is no narrower than the one over machines.
        """
        half = self.shared.get(metric.name, {}).get(cell_id, 0.0)
        if known is None or known.ci is None or known.ci[0] <= 0:
            return half
        return math.sqrt(max(half**2 - (math.log(known.ci[1] / known.ci[0]) / 2) ** 2, 0.0))

    @property
    def degrees_of_freedom(self) -> int | None:
        """Degrees of freedom of the machines that share the run; None if the blocks determine them."""
        return self.machines - 1 if self.shared else None

    def compute_noise_reach(self, cell_id: str, metric: Metric) -> float:
        """Return the log ratio that other activity on the host may explain."""
        if is_processor_time(metric):
            return sum(finding.slows.get(cell_id, 0.0) for finding in self.findings)
        # Counts and sizes do not wait for a processor.
        if not waits_for_processor(metric):
            return 0.0
        return sum(finding.widens.get(cell_id, 0.0) for finding in self.findings)

    @property
    def title(self) -> str:
        """The title of the table: the group's name, else the workload's."""
        if self.cells and self.cells[0].cell.group:
            return self.cells[0].cell.group
        return self.workload.label or self.workload.name

    @property
    def baseline(self) -> CellResult | None:
        """The cell that the others are compared with."""
        for result in self.cells:
            if result.cell.baseline:
                return result
        return None

    @property
    def shown_cells(self) -> tuple[CellResult, ...]:
        """The cells to show in a table: all but the null cells, or all if there is nothing else to compare."""
        others = tuple(result for result in self.cells if result.cell.null_of is None)
        return others if len(others) > 1 else self.cells

    @property
    def null_cells(self) -> tuple[CellResult, ...]:
        """The cells that are copies of another cell."""
        return tuple(result for result in self.cells if result.cell.null_of is not None)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The analysis of a whole run, workload by workload in plan order."""

    plan: Plan
    workloads: tuple[WorkloadResult, ...]
    blocks: int  # with at least one trial
    trials: int
    failed: int
    # Blocks that the host disturbed: they stay in every estimate, and are reported.
    flagged_blocks: tuple[int, ...]
    # For each rule of `stats.THRESHOLDS` that flagged a block: the number of blocks.
    disturbances: Mapping[str, int]
    # Findings about the whole run; those about cells are in their workload's result.
    findings: tuple[Finding, ...] = ()
    history: History = NO_HISTORY

    @property
    def cells(self) -> tuple[CellResult, ...]:
        """All cells, in plan order."""
        order = {cell.id: position for position, cell in enumerate(self.plan.cells)}
        results: list[CellResult] = []
        for workload in self.workloads:
            results += workload.cells
        return tuple(sorted(results, key=lambda result: order[result.cell.id]))

    def find_primary_metric(self, cell_id: str) -> Metric | None:
        """Return the primary metric of the cell's table, else the plan's; None if the plan has no metrics."""
        for workload in self.workloads:
            if workload.metrics and any(result.cell.id == cell_id for result in workload.cells):
                return workload.metrics[0]
        return next(iter(self.plan.metrics), None)

    def list_trials(self) -> list[Trial]:
        """Return the trials of all cells, cell by cell in plan order."""
        trials: list[Trial] = []
        for result in self.cells:
            trials += result.trials
        return trials

    def list_blocks(self) -> list[int]:
        """Return the blocks in which any cell has a trial, in order."""
        return sorted({trial.block for trial in self.list_trials()})


def _keep_trials_of_one_machine(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials of each block that ran where its first one did.

    What affects all cells of a block alike cancels in its ratios only on one machine. Where a machine of a class was
    lost in a block, another one may have finished it.
    """
    placed = [(trial, find_machine(trial.facts)) for trial in trials]
    first: dict[int, str] = {}
    for trial, machine in sorted(placed, key=lambda each: each[0].started_at):
        first.setdefault(trial.block, machine)
    return [trial for trial, machine in placed if machine == first[trial.block]]


def analyse_run(
    plan: Plan,
    trials: Iterable[Trial],
    left_out: Iterable[LeftOut] = (),
    *,
    metrics: Collection[str] | None = None,
    environments: Sequence[Mapping[str, Any]] = (),
    history: History = NO_HISTORY,
) -> Analysis:
    """Return summaries and comparisons of every cell, paired by block within each workload.

    Only trials with the status ok contribute values. A missing or failed trial removes its block from the comparisons
    that it belongs to, and from nothing else. Trials of cells that are not in the plan are ignored. `metrics` limits
    the work to these names; a workload that has none of them is analysed by its primary metric. `environments` are
    those in which the run was started and resumed, `history` is what earlier runs of this host showed.
    """
    kept = _keep_trials_of_one_machine(trials)
    blocks = sorted({trial.block for trial in kept})
    rows = {block: position for position, block in enumerate(blocks)}
    by_cell: dict[str, list[Trial]] = {cell.id: [] for cell in plan.cells}
    for trial in sorted(kept, key=lambda trial: trial.block):
        if trial.cell_id in by_cell:
            by_cell[trial.cell_id].append(trial)
    excluded = tuple(left_out)
    flagged, disturbances = find_disturbed_blocks(kept, blocks)
    findings = check_run(WholeRun(plan, kept, environments))
    workloads = []
    for cells in _group_cells(plan.cells):
        group = _Group(plan, cells, by_cell, rows, history)
        workloads.append(_analyse_group(group, excluded, metrics, findings))
    return Analysis(
        plan=plan,
        workloads=tuple(workloads),
        blocks=len(blocks),
        trials=len(kept),
        failed=sum(trial.status is not TrialStatus.OK for trial in kept),
        flagged_blocks=flagged,
        disturbances=disturbances,
        findings=findings,
        history=history,
    )


def _group_cells(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the cells that are compared with each other, group by group in plan order."""
    groups: list[list[Cell]] = []
    for cell in cells:
        for group in groups:
            if group[0].compares_with(cell):
                group.append(cell)
                break
        else:
            groups.append([cell])
    return groups


@dataclass(frozen=True, slots=True)
class _Group:
    """Cells that are compared with each other, all trials by cell id, and the row of each block in value arrays."""

    plan: Plan
    cells: Sequence[Cell]
    trials: Mapping[str, Sequence[Trial]]
    rows: Mapping[int, int]
    history: History

    @property
    def baseline(self) -> str | None:
        return find_baseline_id(self.cells)

    def list_machines(self) -> set[str]:
        """Return the machines that measured these cells."""
        machines: set[str] = set()
        for cell in self.cells:
            machines.update(find_machine(trial.facts) for trial in self.trials[cell.id])
        return machines

    def collect_values_by_cell(self, metric: Metric) -> dict[str, Array]:
        """Return each cell's values of a metric, shape (K,), NaN for missing and failed trials."""
        return {
            cell.id: _arrange_values_by_block(metric.name, self.trials[cell.id], self.rows)
            for cell in self.cells
        }


def _analyse_group(
    group: _Group,
    left_out: Sequence[LeftOut],
    wanted: Collection[str] | None,
    run_findings: Sequence[Finding],
) -> WorkloadResult:
    measured = _collect_metrics(group)
    metrics = measured
    if wanted is not None:
        metrics = [metric for metric in measured if metric.name in wanted] or measured[:1]
    findings = _examine_group(group, measured, run_findings)
    evidence = {}
    for metric in metrics:
        # The carry-over in the findings, and the history, are about the primary metric only.
        primary = findings if metric == measured[0] else None
        evidence[metric.name] = _analyse_metric(group, metric, primary)
    shared = _combine_evidence(group, metrics, findings, evidence)
    answers: dict[str, Answers] = {}
    if measured:
        answers = estimands.answer_questions(
            group.plan, group.cells, group.trials, group.rows, measured[0], carried=shared.carried
        )
    compared = _compare_metrics(evidence, measured[:1])
    results = []
    for cell in group.cells:
        answer = answers.get(cell.id)
        summaries, comparisons = _select_evidence(cell, evidence, compared)
        if cell.null_of is None:
            comparisons, answer = _judge_cell(
                cell, shared, findings, comparisons, answer, group.plan.policy.margin
            )
        trials = group.trials[cell.id]
        status, reason = _find_cell_status(cell, trials, left_out)
        results.append(CellResult(cell, status, reason, tuple(trials), summaries, comparisons, answer))
    return replace(shared, cells=tuple(results))


@dataclass(frozen=True, slots=True)
class _MetricEvidence:
    """The evidence for one metric before any verdict."""

    summaries: Mapping[str, Summary]  # by cell
    nulls: Mapping[str, Comparison]  # by null cell, with the cell it copies
    table: Table | None
    floor: float | None
    # The log ratio by which equal cells may differ.
    bias: float
    # Some null cell differs from the cell it copies.
    differs: bool
    carried: CarryOver | None
    # For each cell, the half-width of its log ratio over the machines that share the run.
    shared: Mapping[str, float]


def _select_evidence(
    cell: Cell,
    evidence: Mapping[str, _MetricEvidence],
    compared: Mapping[str, Mapping[str, Comparison]],
) -> tuple[dict[str, Summary], dict[str, Comparison]]:
    """Return one cell's summaries and comparisons by metric, as far as it has any."""
    summaries: dict[str, Summary] = {}
    comparisons: dict[str, Comparison] = {}
    for name, found in evidence.items():
        if cell.id in found.summaries:
            summaries[name] = found.summaries[cell.id]
        of_metric = compared.get(name, {})
        if cell.null_of is not None:
            of_metric = found.nulls
        if cell.id in of_metric:
            comparisons[name] = of_metric[cell.id]
    return summaries, comparisons


def _combine_evidence(
    group: _Group,
    metrics: Sequence[Metric],
    findings: "_GroupFindings",
    evidence: Mapping[str, _MetricEvidence],
) -> WorkloadResult:
    """Return the workload's result with everything that its cells have in common, but without the cells."""
    floors: dict[str, float] = {}
    carried: dict[str, CarryOver] = {}
    for name, found in evidence.items():
        if found.floor is not None:
            floors[name] = found.floor
        if found.carried is not None:
            carried[name] = found.carried
    return WorkloadResult(
        workload=group.cells[0].workload,
        metrics=tuple(metrics),
        cells=(),
        noise_floors=floors,
        widened=tuple(name for name, found in evidence.items() if found.differs),
        findings=findings.findings,
        biases={name: found.bias for name, found in evidence.items()},
        carried=carried,
        shared={name: found.shared for name, found in evidence.items() if found.shared},
        machines=len(group.list_machines()),
    )


def _analyse_metric(group: _Group, metric: Metric, primary: "_GroupFindings | None") -> _MetricEvidence:
    """Return the evidence about one metric; `primary` are the group's findings if it is the primary metric."""
    plan, cells = group.plan, group.cells
    plain = group.collect_values_by_cell(metric)
    summaries = {}
    for name, array in plain.items():
        if (summary := summarise_trials(array)).n:
            summaries[name] = summary
    earlier: list[Null] = []
    if primary is None:
        carried = estimate_carry_over(plan, cells, group.trials, plain, group.rows)
    else:
        carried = primary.carried
        by_cell = {name: {metric.name: summary} for name, summary in summaries.items()}
        earlier = group.history.find_nulls(cells, by_cell, metric)
    values = {name: subtract_carry_over(array, carried, name) for name, array in plain.items()}
    copies: dict[str, str] = {}
    for cell in cells:
        if cell.null_of is not None and cell.null_of in values:
            copies[cell.id] = cell.null_of
    pairs = [(values[copy], values[of]) for copy, of in copies.items()]
    nulls = {}
    apart = []
    for copy, of in copies.items():
        if copy in summaries:
            both = {of: values[of], copy: values[copy]}
            null = compare_table(both, of, better=metric.better, margin=plan.policy.margin)[copy]
            if null_differs(null) and null.ratio:
                apart.append(abs(math.log(null.ratio)))
            nulls[copy] = estimands.retract_null_difference(null)
    return _MetricEvidence(
        summaries=summaries,
        nulls=nulls,
        table=_build_comparison_table(group, metric, values, pairs, earlier),
        floor=estimate_noise_floor(pairs, len(group.rows), earlier),
        # A copy that differs shows a bias of at least that size, whatever earlier runs say.
        bias=max([estimate_bias_between_runs(pairs, earlier), *apart]),
        differs=bool(apart),
        carried=carried,
        shared=_compute_machine_half_widths(group, values),
    )


def _compute_machine_half_widths(group: _Group, values: Mapping[str, Array]) -> dict[str, float]:
    """Return by cell `machines.compute_shared_half_width` of its log ratio to the baseline; empty for one machine."""
    baseline = group.baseline
    if baseline is None:
        return {}
    machines = {group.rows[trial.block]: find_machine(trial.facts) for trial in group.trials[baseline]}
    if len(set(machines.values())) < 2:
        return {}
    found = {}
    for cell in group.cells:
        if cell.id == baseline:
            continue
        both = ~(np.isnan(values[cell.id]) | np.isnan(values[baseline]))
        d = log_ratios(values[cell.id], values[baseline])
        if d is not None and d.size:
            names = [machines[int(row)] for row in np.flatnonzero(both)]
            if (half := compute_shared_half_width(d, names)) is not None:
                found[cell.id] = half
    return found


def _judge_cell(  # noqa: PLR0917 (all that one cell is judged by)
    cell: Cell,
    shared: WorkloadResult,
    findings: "_GroupFindings",
    found: Mapping[str, Comparison],
    answer: Answers | None,
    margin: float,
) -> tuple[dict[str, Comparison], Answers | None]:
    """Return a cell's comparisons by metric and its answers, widened and withdrawn as findings demand."""
    if not found:
        return {}, answer
    first, freedom = shared.metrics[0], shared.degrees_of_freedom

    def describe_widening(metric: Metric, known: Comparison) -> Widening:
        spread = math.hypot(
            shared.compute_systematic_spread(cell.id, metric),
            shared.compute_machine_spread(cell.id, metric, known),
        )
        return Widening(margin, spread, shared.compute_noise_reach(cell.id, metric), freedom)

    comparisons = {}
    for metric in shared.metrics:
        if metric.name in found:
            known = found[metric.name]
            comparison = widen_interval(known, describe_widening(metric, known))
            reasons = findings.spoils_primary if metric == first else findings.spoils_all
            if reason := reasons.get(cell.id):
                comparison = withdraw_verdict(comparison, reason)
            comparisons[metric.name] = comparison
    if answer is not None:
        answer = widen_answers(answer, describe_widening(first, answer.typical))
        if reason := findings.spoils_primary.get(cell.id):
            answer = withdraw_answers(answer, reason)
    # The typical run counts as one question: the headline replaces its answer, as only it includes the pilot's block.
    headline, answer, others = judge_family(comparisons.pop(first.name, None), answer, comparisons, margin)
    if headline is None:
        return others, answer
    return {first.name: headline, **others}, answer


@dataclass(frozen=True, slots=True)
class _GroupFindings:
    """Findings about cells that are compared, and their consequences by cell id."""

    findings: tuple[Finding, ...] = ()
    # The reasons that withdraw verdicts of the primary metric, and of all metrics.
    spoils_primary: Mapping[str, str] = field(default_factory=dict)
    spoils_all: Mapping[str, str] = field(default_factory=dict)
    # The effect of preceding trials on the primary metric.
    carried: CarryOver | None = None


def _examine_group(
    group: _Group, measured: Sequence[Metric], run_findings: Sequence[Finding]
) -> _GroupFindings:
    if not measured:
        return _GroupFindings()
    primary = measured[0]
    # Carry-over goes from any cell to the next, so cells outside the group count as predecessors without values.
    missing = np.full(len(group.rows), np.nan)
    values = {cell.id: missing for cell in group.plan.cells} | group.collect_values_by_cell(primary)
    findings = examine_cells(group.plan, group.cells, group.trials, values, group.rows, primary)
    every = (*findings, *run_findings)
    return _GroupFindings(
        findings,
        _name_withdrawal_reasons(every),
        _name_withdrawal_reasons(finding for finding in every if not finding.primary_only),
        find_carry_over(findings),
    )


def _name_withdrawal_reasons(findings: Iterable[Finding]) -> dict[str, str]:
    """Return by cell the names of all findings that withdraw its verdicts."""
    return {cell_id: ", ".join(names) for cell_id, names in list_severe_by_cell(findings).items()}


def _build_comparison_table(
    group: _Group,
    metric: Metric,
    values: Mapping[str, Array],
    null_pairs: Sequence[tuple[Array, Array]],
    earlier: Sequence[Null],
) -> Table | None:
    """Return the table of cells with values, without null cells; None if the baseline has no value."""
    baseline = group.baseline
    if baseline is None or np.isnan(values[baseline]).all():
        return None
    table = {}
    for cell in group.cells:
        if cell.null_of is None and (cell.baseline or not np.isnan(values[cell.id]).all()):
            table[cell.id] = values[cell.id]
    return Table(table, baseline, metric.better, group.plan.policy.margin, null_pairs, earlier)


def _compare_metrics(
    evidence: Mapping[str, _MetricEvidence], primary: Sequence[Metric]
) -> dict[str, dict[str, Comparison]]:
    """Return comparisons by metric and cell: the primary metric is one family, all others together are another."""
    first = {metric.name for metric in primary}
    headline: dict[str, Table] = {}
    secondary: dict[str, Table] = {}
    for name, found in evidence.items():
        if found.table is None:
            continue
        if name in first:
            headline[name] = found.table
        else:
            secondary[name] = found.table
    return compare_tables(headline) | compare_tables(secondary)


def _collect_metrics(group: _Group) -> list[Metric]:
    """Return the metrics that the group's trials hold: first the plan's, in its order, then others as they appear."""
    seen: dict[str, Metric] = {}
    for cell in group.cells:
        for trial in group.trials[cell.id]:
            for measurement in trial.measurements:
                seen.setdefault(measurement.metric.name, measurement.metric)
    planned = {metric.name: seen[metric.name] for metric in group.plan.metrics if metric.name in seen}
    return list((planned | seen).values())


def _arrange_values_by_block(name: str, trials: Sequence[Trial], row: Mapping[int, int]) -> Array:
    """Return a metric's values, shape (K,), one per block; NaN if there is none or it is not finite."""
    values = np.full(len(row), np.nan)
    for trial in trials:
        measurement = trial.find_good_measurement(name)
        if measurement is not None and math.isfinite(measurement.value):
            values[row[trial.block]] = measurement.value
    return values


def _find_cell_status(
    cell: Cell, trials: Sequence[Trial], left_out: Sequence[LeftOut]
) -> tuple[CellStatus, str]:
    """Return a cell's status and the reason for it in one line; the reason is empty if every trial is ok."""
    if not trials:
        if (entry := find_left_out(cell, left_out)) is not None:
            return CellStatus.UNUSABLE, entry.reason
        return CellStatus.PENDING, "no trial has ended yet"
    failures = [trial.reason or "failed" for trial in trials if trial.status is not TrialStatus.OK]
    if not failures:
        failing = _describe_failing_runs(trials)
        return (CellStatus.PARTIAL if failing else CellStatus.OK), failing
    status = CellStatus.FAILED if len(failures) == len(trials) else CellStatus.PARTIAL
    reason, _ = Counter(failures).most_common(1)[0]
    others = len(set(failures)) - 1
    summary = f"{len(failures)} of {format_count(len(trials), 'trial')} failed: {reason}"
    if others:
        summary += f" (and {format_count(others, 'other reason')})"
    return status, summary


def _describe_failing_runs(trials: Sequence[Trial]) -> str:
    """Return how often runs of good trials failed, with an interval; empty if none failed."""
    failed, tried, reasons = [], [], []
    for trial in trials:
        fact = trial.facts.find_fact(FailedRuns)
        if fact is None:
            failed.append(0)
            tried.append(_count_runs(trial))
        else:
            failed.append(fact.failed)
            tried.append(fact.tried)
            reasons.append(fact.reason)
    if not reasons:
        return ""
    counts = np.array(failed, dtype=np.float64)
    share, (low, high) = estimate_failed_share(counts, np.array(tried, dtype=np.float64))
    rate = f"fails in {format_share(share)} [{100 * low:.0f}, {100 * high:.0f}] of runs"
    return f"{rate} ({sum(failed)} of {sum(tried)}): {reasons[0]}"


def _count_runs(trial: Trial) -> int:
    return max((len(measurement.iterations) for measurement in trial.measurements), default=1)

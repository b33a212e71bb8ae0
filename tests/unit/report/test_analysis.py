"""What an analysis says of constructed runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, CellStatus, TrialStatus
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.page.tables import Table
from guestmark.report.sections.estimands import make_tables
from guestmark.stats import Estimand, Verdict
from guestmark.stats.analysis import WorkloadResult, analyse_run
from guestmark.stats.compare import WIDENED_REASON, Comparison
from tests.framework.runs import EXEC, MEMORY, constructed, host_uml_tcg, memory_sweep


def test_verdicts_of_a_plain_run() -> None:
    run = host_uml_tcg()
    analysis = analyse_run(run.plan, run.trials, run.unusable)
    (workload,) = analysis.workloads
    cells = {result.cell.id: result for result in workload.cells}
    assert analysis.blocks == 12
    assert analysis.failed == 0
    assert [metric.name for metric in workload.metrics] == [metric.name for metric in run.plan.metrics]
    assert cells["uml"].comparison["wall_s"].verdict is Verdict.SLOWER
    assert cells["uml"].comparison["wall_s"].ratio == pytest.approx(1.05, rel=0.02)
    assert cells["tcg"].comparison["wall_s"].ratio == pytest.approx(24, rel=0.02)
    assert cells["host"].comparison == {}
    assert cells["host"].summary["wall_s"].n == 12
    assert cells["host#2"].comparison["wall_s"].ratio == pytest.approx(1, abs=0.02)
    assert cells["kvm"].status is CellStatus.UNUSABLE
    assert cells["kvm"].reason == "no guest gets ready"
    assert 0 < workload.noise_floors["wall_s"] < 0.02
    assert workload.widened == ()


def test_a_failed_trial_takes_only_its_own_comparison_out_of_its_block() -> None:
    run = host_uml_tcg(failing={("uml", 3), ("uml", 5)})
    results = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    assert results["uml"].status is CellStatus.PARTIAL
    assert results["uml"].reason == "2 of 12 trials failed: died by signal 11"
    assert results["uml"].comparison["wall_s"].n == 10
    assert results["uml"].summary["wall_s"].n == 10
    assert results["tcg"].comparison["wall_s"].n == 12


def test_a_failed_baseline_leaves_summaries_and_no_comparison() -> None:
    run = host_uml_tcg(failing={("host", block) for block in range(12)})
    results = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    assert results["host"].status is CellStatus.FAILED
    assert results["uml"].comparison == {}
    assert results["uml"].summary["wall_s"].n == 12


def test_nothing_yet() -> None:
    run = host_uml_tcg(blocks=0)
    analysis = analyse_run(run.plan, run.trials, run.unusable)
    assert {result.status for result in analysis.cells} == {CellStatus.PENDING, CellStatus.UNUSABLE}
    assert analysis.workloads[0].metrics == ()


def test_a_null_cell_that_differs_widens_intervals_and_takes_no_large_ratio_back() -> None:
    def analysed(slower: float) -> tuple[WorkloadResult, Comparison]:
        run = constructed(
            [
                (Cell("host", EXEC, HOST, {}, True), 1.0),
                (Cell("uml", EXEC, PlatformSpec.read("uml")), slower),
                (Cell("host#2", EXEC, HOST, null_of="host"), 1.1),
            ]
        )
        (workload,) = analyse_run(run.plan, run.trials).workloads
        return workload, next(r for r in workload.cells if r.cell.id == "uml").comparison["wall_s"]

    workload, uml = analysed(2.0)
    null = next(result for result in workload.cells if result.cell.id == "host#2")
    assert "wall_s" in null.differing_null_metrics
    assert "wall_s" in workload.widened
    assert (null.comparison["wall_s"].verdict, null.comparison["wall_s"].reason) == (
        Verdict.INCONCLUSIVE,
        "equal cells differ",
    )
    assert uml.verdict is Verdict.SLOWER
    assert uml.ratio == pytest.approx(2, rel=0.02)
    assert uml.ci is not None
    assert uml.ci[0] < 1.85  # by the 10 % that equal cells differ
    near = analysed(1.05)[1]
    assert (near.verdict, near.reason) == (Verdict.INCONCLUSIVE, WIDENED_REASON)


def run_of_iterations(*, carry: float = 0.0, tail: float = 0.0, blocks: int = 20, held: int = 5) -> StoredRun:
    """Three equal cells in random order, `held` iterations a trial; a trial after uml takes longer by `carry`, and a
    share `tail` of uml's iterations twice as long.
    """
    run = host_uml_tcg(blocks=blocks)
    generator = np.random.default_rng(6)
    ids = ["host", "uml", "host#2"]
    by_place = {(trial.cell_id, trial.block): trial for trial in run.trials}
    trials, before = [], ""
    for block in range(blocks):
        for order, i in enumerate(generator.permutation(3)):
            values = np.exp(
                generator.normal(0, 0.01, held) + generator.normal(0, 0.01) + carry * (before == "uml")
            )
            values[(generator.random(held) < tail) & (ids[i] == "uml")] *= 2
            measurement = Measurement(run.plan.metrics[0], float(np.median(values)), tuple(values.tolist()))
            trials.append(replace(by_place[ids[i], block], order=order, measurements=(measurement,)))
            before = ids[i]
    return replace(run, trials=tuple(trials))


def test_slow_runs_are_told_beside_an_equal_typical_run() -> None:
    run = run_of_iterations(tail=0.15)
    cells = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    answers = cells["uml"].answers
    assert answers is not None
    assert answers.total is not None
    assert answers.slow is not None
    typical = cells["uml"].comparison["wall_s"]
    assert (typical.alike, typical.reason) == (True, "typical runs within 0.03; more slow runs")
    assert (answers.total.verdict, answers.slow.verdict) == (Verdict.SLOWER, Verdict.SLOWER)
    assert answers.slow.cell.slow > 5
    assert answers.slow.baseline.slow == 0
    assert cells["host"].answers is None
    assert cells["host#2"].answers is None


def with_first_runs(run: StoredRun, longer: dict[str, float]) -> StoredRun:
    """Before each trial's iterations a warm-up, longer than its median by a factor that is the cell's own."""
    trials = []
    for trial in run.trials:
        measurement = trial.measurements[0]
        first = measurement.value * longer.get(trial.cell_id, 1.0)
        warmup = Measurement(measurement.metric, first, (first,))
        trials.append(replace(trial, warmups=(warmup,), run_s=(1.0,) * (1 + len(measurement.iterations))))
    return replace(run, trials=tuple(trials))


def test_first_runs_have_a_verdict_of_their_own() -> None:
    run = with_first_runs(run_of_iterations(), {"uml": 1.8})
    cells = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    answers = cells["uml"].answers
    assert answers is not None
    assert answers.first is not None
    assert answers.typical.alike
    assert answers.first.verdict is Verdict.SLOWER
    assert answers.first.ratio == pytest.approx(1.8, rel=0.02)
    assert answers.differing_questions == (Estimand.FIRST,)


def test_first_runs_that_version_0_1_did_not_keep_are_unknown() -> None:
    run = with_first_runs(run_of_iterations(), {"uml": 1.8})
    old = [replace(trial, warmups=(), run_s=()) for trial in run.trials]
    answers = next(result.answers for result in analyse_run(run.plan, old).cells if result.cell.id == "uml")
    assert answers is not None
    assert answers.first is None
    assert answers.differing_questions == ()


def test_measured_runs_that_are_still_cold_are_warned_of() -> None:
    def findings(slow_first: float, warmup: int) -> list[tuple[str, str]]:
        run = with_first_runs(run_of_iterations(), {"uml": 2.0, "host": 2.0})
        trials = []
        for trial in run.trials:
            (measurement,) = trial.measurements
            first, *others = measurement.iterations
            if trial.cell_id == "uml":
                first = slow_first * measurement.value
            trials.append(replace(trial, measurements=(replace(measurement, iterations=(first, *others)),)))
        plan = replace(run.plan, policy=replace(run.plan.policy, warmup=warmup))
        found = analyse_run(plan, trials).workloads[0].findings
        return [(finding.name, finding.message) for finding in found if finding.name == "warm-up"]

    assert findings(1.0, 1) == []
    ((name, message),) = findings(1.25, 1)
    assert name == "warm-up"
    assert "first 2 runs" in message
    assert " in uml take " in message
    assert "(the first measured one by 25 %)" in message
    assert "--warmup 2" in message
    assert " in host, uml take" in findings(1.25, 0)[0][1]
    assert findings(1.25, 2) == []


def shown(run: StoredRun, *, details: bool) -> list[Table]:
    return make_tables(analyse_run(run.plan, run.trials).workloads[0], details=details)


def test_how_runs_differ_is_shown_where_it_says_more_than_the_headline() -> None:
    plain = with_first_runs(run_of_iterations(), {})
    assert shown(plain, details=False) == []
    assert [table.heading for table in shown(plain, details=True)] == [
        "How the runs differ, against host", "Runs: wall, ms"
    ]  # fmt: skip
    for run in (with_first_runs(plain, {"uml": 1.8}), with_first_runs(run_of_iterations(tail=0.15), {})):
        (table,) = shown(run, details=False)
        (row,) = table.rows
        assert [column.heading for column in table.columns] == [
            "typical run", "total", "slow runs, points", "first run"
        ]  # fmt: skip
        marks = "".join(cell.pieces[-1].text for cell in row.cells)
        assert marks in {"≈±?*", "≈??*", "≈**="}
        assert sum(len(cell.text) + 2 for cell in row.cells) + len("platform") <= 100


def test_a_copy_that_was_asked_for_has_answers_and_is_never_slower() -> None:
    run = with_first_runs(run_of_iterations(tail=0.3), {"host#2": 1.8})
    uml = PlatformSpec.read("uml")
    cells = tuple(
        replace(cell, added=False, platform=uml) for cell in run.plan.cells if cell.id in {"host", "host#2"}
    )
    asked = replace(run.plan, cells=cells)
    copy = next(
        result for result in analyse_run(asked, run.trials).cells if result.cell.id == "host#2"
    ).answers
    assert copy is not None
    assert copy.first is not None
    assert (copy.first.verdict, copy.first.reason) == (Verdict.INCONCLUSIVE, "equal cells differ")


def test_cells_with_unequal_iterations_have_a_typical_run_only() -> None:
    run = run_of_iterations()
    cut = [
        replace(
            trial,
            measurements=(replace(trial.measurements[0], iterations=trial.measurements[0].iterations[:1]),),
        )
        if trial.cell_id == "uml"
        else trial
        for trial in run.trials
    ]
    cells = {result.cell.id: result for result in analyse_run(run.plan, cut).cells}
    assert cells["uml"].answers is None
    assert cells["uml"].comparison["wall_s"].alike


def test_what_a_cell_leaves_behind_is_corrected_for() -> None:
    sound = run_of_iterations()
    before = analyse_run(sound.plan, sound.trials).workloads[0].findings
    assert [finding.name for finding in before] == ["placement unknown"]
    run = run_of_iterations(carry=0.1)
    (workload,) = analyse_run(run.plan, run.trials).workloads
    assert [finding.name for finding in workload.findings] == ["placement unknown", "carry-over"]
    uml = next(result for result in workload.cells if result.cell.id == "uml")
    found = uml.comparison["wall_s"]
    assert found.ratio == pytest.approx(1, abs=0.015)  # 4 % off without
    assert found.verdict is not Verdict.FASTER
    assert uml.answers is not None
    assert uml.answers.total is not None
    assert uml.answers.total.ratio == pytest.approx(1, abs=0.015)


def test_what_a_cell_leaves_behind_is_corrected_in_a_large_ratio_too() -> None:
    run = run_of_iterations(carry=0.05)
    trials = []
    for trial in run.trials:
        (measurement,) = trial.measurements
        times = 5.0 if trial.cell_id == "uml" else 1.0
        values = tuple(times * value for value in measurement.iterations)
        longer = replace(measurement, value=times * measurement.value, iterations=values)
        trials.append(replace(trial, measurements=(longer,)))
    (workload,) = analyse_run(run.plan, trials).workloads
    uml = next(result for result in workload.cells if result.cell.id == "uml")
    found = uml.comparison["wall_s"]
    assert found.verdict is Verdict.SLOWER
    assert found.ci is not None
    assert 4.8 < found.ci[0] < 5 < found.ci[1] < 5.2


def test_workloads_are_compared_within_themselves() -> None:
    run = constructed(
        [
            (Cell("cpu host", EXEC, HOST, {}, True), 1.0),
            (Cell("mem host", MEMORY, HOST, {}, True), 5.0),
            (Cell("cpu uml", EXEC, PlatformSpec.read("uml")), 1.5),
            (Cell("mem uml", MEMORY, PlatformSpec.read("uml")), 5.0),
        ]
    )
    analysis = analyse_run(run.plan, run.trials)
    assert [workload.workload for workload in analysis.workloads] == [EXEC, MEMORY]
    assert [result.cell.id for result in analysis.cells] == ["cpu host", "mem host", "cpu uml", "mem uml"]
    ratios = [result.comparison["wall_s"].ratio for result in analysis.cells if result.comparison]
    assert ratios == pytest.approx([1.5, 1.0], rel=0.02)


def test_order_of_the_trials_does_not_matter() -> None:
    run = host_uml_tcg(failing={("tcg", 2)})
    assert analyse_run(run.plan, reversed(run.trials)) == analyse_run(run.plan, run.trials)


def test_only_the_metrics_asked_for() -> None:
    run = memory_sweep()
    (workload,) = analyse_run(run.plan, run.trials, metrics={"wall_s"}).workloads
    assert [metric.name for metric in workload.metrics] == ["wall_s"]
    whole = analyse_run(run.plan, run.trials).workloads[0]
    for part, full in zip(workload.cells, whole.cells, strict=True):
        assert part.comparison.get("wall_s") == full.comparison.get("wall_s")


def test_values_that_are_not_finite_count_as_missing() -> None:
    run = host_uml_tcg(values={("uml", 0): math.inf, ("uml", 1): math.nan, ("host", 2): -math.inf})
    results = {result.cell.id: result for result in analyse_run(run.plan, run.trials).cells}
    assert results["uml"].summary["wall_s"].n == 10
    assert results["uml"].comparison["wall_s"].n == 9
    assert math.isfinite(results["host"].summary["wall_s"].mean)


def test_zeros_have_no_ratio_and_do_no_harm() -> None:
    run = host_uml_tcg(values={("uml", 4): 0.0})
    comparison = next(r for r in analyse_run(run.plan, run.trials).cells if r.cell.id == "uml").comparison[
        "wall_s"
    ]
    assert comparison.ratio is None
    assert comparison.verdict is Verdict.INCONCLUSIVE


def test_disturbed_blocks_are_named() -> None:
    run = host_uml_tcg(noise={("uml", 7): {"swapped_pages": 12}, ("tcg", 2): {"psi_memory_some": 0.5}})
    analysis = analyse_run(run.plan, run.trials)
    assert analysis.flagged_blocks == (2, 7)
    assert analysis.disturbances == {"psi_memory_some": 1, "swapped_pages": 1}


def test_most_frequent_reason_is_named_first() -> None:
    run = host_uml_tcg(failing={("uml", block) for block in range(3)})
    trials = [
        replace(trial, reason="it hung") if trial.status is TrialStatus.FAILED and trial.block == 0 else trial
        for trial in run.trials
    ]
    result = next(r for r in analyse_run(run.plan, trials).cells if r.cell.id == "uml")
    assert result.reason == "3 of 12 trials failed: died by signal 11 (and 1 other reason)"

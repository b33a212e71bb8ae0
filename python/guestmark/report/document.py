"""The result document, schema `guestmark-result/2`: a stable interface. Keys may be added, never removed."""

from datetime import UTC, datetime
from typing import Any

from guestmark.core.metric import Metric
from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger.codec import to_plain
from guestmark.ledger.model import StoredRun
from guestmark.page.json_text import make_strict_json
from guestmark.page.nodes import Page
from guestmark.report.full_report import make_page
from guestmark.report.render import plain
from guestmark.report.sections import (
    earlier_runs,
    environment,
    gate_outcomes,
    published,
    question_answers,
    race_outcome,
    validity,
)
from guestmark.report.shared_facts import SCHEMA, split_shared
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse_run
from guestmark.stats.compare import Comparison
from guestmark.stats.paired import Summary
from guestmark.stats.stopping import forecast_more_time

# Number of characters kept from the end of a failed trial's console; the ledger has all of it.
CONSOLE_LIMIT = 16_384


def make_result_document(
    run: StoredRun, analysis: Analysis | None = None, page: Page | None = None
) -> dict[str, Any]:
    """Return the document of a run: dicts, lists, strings, finite numbers, booleans and None, in a stable order.

    NaN and infinities are null, bytes that are not UTF-8 become U+FFFD, and the caller's environment variables appear
    by name only. What the attestations and command lines of a cell's trials have in common is written once, see
    `report.shared_facts`. `null_cells` are all copies of cells that show the noise; copies that were asked for
    (`--on host,host`) are among `cells` too. `report` is what every other format shows, section by section: `page`, or
    the run's own page.
    """
    found = analysis or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    document = {
        "schema": SCHEMA,
        "run": _make_run_document(run, found),
        "plan": _make_plan_document(run),
        "environment": to_plain(run.environment),
        "environments_resumed": to_plain(run.environments[1:]),
        **_make_cell_lists(found),
        **_make_noise_lists(found),
        "flagged_blocks": list(found.flagged_blocks),
        "disturbances": dict(found.disturbances),
        "more_time": _make_more_time_document(run, found),
        "questions": question_answers.make_document(found),
        "published": published.make_document(found),
        "gates": gate_outcomes.make_document(gate_outcomes.judge_own_gates(found)),
        "validity": validity.make_document(found),
        "since_earlier_runs": dict(found.history.changed),
        "unusable": to_plain(run.unusable),
        "tune": race_outcome.make_document(run),
        **environment.make_document(run),
        "report": plain.make_document(page or make_page(run, found)),
    }
    cleaned: dict[str, Any] = make_strict_json(document)
    return cleaned


def _make_run_document(run: StoredRun, analysis: Analysis) -> dict[str, Any]:
    document = {
        "id": run.id,
        "name": run.plan.name,
        "created_at": format_timestamp(run.created_at),
        "seed": run.seed,
        "state": run.state.value,
        "blocks": analysis.blocks,
        "trials": analysis.trials,
        "failed": analysis.failed,
    }
    if run.origin is not None:
        document["imported"] = to_plain(run.origin)
    return document


def _make_cell_lists(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """Return `cells`, which were asked for, and `null_cells`; a copy that was asked for is in both."""
    owner: dict[str, WorkloadResult] = {}
    for workload in analysis.workloads:
        owner |= {result.cell.id: workload for result in workload.cells}
    cells, null_cells = [], []
    for result in analysis.cells:
        if not result.cell.added:
            history = earlier_runs.make_document(result, analysis)
            cells.append({**_make_cell_document(result, owner[result.cell.id]), "history": history})
        if result.cell.null_of is not None:
            differs = list(result.differing_null_metrics)
            null_cells.append({**_make_cell_document(result, owner[result.cell.id]), "differs": differs})
    return {"cells": cells, "null_cells": null_cells}


def _make_noise_lists(analysis: Analysis) -> dict[str, list[dict[str, Any]]]:
    """Return the noise floors of each workload, and which of its metrics have wider intervals."""
    floors, widened = [], []
    for workload in analysis.workloads:
        floors.append({"workload": workload.title, "floor": dict(workload.noise_floors)})
        if workload.widened:
            widened.append({"workload": workload.title, "metrics": list(workload.widened)})
    # Versions before 0.3 withdrew verdicts where later ones widen intervals. Keys are never removed.
    return {"noise_floor": floors, "downgraded": [], "widened": widened}


def _make_plan_document(run: StoredRun) -> dict[str, Any]:
    plan: dict[str, Any] = to_plain(run.plan)
    _hide_environment(plan["context"])
    for cell in plan["cells"]:
        _hide_environment(cell["workload"]["params"])
    return plan


def _hide_environment(where: dict[str, Any]) -> None:
    """Replace environment variables by their names: they may hold passwords, and documents are passed on."""
    env = where.pop("env", None)
    if isinstance(env, dict):
        where["env_names"] = sorted({*env, *where.get("env_names", ())})


def _make_cell_document(result: CellResult, workload: WorkloadResult) -> dict[str, Any]:
    metrics = {metric.name: metric for metric in workload.metrics}
    cell = result.cell
    shared, trials = split_shared([_make_trial_document(trial) for trial in result.trials])
    return {
        "id": cell.id,
        "workload": cell.workload.label or cell.workload.name,
        "platform": str(cell.platform),
        "factors": dict(cell.factors),
        "labels": dict(cell.labels),
        "baseline": cell.baseline,
        "null_of": cell.null_of,
        "status": result.status.value,
        "reason": result.reason,
        "shared": shared,
        "trials": trials,
        "summary": {
            name: _make_summary_document(summary, metrics[name]) for name, summary in result.summary.items()
        },
        "vs_baseline": {
            name: _make_comparison_document(comparison) for name, comparison in result.comparison.items()
        },
        "answers": _make_answers_document(result, workload),
    }


def _make_trial_document(trial: Trial) -> dict[str, Any]:
    document = {
        "block": trial.block,
        "order": trial.order,
        "status": trial.status.value,
        "measurements": {measurement.metric.name: measurement.value for measurement in trial.measurements},
        "reason": trial.reason,
        "cause": None if trial.cause is None else trial.cause.value,
        "warmups": {measurement.metric.name: list(measurement.iterations) for measurement in trial.warmups},
        "run_s": list(trial.run_s),
        "iterations": {
            measurement.metric.name: list(measurement.iterations) for measurement in trial.measurements
        },
        "started_at": format_timestamp(trial.started_at),
        "duration_s": trial.duration_s,
        "phases": to_plain(trial.phases),
        "attestation": to_plain(trial.facts),
        "noise": to_plain(trial.noise),
        "warnings": list(trial.warnings),
        "command_line": list(trial.command_line),
    }
    if trial.status is not TrialStatus.OK:
        document["console"] = trial.console[-CONSOLE_LIMIT:]
        document["console_truncated"] = len(trial.console) > CONSOLE_LIMIT
    return document


def _make_summary_document(summary: Summary, metric: Metric) -> dict[str, Any]:
    return {
        "unit": metric.unit,
        "better": metric.better.value,
        "n": summary.n,
        "mean": summary.mean,
        "median": summary.median,
        "ci": _list_ends(summary.ci),
        "typical": summary.typical,
        "typical_ci": _list_ends(summary.typical_ci),
    }


def _make_comparison_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        "ci": _list_ends(comparison.ci),
        "median_ratio": comparison.median_ratio,
        "median_ci": _list_ends(comparison.median_ci),
        "p": comparison.p,
        "verdict": comparison.verdict.value,
        "alike": comparison.alike,  # the typical run is as on the baseline; rarer slow runs are not excluded
        "reason": comparison.reason,
        "n": comparison.n,
        "q": comparison.q,
        "equivalence_p": comparison.equivalence_p,
        "equivalence_q": comparison.equivalence_q,
        "noise_floor": comparison.noise_floor,
        "stretch": comparison.stretch,
    }


def _make_more_time_document(run: StoredRun, analysis: Analysis) -> dict[str, Any] | None:
    """Return how precise more blocks would make the imprecise ratios; half-widths are of the log ratio."""
    found = forecast_more_time(run.plan, analysis)
    return None if found is None else {**to_plain(found), "blocks_in_all": analysis.blocks + found.blocks}


def _make_answers_document(result: CellResult, workload: WorkloadResult) -> dict[str, Any]:
    """Return the four answers of the primary metric, and which events may have been missed."""
    answers = result.answers
    if answers is None:
        return {}
    found: dict[str, Any] = {"typical": _make_comparison_document(answers.typical)}
    if answers.total is not None:
        found["total"] = {
            **_make_comparison_document(answers.total),
            "seen_ci": _list_ends(answers.total.ci),
            "pessimistic_ci": _list_ends(answers.total.unseen_ci),
        }
    if answers.slow is not None:
        slow = answers.slow
        found["slow"] = {
            "cell": to_plain(slow.cell),
            "baseline": to_plain(slow.baseline),
            "difference": slow.difference,
            "ci": _list_ends(slow.ci),
            "p95_ratio": slow.ratio,
            "p95_ci": _list_ends(slow.ratio_ci),
            "p": slow.p,
            "q": slow.q,
            "verdict": slow.verdict.value,
            "reason": slow.reason,
            "n": slow.n,
        }
        found["unseen"] = {"starts": slow.unseen.machines, "iterations": slow.unseen.iterations}
    if answers.first is not None:
        found["first"] = _make_comparison_document(answers.first)
    return {workload.metrics[0].name: found}


def _list_ends(ends: tuple[float, float] | None) -> list[float | None]:
    return [None, None] if ends is None else [ends[0], ends[1]]


def format_timestamp(seconds: float) -> str:
    """Return Unix time as UTC in ISO 8601, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

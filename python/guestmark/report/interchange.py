"""A run in the schemas of other programs: hyperfine's, Bencher's, and that of github-action-benchmark.

These programs know benchmarks, each with a list of times. Each cell becomes a benchmark; copies for the noise floor are
left out. Times of one trial are not independent of each other, so a test over all of them, such as Welch's, is too
confident.
"""

from __future__ import annotations

from typing import Any

from guestmark.core.metric import Better
from guestmark.core.metric_spec import MAX_RSS, SYSTEM, USER, WALL
from guestmark.core.model import Cell, TrialStatus
from guestmark.report.sections.gate_outcomes import judge_own_gates
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.executions import Executions, collect_iterations, compute_mean_or_zero
from guestmark.stats.gates import Outcome
from guestmark.workloads.exec.command import ExecParams, name_parameter, read_stored_command

_UNDECIDED_VALUES = {"value": 0.5, "lower_value": 0.0, "upper_value": 1.0}
_GATE_VALUES = {
    Outcome.KEPT: {"value": 0.0},
    Outcome.BROKEN: {"value": 1.0},
    Outcome.UNDECIDED: _UNDECIDED_VALUES,
    Outcome.UNMEASURED: _UNDECIDED_VALUES,
}
_BIGGER, _SMALLER = "customBiggerIsBetter", "customSmallerIsBetter"


def make_hyperfine_document(analysis: Analysis) -> dict[str, Any]:
    """Return the document of hyperfine's `--export-json`, in seconds; user and system are means.

    Cells without a time are left out.
    """
    return {"results": [benchmark for _, benchmark in list_hyperfine_benchmarks(analysis)]}


def list_hyperfine_benchmarks(analysis: Analysis) -> list[tuple[CellResult, dict[str, Any]]]:
    """Return the cells that have a time, each with its entry in that document."""
    entries = []
    for name, result in _list_named_cells(analysis):
        benchmark = _make_hyperfine_benchmark(name, result)
        if benchmark is not None:
            entries.append((result, benchmark))
    return entries


def _make_hyperfine_benchmark(name: str, result: CellResult) -> dict[str, Any] | None:
    good = [trial for trial in result.trials if trial.status is TrialStatus.OK]
    times = collect_iterations(good, WALL.name)
    if not times:
        return None
    executions = Executions(tuple(times))
    command = read_stored_command(result.cell) or ExecParams()
    levels = result.cell.factors
    parameters = {name_parameter(key): levels[key] for key in command.parameters if key in levels}
    memory = [int(value) for value in collect_iterations(good, MAX_RSS.name)]
    # If failures are ignored, or other statuses are good, too, the exit code is not known.
    code = 0 if not command.ignore_failure and tuple(command.statuses) == (0,) else None
    benchmark = {
        "command": name,
        "mean": executions.mean,
        "stddev": executions.deviation,
        "median": executions.median,
        "user": compute_mean_or_zero(collect_iterations(good, USER.name)),
        "system": compute_mean_or_zero(collect_iterations(good, SYSTEM.name)),
        "min": min(times),
        "max": max(times),
        "times": times,
    }
    # Readers pair the list with the times, so it is left out if the lengths differ.
    if len(memory) == len(times):
        benchmark["memory_usage_byte"] = memory
    benchmark["exit_codes"] = [code] * len(times)
    if parameters:
        benchmark["parameters"] = parameters
    return benchmark


def make_bencher_document(analysis: Analysis) -> dict[str, Any]:
    """Return Bencher's metric format: for each benchmark and measure the mean over trials, with its interval.

    Each gate is a measure of its cells, so that an upper boundary of 0 alerts to every gate that is not met: 1 if it is
    broken, 0 if it is met, and 0.5 with an interval from 0 to 1 if it is undecided or was not measured.
    """
    document = {}
    gates: dict[str, dict[str, dict[str, float]]] = {}
    for gate in judge_own_gates(analysis):
        gates.setdefault(gate.cell, {})[f"gate {gate.gate.text}"] = _GATE_VALUES[gate.outcome]
    for name, result in _list_named_cells(analysis):
        measures: dict[str, dict[str, float]] = {}
        for metric, summary in result.summary.items():
            measures[metric] = {"value": summary.mean}
            if summary.ci:
                measures[metric] |= {"lower_value": summary.ci[0], "upper_value": summary.ci[1]}
        measures |= gates.get(result.cell.id, {})
        if measures:
            document[name] = measures
    return document


def make_github_action_document(analysis: Analysis) -> list[dict[str, Any]]:
    """Return the primary metric of each cell as github-action-benchmark reads it.

    The tool to choose there is `customSmallerIsBetter` or `customBiggerIsBetter`, which each entry names.
    """
    metric = analysis.plan.metrics[0]
    tool = _BIGGER if metric.better is Better.HIGHER else _SMALLER
    entries = []
    for name, result in _list_named_cells(analysis):
        summary = result.summary.get(metric.name)
        if summary is None:
            continue
        entry: dict[str, Any] = {"name": name, "unit": metric.unit, "value": summary.mean}
        if summary.ci:
            entry["range"] = f"{summary.ci[0]:.6g} to {summary.ci[1]:.6g}"
        entry["extra"] = f"{metric.name}, for tool {tool}"
        entries.append(entry)
    return entries


def _list_named_cells(analysis: Analysis) -> list[tuple[str, CellResult]]:
    """Return the name of each cell's benchmark, and the cell.

    The name is the command. The cell's id follows if cells of one command differ in more than its parameters.
    """
    results = [result for result in analysis.cells if result.cell.null_of is None]
    labels = [_format_command_with_parameters(result.cell) for result in results]
    settings: dict[str, set[Any]] = {}
    for label, result in zip(labels, results, strict=True):
        cell = result.cell
        own = (read_stored_command(cell) or ExecParams()).parameters
        others = {name: level for name, level in cell.factors.items() if name not in own}
        settings.setdefault(label, set()).add((str(cell.platform), frozenset(others.items())))
    named = []
    for label, result in zip(labels, results, strict=True):
        unique = len(settings[label]) == 1
        named.append((label if unique else f"{label} ({result.cell.id})", result))
    return named


def _format_command_with_parameters(cell: Cell) -> str:
    """Return the command's label with its parameters replaced by their levels."""
    label = cell.workload.label or cell.workload.name
    command = read_stored_command(cell) or ExecParams()
    for name in command.parameters:
        label = label.replace("{" + name_parameter(name) + "}", cell.factors.get(name, ""))
    return label

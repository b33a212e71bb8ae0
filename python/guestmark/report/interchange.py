"""A run in the schemas of other programs: hyperfine's, Bencher's, and that of github-action-benchmark.

They know one benchmark with a list of times. Each cell becomes one; copies for the noise floor are left out. Times of
one trial are not independent of each other, so that a test over all of them, such as Welch's, is too sure of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guestmark.core.metric import Better
from guestmark.core.metric_spec import MAX_RSS, SYSTEM, USER, WALL
from guestmark.core.model import Cell, TrialStatus
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.executions import Executions, collect_iterations, mean_or_zero
from guestmark.workloads.exec.command import Command, command_of, parameter_of

_BIGGER, _SMALLER = "customBiggerIsBetter", "customSmallerIsBetter"


def hyperfine_document(analysis: Analysis) -> dict[str, Any]:
    """The document of hyperfine's `--export-json`, in seconds; user and system are means. Cells need a time."""
    return {"results": [found for _, found in hyperfine_benchmarks(analysis)]}


def hyperfine_benchmarks(analysis: Analysis) -> list[tuple[CellResult, dict[str, Any]]]:
    """The cells that have a time, each with its entry in that document."""
    shown = _plain_cells(analysis)
    names = _name_benchmarks([result.cell for result in shown])
    return [
        (result, found)
        for name, result in zip(names, shown, strict=True)
        if (found := _hyperfine_benchmark(name, result)) is not None
    ]


def _hyperfine_benchmark(name: str, result: CellResult) -> dict[str, Any] | None:
    ok = [trial for trial in result.trials if trial.status is TrialStatus.OK]
    times = collect_iterations(ok, WALL.name)
    if not times:
        return None
    executions = Executions(tuple(times))
    command = command_of(result.cell) or Command()
    levels = result.cell.factors
    own = {parameter_of(key): levels[key] for key in command.parameters if key in levels}
    memory = [int(value) for value in collect_iterations(ok, MAX_RSS.name)]
    code = None if command.ignore_failure else 0
    return {
        "command": name,
        "mean": executions.mean,
        "stddev": executions.deviation,
        "median": executions.median,
        "user": mean_or_zero(collect_iterations(ok, USER.name)),
        "system": mean_or_zero(collect_iterations(ok, SYSTEM.name)),
        "min": min(times),
        "max": max(times),
        "times": times,
        **({"memory_usage_byte": memory} if len(memory) == len(times) else {}),
        "exit_codes": [code] * len(times),
        **({"parameters": own} if own else {}),
    }


def bencher_document(analysis: Analysis) -> dict[str, Any]:
    """Bencher's metric format: by benchmark and measure the mean over trials with its interval."""
    shown = _plain_cells(analysis)
    names = _name_benchmarks([result.cell for result in shown])
    return {
        name: {
            metric: {
                "value": summary.mean,
                **({"lower_value": summary.ci[0], "upper_value": summary.ci[1]} if summary.ci else {}),
            }
            for metric, summary in result.summary.items()
        }
        for name, result in zip(names, shown, strict=True)
        if result.summary
    }


def github_action_document(analysis: Analysis) -> list[dict[str, Any]]:
    """The primary metric of each cell as that action's `customSmallerIsBetter` or `customBiggerIsBetter` reads it."""
    metric = analysis.plan.metrics[0]
    shown = _plain_cells(analysis)
    names = _name_benchmarks([result.cell for result in shown])
    tool = _BIGGER if metric.better is Better.HIGHER else _SMALLER
    return [
        {
            "name": name,
            "unit": metric.unit,
            "value": summary.mean,
            **({"range": f"{summary.ci[0]:.6g} to {summary.ci[1]:.6g}"} if summary.ci else {}),
            "extra": f"{metric.name}, for tool {tool}",
        }
        for name, result in zip(names, shown, strict=True)
        if (summary := result.summary.get(metric.name)) is not None
    ]


def _plain_cells(analysis: Analysis) -> list[CellResult]:
    return [result for result in analysis.cells if result.cell.null_of is None]


def _name_benchmarks(cells: Sequence[Cell]) -> list[str]:
    """The command of each; with the cell where one command has several that do not differ by its parameters alone."""
    labels = [_fill_parameters(cell) for cell in cells]
    settings: dict[str, set[Any]] = {}
    for label, cell in zip(labels, cells, strict=True):
        own = (command_of(cell) or Command()).parameters
        others = {name: level for name, level in cell.factors.items() if name not in own}
        settings.setdefault(label, set()).add((str(cell.platform), frozenset(others.items())))
    return [
        label if len(settings[label]) == 1 else f"{label} ({cell.id})"
        for label, cell in zip(labels, cells, strict=True)
    ]


def _fill_parameters(cell: Cell) -> str:
    """The command as it was run: with the levels of its parameters."""
    label = cell.workload.label or cell.workload.name
    command = command_of(cell) or Command()
    for name in command.parameters:
        label = label.replace("{" + parameter_of(name) + "}", cell.factors.get(name, ""))
    return label

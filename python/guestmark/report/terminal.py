"""A run on the terminal: what hyperfine would show, with blocks, intervals and verdicts."""

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from guestmark.core.model import CellStatus, Metric
from guestmark.ledger.model import StoredRun
from guestmark.report import figures, surroundings
from guestmark.report.conclusion import conclusion
from guestmark.report.document import clean
from guestmark.report.footer import footer
from guestmark.report.phases import stacked
from guestmark.report.rows import Names, everywhere, plain_table, taken
from guestmark.report.then import not_measured, then_parts
from guestmark.report.why import why_parts
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse
from guestmark.stats.compare import Comparison, Verdict, label
from guestmark.stats.summary import Summary

STYLES = {
    Verdict.FASTER: "green",
    Verdict.SLOWER: "red",
    Verdict.NO_DIFFERENCE: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
}
MARKS = {Verdict.FASTER: "*", Verdict.SLOWER: "*", Verdict.NO_DIFFERENCE: "=", Verdict.INCONCLUSIVE: "?"}
FLUSHES = "flushes_reached_host"  # a fact of disk workloads
LEGEND = "* differs from the baseline   = no difference   ? inconclusive"
_ASCII = str.maketrans({"×": "x", "±": "+-", "–": "-", "µ": "u", "…": "..."} | dict.fromkeys("█▉▊▋▌▍▎▏", "#"))
_SHORTEST_BAR = 5
WIDE = 100  # columns from which the reasons of verdicts have room


def report(
    run: StoredRun,
    *,
    width: int = 80,
    analysis: Analysis | None = None,
    then: bool = False,
    environment: bool = False,
) -> RenderableType:
    """Everything about a run: tables, conclusion, footer. `width` in columns; `then` adds published figures,
    `environment` what it was measured on.
    """
    found = analysis or analyse(run.plan, run.trials, run.unusable)
    parts: list[RenderableType] = [result_table(found, width=width, then=then)]
    if then:
        parts += not_measured(found)
    if said := conclusion(found):
        parts += [*said, Text()]
    if environment:
        parts += [_environment(run), Text()]
    return Group(*parts, footer(found, run_id=run.id, state=run.state))


def _environment(run: StoredRun) -> Table:
    table = plain_table()
    table.add_column("measured on", no_wrap=True, style="dim")
    table.add_column("", overflow="fold")
    for name, value in surroundings.rows(run):
        table.add_row(clean(name), clean(value))
    return table


def print_report(
    run: StoredRun, console: Console | None = None, *, then: bool = False, environment: bool = False
) -> None:
    """Prints `report` as wide as the console is."""
    out = console or Console(highlight=False)
    print_page(report(run, width=out.width, then=then, environment=environment), out)


def print_page(made: RenderableType, out: Console) -> None:
    """Prints it without colour when the console is not a terminal.

    Terminals that do not speak UTF-8 get ASCII for the signs they lack, never an error.
    """
    with out.capture() as capture:
        out.print(made, highlight=False)
    text = capture.get()
    if not out.encoding.lower().startswith("utf"):
        text = text.translate(_ASCII)
    # Arguments and messages may hold bytes that are no text in any encoding.
    out.file.write(text.encode(out.encoding, "replace").decode(out.encoding))
    out.file.flush()


def result_table(
    analysis: Analysis, *, width: int = 80, details: bool = True, then: bool = False
) -> RenderableType:
    """For each workload the table of its primary metric and, with `details`, one of its other metrics; with
    `then` one of the published figures.
    """
    parts: list[RenderableType] = []
    for workload in analysis.workloads:
        named = clean(workload.title)
        parts.append(Text(named, style="bold", overflow="fold"))
        if same := everywhere(workload):
            parts.append(Text(same, style="dim", overflow="fold"))
        names = _names(workload, width)
        if workload.metrics:
            if details and (key := names.key()):
                parts += [key, Text()]
            parts += [_primary_table(workload, names), *_units(workload), Text()]
            parts += [*_plot(workload, names), *stacked(workload, names)] if details else []
        if then:
            parts += then_parts(workload, analysis.plan, names)
        parts += _troubles(workload)
        if details and len(workload.metrics) > 1:
            parts += _other_tables(workload, names)
        if details:
            parts += why_parts(workload, width)
    return Group(*parts)


# --- the table of the primary metric ------------------------------------------------------------------------


def _names(workload: WorkloadResult, width: int) -> Names:
    """How rows are called in all tables of the workload, given what the first one has to hold besides."""
    if not workload.metrics:
        return Names(workload, width, width)
    _, numbers, verdicts = _numbers(workload)
    return Names(workload, width, width - taken(numbers) - _verdict_width(verdicts) - _SHORTEST_BAR)


def _numbers(workload: WorkloadResult) -> tuple[list[CellResult], list[list[str]], list[Text]]:
    """The rows of the first table, its columns of figures, heading first, and the verdicts without reasons."""
    metric = workload.metrics[0]
    shown = [result for result in workload.shown if result.status is not CellStatus.UNUSABLE]
    means = [result.summary[metric.name].mean for result in shown if metric.name in result.summary]
    unit = figures.table_unit(metric.unit, means)
    numbers = [
        [figures.heading(metric, unit), *_estimates(shown, metric, unit)],
        [_versus(workload), *_ratios(shown, metric)],
    ]
    if any(durable := [durability(result) for result in shown]):
        numbers.append(["durable", *durable])
    verdicts = [_verdict(one.comparison.get(metric.name), metric, with_reason=False) for one in shown]
    return shown, numbers, verdicts


def _verdict_width(verdicts: Sequence[Text]) -> int:
    return max(12, *map(len, verdicts)) + 2


def _primary_table(workload: WorkloadResult, names: Names) -> Table:
    metric, width = workload.metrics[0], names.width
    shown, numbers, verdicts = _numbers(workload)
    summaries = [result.summary.get(metric.name) for result in shown]
    means = [summary.mean for summary in summaries if summary]
    if width >= WIDE:
        verdicts = [_verdict(one.comparison.get(metric.name), metric, with_reason=True) for one in shown]
    used = taken(numbers) + _verdict_width(verdicts)
    columns = [*names.columns(shown, max(width - used - _SHORTEST_BAR, names.room)), *numbers]
    bar_width = 0 if names.numbered else min(24, width - used - taken(columns[: -len(numbers)]))
    table = plain_table()
    for column in columns:
        table.add_column(column[0], no_wrap=True, overflow="ellipsis")
    if bar_width >= _SHORTEST_BAR:
        table.add_column("", no_wrap=True, width=bar_width)
    table.add_column("verdict", no_wrap=True, overflow="ellipsis")
    for row, (result, summary, verdict) in enumerate(zip(shown, summaries, verdicts, strict=True), start=1):
        style = "bold" if result.cell.baseline else "" if summary else "dim"
        cells = [Text(column[row], style=style) for column in columns]
        if bar_width >= _SHORTEST_BAR:
            cells.append(
                Text(figures.bar(summary.mean, max(means), bar_width) if summary else "", style="blue")
            )
        table.add_row(*cells, verdict)
    return table


def _plot(workload: WorkloadResult, names: Names) -> list[RenderableType]:
    """Bars as wide as the terminal, for tables of many rows, which have no room for them."""
    metric = workload.metrics[0]
    shown = [result for result in workload.shown if metric.name in result.summary]
    if not names.numbered or len(shown) < 2:
        return []
    means = [result.summary[metric.name].mean for result in shown]
    unit = figures.table_unit(metric.unit, means)
    values = [_mean(result.summary[metric.name], unit) for result in shown]
    columns = [
        *names.columns(shown, names.width // 2),
        [figures.heading(metric, unit), *figures.aligned(values)],
    ]
    room = names.width - taken(columns)
    if room < _SHORTEST_BAR:
        return []
    table = plain_table()
    for column in columns:
        table.add_column(column[0], no_wrap=True, overflow="ellipsis")
    table.add_column("", no_wrap=True, width=room)
    for row, mean in enumerate(means, start=1):
        style = "bold" if shown[row - 1].cell.baseline else ""
        bar = Text(figures.bar(mean, max(means), room), style="blue")
        table.add_row(*(Text(column[row], style=style) for column in columns), bar)
    return [table, Text()]


def _versus(workload: WorkloadResult) -> str:
    if workload.baseline is None:
        return ""
    return f"vs {workload.baseline.cell.id}" if len(workload.baseline.cell.id) <= 20 else "vs baseline"


def _units(workload: WorkloadResult) -> list[Text]:
    """What a unit means where people differ about it."""
    said = ["1 MB = 10^6 bytes"] if any(metric.unit == "B/s" for metric in workload.metrics) else []
    if any(durability(result) for result in workload.shown):
        said.append("durable: whether the guest's flushes reached the host")
    return [Text("; ".join(said), style="dim", overflow="fold")] if said else []


def durability(result: CellResult) -> str:
    """Whether the guest's flushes reached the host, from the trials' attestations: `yes`, `no`, `unknown`.

    When trials disagree, `mixed`; empty for workloads of which nobody asks that.
    """
    found = {trial.attestation.get(FLUSHES) for trial in result.trials if trial.attestation.get(FLUSHES)}
    return "" if not found else str(found.pop()) if len(found) == 1 else "mixed"


def _estimates(results: Sequence[CellResult], metric: Metric, unit: figures.Unit) -> list[str]:
    """`1.234 ± 0.012` for each cell, points under points; the cell's status where nothing was measured."""
    summaries = [result.summary.get(metric.name) for result in results]
    pairs = [figures.estimate(one.mean, one.ci, unit) if one else ("", "") for one in summaries]
    means = figures.aligned([mean for mean, _ in pairs])
    halves = figures.aligned([half for _, half in pairs])
    return [
        (f"{mean} ± {half}" if half.strip() else mean).rstrip() if summary else result.status.value
        for result, summary, mean, half in zip(results, summaries, means, halves, strict=True)
    ]


def _ratios(results: Sequence[CellResult], metric: Metric) -> list[str]:
    """`×1.23 [1.20, 1.27]` for each cell, points under points."""
    split: list[tuple[str, str]] = []
    for result in results:
        comparison = result.comparison.get(metric.name)
        if comparison is None or comparison.ratio is None:
            split.append(("", ""))
        else:
            value, _, interval = figures.ratio(comparison.ratio, comparison.ci).partition(" ")
            split.append((value, interval))
    values = figures.aligned([value for value, _ in split])
    return [
        "baseline" if result.cell.baseline else f"{value} {interval}".rstrip()
        for result, value, (_, interval) in zip(results, values, split, strict=True)
    ]


def _verdict(comparison: Comparison | None, metric: Metric, *, with_reason: bool) -> Text:
    if comparison is None:
        return Text("")
    text = Text(label(comparison.verdict, metric), style=STYLES[comparison.verdict])
    if with_reason and comparison.reason:
        text.append(f" ({comparison.reason})", style="dim")
    return text


# --- everything that went wrong -----------------------------------------------------------------------------


def _troubles(workload: WorkloadResult) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for result in workload.cells:
        if result.status in {CellStatus.UNUSABLE, CellStatus.FAILED, CellStatus.PARTIAL}:
            line = Text(f"{result.cell.id}: ", style="bold")
            line.append(result.status.value, style="yellow" if result.status is CellStatus.PARTIAL else "red")
            line.append(f" – {result.reason}", style="")
            lines.append(line)
    baseline, metric = workload.baseline, workload.metrics[:1]
    if baseline and metric and metric[0].name not in baseline.summary and len(workload.shown) > 1:
        lines.append(Text(f"No comparison is possible: the baseline {baseline.cell.id} was not measured"))
    return [*lines, Text()] if lines else []


# --- the other metrics --------------------------------------------------------------------------------------


def _other_tables(workload: WorkloadResult, names: Names) -> list[RenderableType]:
    shown = [result for result in workload.shown if result.summary]
    if not shown:
        return []
    cells = names.columns(shown, names.width // 2)
    pending = [_metric_column(shown, metric) for metric in workload.metrics[1:]]
    tables: list[RenderableType] = []
    while pending:
        room = names.width - taken(cells)
        chosen: list[list[Text]] = []
        while pending and (not chosen or room >= max(map(len, pending[0])) + 2):
            chosen.append(pending.pop(0))
            room -= max(map(len, chosen[-1])) + 2
        columns = [*([Text(cell) for cell in column] for column in cells), *chosen]
        table = plain_table()
        for column in columns:
            table.add_column(column[0], no_wrap=True, overflow="ellipsis")
        for row in range(1, len(shown) + 1):
            table.add_row(*(column[row] for column in columns))
        tables += [table, Text()]
    tables[-1:] = [
        Text("* differs from the baseline   = no difference   ? inconclusive", style="dim"),
        Text(),
    ]
    return tables


def _metric_column(shown: Sequence[CellResult], metric: Metric) -> list[Text]:
    """The heading, then for each cell the mean and how it compares."""
    summaries = [result.summary.get(metric.name) for result in shown]
    unit = figures.table_unit(metric.unit, (summary.mean for summary in summaries if summary))
    means = figures.aligned([_mean(one, unit) if one else "–" for one in summaries])
    texts = [Text(figures.heading(metric, unit))]
    for mean, result in zip(means, shown, strict=True):
        text = Text(mean)
        comparison = result.comparison.get(metric.name)
        if comparison is not None and comparison.ratio is not None:
            places = min(figures.ratio_decimals(comparison.ratio, comparison.ci), 2)
            if 0 < comparison.ratio < 0.095:  # at least one digit that says something
                places = min(figures.decimals(None, comparison.ratio) - 1, 5)
            against = f" ×{figures.number(comparison.ratio, places)}{MARKS[comparison.verdict]}"
            text.append(against, style=STYLES[comparison.verdict])
        texts.append(text)
    return texts


def _mean(summary: Summary, unit: figures.Unit) -> str:
    """A mean beside others: at most five digits, however narrow its interval is."""
    half = None if summary.ci is None else (summary.ci[1] - summary.ci[0]) / 2 / unit.size
    value = summary.mean / unit.size
    return figures.number(value, min(figures.decimals(half, value), figures.decimals(None, value) + 2))

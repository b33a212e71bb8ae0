"""A run as the tables that hyperfine exports: CSV, Markdown, AsciiDoc and Org mode.

Times are relative to the fastest, or to the baseline if `referenced` is set, as with hyperfine's `--reference`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, assert_never

from guestmark.page.figures import TimeUnit, read_wanted_time_unit
from guestmark.page.text import escape_for_csv
from guestmark.report import interchange
from guestmark.report.export_format import Format
from guestmark.stats.analysis import Analysis
from guestmark.stats.executions import compute_relative_speed

_FIGURES = ("mean", "stddev", "median", "user", "system", "min", "max")
_PLACES = {TimeUnit.SECOND: 3, TimeUnit.MILLISECOND: 1, TimeUnit.MICROSECOND: 1}
_Benchmark = Mapping[str, Any]
_Cells = list[str]


TableFormat = Literal[
    Format.HYPERFINE_CSV, Format.HYPERFINE_MARKDOWN, Format.HYPERFINE_ASCIIDOC, Format.HYPERFINE_ORGMODE
]


def render_table(analysis: Analysis, form: TableFormat, *, referenced: bool) -> str:
    """Return a table of the run's benchmarks in that hyperfine format."""
    match form:
        case Format.HYPERFINE_CSV:
            return _render_csv(analysis)
        case Format.HYPERFINE_MARKDOWN:
            return _render_markdown(_make_rows(analysis, referenced, _quote_in_backticks))
        case Format.HYPERFINE_ASCIIDOC:
            return _render_asciidoc(_make_rows(analysis, referenced, _quote_in_backticks))
        case Format.HYPERFINE_ORGMODE:
            return _render_orgmode(_make_rows(analysis, referenced, _quote_in_equals))
        case _:
            assert_never(form)


def _quote_in_backticks(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"


def _quote_in_equals(text: str) -> str:
    return f"={text}="


def _render_csv(analysis: Analysis) -> str:
    """Return a line for each benchmark, in seconds, with a column for each parameter."""
    benchmarks = interchange.make_hyperfine_document(analysis)["results"]
    names = sorted(set[str]().union(*(benchmark.get("parameters", {}) for benchmark in benchmarks)))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    headings = ("command", *_FIGURES, *(f"parameter_{name}" for name in names))
    writer.writerow(map(escape_for_csv, headings))
    for benchmark in benchmarks:
        levels = benchmark.get("parameters", {})
        # The writer leaves a field empty for None.
        figures = [benchmark[name] for name in _FIGURES]
        parameters = [escape_for_csv(levels.get(name, "")) for name in names]
        writer.writerow([escape_for_csv(benchmark["command"]), *figures, *parameters])
    return out.getvalue()


def _render_markdown(rows: Sequence[_Cells]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    lines.insert(1, "|:---|---:|---:|---:|---:|")
    return _join_lines(lines)


def _render_asciidoc(rows: Sequence[_Cells]) -> str:
    lines = ['[cols="<,>,>,>,>"]', "|==="]
    for cells in rows:
        lines += [*(f"| {cell} " for cell in cells), ""]
    lines[-1] = "|==="
    return _join_lines(lines)


def _render_orgmode(rows: Sequence[_Cells]) -> str:
    lines = [f"| {first}  |  {' |  '.join(others)} |" for first, *others in rows]
    lines.insert(1, "|--+--+--+--+--|")
    return _join_lines(lines)


def _join_lines(lines: Sequence[str]) -> str:
    """Return the lines as text in which each ends with a line feed."""
    return "\n".join([*lines, ""])


def _make_rows(analysis: Analysis, referenced: bool, quote: Callable[[str], str]) -> list[_Cells]:
    """Return the headings, then a row for each benchmark; `quote` marks a command as code."""
    results = interchange.list_hyperfine_benchmarks(analysis)
    benchmarks = [benchmark for _, benchmark in results]
    unit = read_wanted_time_unit() or _choose_time_unit(benchmarks)
    size, places = unit.unit.size, _PLACES[unit]
    reference = min(benchmarks, key=lambda benchmark: benchmark["mean"], default=None)
    if referenced:
        baselines = (benchmark for result, benchmark in results if result.cell.baseline)
        reference = next(baselines, reference)
    rows = [["Command", *(f"{name} [{unit.unit.name}]" for name in ("Mean", "Min", "Max")), "Relative"]]
    for benchmark in benchmarks:
        mean, low, high = (f"{benchmark[name] / size:.{places}f}" for name in ("mean", "min", "max"))
        if benchmark["stddev"] is not None:
            mean += f" ± {benchmark['stddev'] / size:.{places}f}"
        command = quote(" ".join(benchmark["command"].split()))
        rows.append([command, mean, low, high, _format_relative(benchmark, reference)])
    return rows


def _choose_time_unit(benchmarks: Sequence[_Benchmark]) -> TimeUnit:
    """Return the unit that fits the first benchmark; all others use it too, as in hyperfine."""
    seconds = benchmarks[0]["mean"] if benchmarks else 1.0
    if seconds < 1e-3:
        return TimeUnit.MICROSECOND
    return TimeUnit.MILLISECOND if seconds < 1 else TimeUnit.SECOND


def _format_relative(benchmark: _Benchmark, reference: _Benchmark | None) -> str:
    """Return the quotient of the means with its standard deviation; empty if the reference took no time."""
    if reference is None or benchmark is reference:
        return "1.00"
    if not reference["mean"]:
        return ""
    quotient, error = compute_relative_speed(
        benchmark["mean"], benchmark["stddev"], reference["mean"], reference["stddev"]
    )
    return f"{quotient:.2f}" if error is None else f"{quotient:.2f} ± {error:.2f}"

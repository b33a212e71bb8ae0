"""A run as the tables that hyperfine exports: CSV, Markdown, AsciiDoc and Org mode.

Times are relative to the fastest, or to the baseline where `referenced` says so: that is hyperfine's `--reference`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, Literal, assert_never

from guestmark.page.figures import TimeUnit, wanted_time_unit
from guestmark.page.text import escape_for_csv
from guestmark.report import interchange
from guestmark.report.export_format import Format
from guestmark.stats.analysis import Analysis
from guestmark.stats.executions import relative_speed

_FIGURES = ("mean", "stddev", "median", "user", "system", "min", "max")
_PLACES = {TimeUnit.SECOND: 3, TimeUnit.MILLISECOND: 1, TimeUnit.MICROSECOND: 1}


TableFormat = Literal[
    Format.HYPERFINE_CSV, Format.HYPERFINE_MARKDOWN, Format.HYPERFINE_ASCIIDOC, Format.HYPERFINE_ORGMODE
]


def render_table(analysis: Analysis, form: TableFormat, *, referenced: bool) -> str:
    """The table in that format."""
    match form:
        case Format.HYPERFINE_CSV:
            return _render_csv(analysis)
        case Format.HYPERFINE_MARKDOWN:
            return _render_markdown(*_make_rows(analysis, referenced, _quote_in_backticks))
        case Format.HYPERFINE_ASCIIDOC:
            return _render_asciidoc(*_make_rows(analysis, referenced, _quote_in_backticks))
        case Format.HYPERFINE_ORGMODE:
            return _render_orgmode(*_make_rows(analysis, referenced, lambda text: f"={text}="))
        case _:
            assert_never(form)


def _quote_in_backticks(text: str) -> str:
    return f"`{text.replace('|', chr(92) + '|')}`"


def _render_csv(analysis: Analysis) -> str:
    """A line for each benchmark, in seconds, with a column for each parameter."""
    found = interchange.hyperfine_document(analysis)["results"]
    names = sorted({name for each in found for name in each.get("parameters", {})})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_for_csv, ("command", *_FIGURES, *(f"parameter_{name}" for name in names))))
    for each in found:
        levels = each.get("parameters", {})
        texts = [each["command"], *(levels.get(name, "") for name in names)]
        command, *others = map(escape_for_csv, texts)
        writer.writerow([command, *("" if each[name] is None else each[name] for name in _FIGURES), *others])
    return out.getvalue()


def _render_markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [_join_cells(head), "|:---|---:|---:|---:|---:|", *map(_join_cells, rows)]
    return "".join(f"{line}\n" for line in lines)


def _render_asciidoc(head: list[str], rows: list[list[str]]) -> str:
    lines = ['[cols="<,>,>,>,>"]', "|==="]
    for row in (head, *rows):
        lines += [*(f"| {cell} " for cell in row), ""]
    lines[-1] = "|==="
    return "".join(f"{line}\n" for line in lines)


def _render_orgmode(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {first}  |  {' |  '.join(others)} |" for first, *others in (head, *rows)]
    lines.insert(1, "|--+--+--+--+--|")
    return "".join(f"{line}\n" for line in lines)


def _join_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _make_rows(
    analysis: Analysis, referenced: bool, code: Callable[[str], str]
) -> tuple[list[str], list[list[str]]]:
    """The heading, and a row for each benchmark; `code` marks a command as code."""
    every = interchange.hyperfine_benchmarks(analysis)
    found = [each for _, each in every]
    unit = wanted_time_unit() or (_choose_time_unit(found[0]["mean"]) if found else TimeUnit.SECOND)
    size, places = unit.unit.size, _PLACES[unit]

    def shown(seconds: float) -> str:
        return f"{seconds / size:.{places}f}"

    reference = min(found, key=lambda each: each["mean"], default=None)
    if referenced:
        reference = next((each for result, each in every if result.cell.baseline), reference)
    rows = []
    for each in found:
        mean = shown(each["mean"])
        spread = "" if each["stddev"] is None else f" ± {shown(each['stddev'])}"
        one = "1.00" if each is reference or reference is None else _format_relative(each, reference)
        command = code(" ".join(each["command"].split()))
        rows.append([command, f"{mean}{spread}", shown(each["min"]), shown(each["max"]), one])
    return ["Command", *(f"{name} [{unit.unit.name}]" for name in ("Mean", "Min", "Max")), "Relative"], rows


def _choose_time_unit(seconds: float) -> TimeUnit:
    """The first benchmark decides, as in hyperfine."""
    if seconds < 1e-3:
        return TimeUnit.MICROSECOND
    return TimeUnit.MILLISECOND if seconds < 1 else TimeUnit.SECOND


def _format_relative(each: dict[str, Any], reference: dict[str, Any]) -> str:
    """The quotient of the means; its σ from the relative ones of both, which are taken as independent."""
    if not reference["mean"]:
        return ""
    quotient, error = relative_speed(each["mean"], each["stddev"], reference["mean"], reference["stddev"])
    return f"{quotient:.2f}" if error is None else f"{quotient:.2f} ± {error:.2f}"

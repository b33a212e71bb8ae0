"""Runs as files: JSON, CSV, Parquet, Markdown, HTML.

JSON is the whole result document. CSV and Parquet are the raw figures in long form, one row for each trial
and metric (failed trials have one row without a metric), as every data tool likes to read them, with every single run;
each row also holds what its cell's metric came to. Markdown and HTML are the report as people read it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from guestmark.core.model import Trial
from guestmark.core.own_program import install_extra
from guestmark.ledger.model import StoredRun
from guestmark.page.json_text import strict_json
from guestmark.page.nodes import Note, Page, Section
from guestmark.page.text import escape_for_csv, escape_json, line
from guestmark.report import hyperfine_tables, interchange
from guestmark.report.document import format_timestamp, make_result_document
from guestmark.report.export_format import Format
from guestmark.report.full_report import make_page
from guestmark.report.render import html, markdown
from guestmark.report.sections import validity
from guestmark.stats.analysis import Analysis, CellResult, analyse_run
from guestmark.stats.compare import Estimand, Verdict

if TYPE_CHECKING:
    import polars

COLUMNS = (
    "run", "workload", "cell", "platform", "baseline", "null_of", "block", "order", "status", "reason",
    "metric", "unit", "better", "value", "iterations", "started_at", "duration_s", "verdict", "doubts",
)  # fmt: skip
RUNS = ("warmup_values", "iteration_values")  # every single run, in order; in CSV separated by spaces
_ANSWERED = {
    Estimand.TYPICAL: "ratio",
    Estimand.TOTAL: "ratio",
    Estimand.SLOW: "difference",
    Estimand.FIRST: "ratio",
}
ANSWERS = tuple(
    f"{each}_{end}" for each, what in _ANSWERED.items() for end in (what, "low", "high", "verdict")
)
FACTOR = "factor_"  # prefix of the columns of factors, which follow `platform`


def export_run(
    run: StoredRun,
    form: Format,
    analysis: Analysis | None = None,
    *,
    first: Sequence[Section] = (),
    referenced: bool = False,
) -> bytes:
    """The run in this format; text is UTF-8 and ends with a line feed.

    Pages begin with the sections `first`. `referenced`: the baseline was chosen, which hyperfine's tables show.
    """
    form = Format(form)
    found = analysis or analyse_run(run.plan, run.trials, run.unusable)
    match form:
        case Format.PARQUET:
            return _make_parquet(run, found)
        case Format.CSV:
            text = _make_csv(run, found)
        case Format.HYPERFINE:
            text = _indent_json(interchange.hyperfine_document(found))
        case (
            Format.HYPERFINE_CSV
            | Format.HYPERFINE_MARKDOWN
            | Format.HYPERFINE_ASCIIDOC
            | Format.HYPERFINE_ORGMODE
        ):
            text = hyperfine_tables.render_table(found, form, referenced=referenced)
        case Format.BENCHER:
            text = _indent_json(interchange.bencher_document(found))
        case Format.GITHUB:
            text = _indent_json(interchange.github_action_document(found))
        case Format.MARKDOWN:
            text = markdown.render(_make_page(run, found, first))
        case Format.HTML:
            text = html.render(_make_page(run, found, first))
        case Format.JSON:
            text = _json_by_line(make_result_document(run, found, _make_page(run, found, first)))
        case _:
            assert_never(form)
    return text.encode()


def _make_page(run: StoredRun, found: Analysis, first: Sequence[Section]) -> Page:
    made = make_page(run, found)
    return replace(made, sections=(*first, *made.sections))


def _indent_json(document: Any) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return escape_json(text) + "\n"


def _json_by_line(document: dict[str, Any]) -> str:
    """The document with each key, cell and trial on a line of its own: indented further, blanks would be half of it."""
    parts = [f"{_compact_json(key)}: {_value_by_line(value)}" for key, value in document.items()]
    return escape_json("{\n" + ",\n".join(parts) + "\n}") + "\n"


def _value_by_line(value: Any) -> str:
    if not (isinstance(value, list) and value and all(isinstance(each, dict) for each in value)):
        return _compact_json(value)
    return "[\n" + ",\n".join(map(_object_by_line, value)) + "\n]"


def _object_by_line(cell: dict[str, Any]) -> str:
    parts = [f"{_compact_json(key)}: {_value_by_line(value)}" for key, value in cell.items()]
    return "{" + ", ".join(parts) + "}"


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _analysed(run: StoredRun) -> Analysis:
    return analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)


def make_trial_rows(run: StoredRun, analysis: Analysis | None = None) -> list[dict[str, Any]]:
    """The long form: one dict a trial and metric, with the columns `column_names(run)`; missing values
    are None. `verdict` is that of the cell and metric over the whole run, `doubts` what takes it back.
    """
    found = analysis or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    came_to = {
        (result.cell.id, metric.name): _answer_columns(
            result, metric.name, primary=metric == workload.metrics[0]
        )
        for workload in found.workloads
        for result in workload.cells
        for metric in workload.metrics
    }
    compared = {result.cell.id: result.comparison for result in found.cells}
    doubted = validity.name_doubts(found)
    cells = {cell.id: cell for cell in run.plan.cells}
    rows = []
    for trial in run.trials:
        cell = cells.get(trial.cell_id)
        if cell is None:
            continue
        common: dict[str, Any] = {
            "run": run.id,
            "workload": cell.workload.label or cell.workload.name,
            "cell": cell.id,
            "platform": str(cell.platform),
            **{FACTOR + name: cell.factors.get(name) for name in _factor_names(run)},
            "baseline": cell.baseline,
            "null_of": cell.null_of,
            "block": trial.block,
            "order": trial.order,
            "status": trial.status.value,
            "reason": trial.reason or None,
            "started_at": format_timestamp(trial.started_at),
            "duration_s": trial.duration_s,
        }
        if not trial.measurements:
            rows.append(common)
        rows += [
            common
            | {
                "metric": measurement.metric.name,
                "unit": measurement.metric.unit,
                "better": measurement.metric.better.value,
                "value": measurement.value,
                "iterations": len(measurement.iterations),
                "warmup_values": _warmup_values(trial, measurement.metric.name),
                "iteration_values": list(measurement.iterations),
                "verdict": comparison.verdict.value if comparison else None,
                "doubts": doubted.get(cell.id),
            }
            | came_to.get((cell.id, measurement.metric.name), {})
            for measurement in trial.measurements
            for comparison in (compared.get(cell.id, {}).get(measurement.metric.name),)
        ]
    names = column_names(run)
    return [{name: strict_json(row.get(name)) for name in names} for row in rows]


def _warmup_values(trial: Trial, metric: str) -> list[float]:
    return next((list(each.iterations) for each in trial.warmups if each.metric.name == metric), [])


def _answer_columns(result: CellResult, metric: str, *, primary: bool) -> dict[str, Any]:
    """The typical run's ratio, interval and verdict of a cell; of the primary metric all that is asked of it."""
    typical = result.comparison.get(metric)
    answers = result.answers if primary else None
    ratios = {Estimand.TYPICAL: typical}
    row: dict[str, Any] = {}
    if answers is not None:
        ratios |= {Estimand.TOTAL: answers.total, Estimand.FIRST: answers.first}
        if (slow := answers.slow) is not None:
            row |= _estimand_columns(Estimand.SLOW, slow.difference, slow.ci, slow.verdict)
    for estimand, comparison in ratios.items():
        if comparison is not None:
            row |= _estimand_columns(
                estimand, comparison.ratio, comparison.stated_interval, comparison.verdict
            )
    return row


def _estimand_columns(
    estimand: Estimand, value: float | None, ci: tuple[float, float] | None, verdict: Verdict
) -> dict[str, Any]:
    low, high = ci or (None, None)
    names = (name for name in ANSWERS if name.startswith(f"{estimand}_"))
    return dict(zip(names, (value, low, high, verdict.value), strict=True))


def column_names(run: StoredRun) -> list[str]:
    """Names of the long form's columns, in order."""
    at = COLUMNS.index("platform") + 1
    return [*COLUMNS[:at], *(FACTOR + name for name in _factor_names(run)), *COLUMNS[at:], *RUNS, *ANSWERS]


def _factor_names(run: StoredRun) -> list[str]:
    return list(dict.fromkeys(name for cell in run.plan.cells for name in cell.factors))


def _make_csv(run: StoredRun, analysis: Analysis) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(escape_for_csv, column_names(run)))
    for row in make_trial_rows(run, analysis):
        writer.writerow(_csv_cell(row.get(name)) for name in column_names(run))
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join("" if number is None else repr(number) for number in value)
    return str(value).lower() if isinstance(value, bool) else escape_for_csv(value)


def make_frame(run: StoredRun, analysis: Analysis) -> polars.DataFrame:
    """The long form as a data frame, every column with its type."""
    install_extra("polars", "frames", "data frames and Parquet")
    import polars

    kinds: dict[str, Any] = dict.fromkeys(column_names(run), polars.String)
    kinds |= dict.fromkeys(("block", "order", "iterations"), polars.Int64)
    kinds |= {"baseline": polars.Boolean, "value": polars.Float64, "duration_s": polars.Float64}
    kinds |= dict.fromkeys(RUNS, polars.List(polars.Float64))
    kinds |= dict.fromkeys((name for name in ANSWERS if not name.endswith("verdict")), polars.Float64)
    return polars.DataFrame(make_trial_rows(run, analysis), schema=kinds)


def _make_parquet(run: StoredRun, analysis: Analysis) -> bytes:
    out = io.BytesIO()
    make_frame(run, analysis).write_parquet(out)
    return out.getvalue()


def make_bundle_page(runs: Sequence[StoredRun]) -> str:
    """The page that a bundle shows in a browser: the reports of these runs as one HTML document."""
    pages = [
        make_page(run, analyse_run(run.plan, run.trials, run.unusable, environments=run.environments))
        for run in runs
    ]
    first, *others = pages
    if not others:
        return html.render(first)
    sections = [
        replace(
            section,
            title=f"{each.title}: {section.title}",
            nodes=(Note(line(f"Run {each.run_id}")), *section.nodes),
        )
        for each in pages
        for section in each.sections
    ]
    return html.render(Page(f"{len(pages)} runs", ", ".join(each.run_id for each in pages), tuple(sections)))

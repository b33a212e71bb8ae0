"""Runs for other programs: JSON, CSV, Markdown, Parquet, HTML.

JSON is the whole result document. CSV and Parquet are the raw figures in long form, one row for each trial
and metric (failed trials have one row without a metric), as every data tool likes to read them. Markdown is
the summary, to be pasted into an issue or a README.
"""

import csv
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from guestmark.core.errors import GuestmarkError
from guestmark.core.model import CellStatus, Metric
from guestmark.ledger.model import StoredRun
from guestmark.report import figures, nested
from guestmark.report.backends import backends
from guestmark.report.document import clean, result_document, timestamp
from guestmark.report.export_format import Format
from guestmark.report.terminal import durability
from guestmark.report.then import Side, sides
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse
from guestmark.stats.compare import label

COLUMNS = (
    "run", "workload", "cell", "platform", "baseline", "null_of", "block", "order", "status", "reason",
    "metric", "unit", "better", "value", "iterations", "started_at", "duration_s",
)  # fmt: skip
FACTOR = "factor_"  # prefix of the columns of factors, which follow `platform`


def render(run: StoredRun, form: Format, analysis: Analysis | None = None) -> bytes:
    """The run in this format; text is UTF-8 and ends with a line feed."""
    form = Format(form)
    if form is Format.CSV:
        return _csv(run).encode()
    if form is Format.PARQUET:
        return _parquet(run)
    found = analysis or analyse(run.plan, run.trials, run.unusable)
    if form is Format.MARKDOWN:
        return _markdown(run, found).encode()
    if form is Format.HTML:
        from guestmark.report.html import page

        return page(run, found).encode()
    document = result_document(run, found)
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write(file: Path, data: bytes) -> None:
    """Writes `data` to `file`, all of it or nothing: an older file is replaced only by a complete one.

    Raises `GuestmarkError` when that cannot be done.
    """
    try:
        if file.exists() and not file.is_file():  # a pipe or a terminal cannot be replaced
            file.write_bytes(data)
            return
        target = file.resolve()
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        with tempfile.NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as stream:
            try:
                stream.write(data)
                stream.flush()
                os.fchmod(stream.fileno(), mode)
                Path(stream.name).replace(target)
            except BaseException:
                Path(stream.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise GuestmarkError(
            f"{file} cannot be written: {error.strerror or error}.",
            hint="The run is in the ledger all the same: guestmark export writes it again.",
        ) from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def trial_rows(run: StoredRun) -> list[dict[str, Any]]:
    """The long form: one dict a trial and metric, with the columns `columns(run)`; missing values
    are None.
    """
    cells = {cell.id: cell for cell in run.plan.cells}
    rows = []
    for trial in run.trials:
        cell = cells.get(trial.cell_id)
        if cell is None:
            continue
        common = {
            "run": run.id,
            "workload": cell.workload.label or cell.workload.name,
            "cell": cell.id,
            "platform": cell.platform,
            **{FACTOR + name: cell.factors.get(name) for name in _factors(run)},
            "baseline": cell.baseline,
            "null_of": cell.null_of,
            "block": trial.block,
            "order": trial.order,
            "status": trial.status.value,
            "reason": trial.reason or None,
            "started_at": timestamp(trial.started_at),
            "duration_s": trial.duration_s,
        }
        if not trial.measurements:
            rows.append(common)
        rows += [
            common
            | {
                "metric": one.metric.name,
                "unit": one.metric.unit,
                "better": one.metric.better.value,
                "value": one.value,
                "iterations": len(one.iterations),
            }
            for one in trial.measurements
        ]
    names = columns(run)
    return [{name: clean(row.get(name)) for name in names} for row in rows]


def columns(run: StoredRun) -> list[str]:
    """Names of the long form's columns, in order."""
    at = COLUMNS.index("platform") + 1
    return [*COLUMNS[:at], *(FACTOR + name for name in _factors(run)), *COLUMNS[at:]]


def _factors(run: StoredRun) -> list[str]:
    return list(dict.fromkeys(name for cell in run.plan.cells for name in cell.factors))


def _csv(run: StoredRun) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns(run), lineterminator="\n")
    writer.writeheader()
    for row in trial_rows(run):
        writer.writerow(
            {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}
        )
    return out.getvalue()


def _parquet(run: StoredRun) -> bytes:
    import polars

    kinds: dict[str, Any] = dict.fromkeys(columns(run), polars.String)
    kinds |= dict.fromkeys(("block", "order", "iterations"), polars.Int64)
    kinds |= {"baseline": polars.Boolean, "value": polars.Float64, "duration_s": polars.Float64}
    out = io.BytesIO()
    polars.DataFrame(trial_rows(run), schema=kinds).write_parquet(out)
    return out.getvalue()


# --- Markdown -----------------------------------------------------------------------------------------------


def _markdown(run: StoredRun, analysis: Analysis) -> str:
    parts = []
    for workload in analysis.workloads:
        parts.append(f"`{_code(workload.title)}`")
        if workload.metrics:
            parts.append("\n".join(_markdown_table(workload)))
        for side in sides(workload, run.plan):
            parts += [
                _escape(side.title),
                "\n".join(_markdown_then(side)),
                _escape(". ".join(side.small_print)),
            ]
        troubles = [result for result in workload.cells if result.status is not CellStatus.OK]
        if troubles:
            parts.append("\n".join(f"- {_escape(_trouble(result))}" for result in troubles))
    if rows := nested.table(analysis):
        table = [
            _row(list(nested.HEADING)),
            "| :-- | :-- | --: | --: | :-- |",
            *(_row(list(row)) for row in rows),
        ]
        parts += [nested.TITLE, "\n".join(table)]
    if lines := backends(analysis):
        parts += [lines[0].plain, "\n".join(f"- {_escape(line.plain)}" for line in lines[1:])]
    floors = [
        f", noise floor {figures.percent(workload.noise_floors[workload.metrics[0].name])}"
        for workload in analysis.workloads
        if workload.metrics and workload.metrics[0].name in workload.noise_floors
    ]
    said = f"{analysis.blocks} blocks, {analysis.trials} trials ({analysis.failed} failed), seed {run.seed}"
    floor = floors[0] if len(floors) == 1 else ""
    parts.append(f"Run {run.id}: {said}{floor}. Means and ratios with 95 % intervals.")
    return "\n\n".join(parts) + "\n"


def _markdown_then(side: Side) -> list[str]:
    lines = [_row(["cell", *(column[0] for column in side.numbers)])]
    lines.append("| :-- |" + " --: |" * len(side.numbers))
    for row, pair in enumerate(side.pairs, start=1):
        lines.append(_row([pair.result.cell.id, *(column[row].strip() for column in side.numbers)]))
    return lines


def _trouble(result: CellResult) -> str:
    return f"{result.cell.id}: {result.status.value} – {result.reason}"


def _markdown_table(workload: WorkloadResult) -> list[str]:
    units = {
        metric.name: figures.table_unit(
            metric.unit,
            [result.summary[metric.name].mean for result in workload.shown if metric.name in result.summary],
        )
        for metric in workload.metrics
    }
    first, others = workload.metrics[0], workload.metrics[1:]
    baseline = workload.baseline.cell.id if workload.baseline else ""
    heads = ["cell", figures.heading(first, units[first.name]), f"vs {baseline}", "verdict"]
    durable = [durability(result) for result in workload.shown]
    heads += ["durable"] if any(durable) else []
    heads += [figures.heading(metric, units[metric.name]) for metric in others]
    lines = [_row(heads), "| :-- | --: | --: | :-- |" + " :-- |" * any(durable) + " --: |" * len(others)]
    for result, reached in zip(workload.shown, durable, strict=True):
        comparison = result.comparison.get(first.name)
        against = ""
        if comparison is not None and comparison.ratio is not None:
            against = figures.ratio(comparison.ratio, comparison.ci)
        verdict = "" if comparison is None else label(comparison.verdict, first)
        cells = [
            result.cell.id,
            _estimate(result, first, units[first.name]),
            "baseline" if result.cell.baseline else against,
            verdict,
            *([reached] if any(durable) else []),
        ]
        cells += [_estimate(result, metric, units[metric.name]) for metric in others]
        lines.append(_row(cells))
    return lines


def _estimate(result: CellResult, metric: Metric, unit: figures.Unit) -> str:
    summary = result.summary.get(metric.name)
    if summary is None:
        return result.status.value if result.status is not CellStatus.OK else "–"
    mean, half = figures.estimate(summary.mean, summary.ci, unit)
    return f"{mean} ± {half}" if half else mean


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    """Text that cannot break out of a table or become markup."""
    flat = " ".join(str(clean(text)).split())
    for character in "\\|*`<":
        flat = flat.replace(character, "\\" + character)
    return flat


def _code(text: str) -> str:
    return " ".join(str(clean(text)).split()).replace("`", "'")

"""The long form of a run, for CSV and Parquet: one row for each trial and metric.

A failed trial has one row without a metric. Each row holds the values of all iterations, and its cell's verdict.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from guestmark.core.metric import find_measurement
from guestmark.core.model import Cell, Trial
from guestmark.core.own_program import install_extra
from guestmark.ledger.model import StoredRun
from guestmark.page.json_text import make_strict_json
from guestmark.page.names import list_factor_names
from guestmark.page.text import escape_for_csv
from guestmark.report.document import format_timestamp
from guestmark.report.sections import validity
from guestmark.stats.analysis import Analysis, CellResult, analyse_run
from guestmark.stats.compare import Estimand, Verdict

if TYPE_CHECKING:
    import polars

COLUMNS = (
    "run", "workload", "cell", "platform", "baseline", "null_of", "block", "order", "status", "reason",
    "metric", "unit", "better", "value", "iterations", "started_at", "duration_s", "verdict", "doubts",
)  # fmt: skip
# Columns with the values of all iterations, in order; in CSV they are separated by spaces.
ITERATION_COLUMNS = ("warmup_values", "iteration_values")
_ESTIMATES = {
    Estimand.TYPICAL: "ratio",
    Estimand.TOTAL: "ratio",
    Estimand.SLOW: "difference",
    Estimand.FIRST: "ratio",
}


def _yield_answer_columns() -> Iterator[str]:
    for estimand, what in _ESTIMATES.items():
        for end in (what, "low", "high", "verdict"):
            yield f"{estimand}_{end}"


ANSWER_COLUMNS = tuple(_yield_answer_columns())
# Prefix of the columns of factors, which follow `platform`.
FACTOR_PREFIX = "factor_"
_Row = dict[str, Any]


def list_column_names(run: StoredRun) -> list[str]:
    """Return the names of the long form's columns, in order."""
    at = COLUMNS.index("platform") + 1
    return [
        *COLUMNS[:at],
        *(FACTOR_PREFIX + name for name in _list_factor_names(run)),
        *COLUMNS[at:],
        *ITERATION_COLUMNS,
        *ANSWER_COLUMNS,
    ]


def make_trial_rows(run: StoredRun, analysis: Analysis | None = None) -> list[_Row]:
    """Return a dict for each trial and metric, with the columns `list_column_names(run)`; missing values are None.

    `verdict` is the verdict on the cell and metric over all blocks; `doubts` names the findings that withdraw it.
    """
    found = analysis or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    outcomes, doubts = _find_outcomes(found), validity.name_doubts(found)
    cells = {cell.id: cell for cell in run.plan.cells}
    rows = []
    for trial in run.trials:
        cell = cells.get(trial.cell_id)
        if cell is None:
            continue
        common = _make_trial_columns(run, cell, trial)
        if not trial.measurements:
            rows.append(common)
        for measurement in trial.measurements:
            metric = measurement.metric
            own = {
                "metric": metric.name,
                "unit": metric.unit,
                "better": metric.better.value,
                "value": measurement.value,
                "iterations": len(measurement.iterations),
                "warmup_values": _list_warmup_values(trial, metric.name),
                "iteration_values": list(measurement.iterations),
                "doubts": doubts.get(cell.id),
            }
            rows.append(common | own | outcomes.get((cell.id, metric.name), {}))
    names = list_column_names(run)
    whole_rows = []
    for row in rows:
        whole_rows.append({name: make_strict_json(row.get(name)) for name in names})
    return whole_rows


def _make_trial_columns(run: StoredRun, cell: Cell, trial: Trial) -> _Row:
    return {
        "run": run.id,
        "workload": cell.workload.label or cell.workload.name,
        "cell": cell.id,
        "platform": str(cell.platform),
        **{FACTOR_PREFIX + name: cell.factors.get(name) for name in _list_factor_names(run)},
        "baseline": cell.baseline,
        "null_of": cell.null_of,
        "block": trial.block,
        "order": trial.order,
        "status": trial.status.value,
        "reason": trial.reason or None,
        "started_at": format_timestamp(trial.started_at),
        "duration_s": trial.duration_s,
    }


def _list_factor_names(run: StoredRun) -> list[str]:
    return list_factor_names(run.plan.cells)


def _list_warmup_values(trial: Trial, metric: str) -> list[float]:
    measurement = find_measurement(trial.warmups, metric)
    return [] if measurement is None else list(measurement.iterations)


def _find_outcomes(analysis: Analysis) -> Mapping[tuple[str, str], _Row]:
    """Return verdict and estimates by cell and metric."""
    outcomes = {}
    for workload in analysis.workloads:
        for result in workload.cells:
            for metric in workload.metrics:
                comparison = result.comparison.get(metric.name)
                row: _Row = {"verdict": comparison.verdict.value if comparison else None}
                primary = metric == workload.metrics[0]
                row |= _make_estimate_columns(result, metric.name, primary=primary)
                outcomes[result.cell.id, metric.name] = row
    return outcomes


def _make_estimate_columns(result: CellResult, metric: str, *, primary: bool) -> _Row:
    """Return the typical run's ratio, interval and verdict; of the primary metric also the other questions' answers."""
    answers = result.answers if primary else None
    comparisons = {Estimand.TYPICAL: result.comparison.get(metric)}
    row: _Row = {}
    if answers is not None:
        comparisons |= {Estimand.TOTAL: answers.total, Estimand.FIRST: answers.first}
        if (slow := answers.slow) is not None:
            row |= _name_estimate(Estimand.SLOW, slow.difference, slow.ci, slow.verdict)
    for estimand, comparison in comparisons.items():
        if comparison is not None:
            row |= _name_estimate(estimand, comparison.ratio, comparison.ci, comparison.verdict)
    return row


def _name_estimate(
    estimand: Estimand, value: float | None, ci: tuple[float, float] | None, verdict: Verdict
) -> _Row:
    low, high = ci or (None, None)
    names = (name for name in ANSWER_COLUMNS if name.startswith(f"{estimand}_"))
    return dict(zip(names, (value, low, high, verdict.value), strict=True))


def make_csv(run: StoredRun, analysis: Analysis) -> str:
    """Return the long form as CSV with a heading."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list_column_names(run)
    writer.writerow(map(escape_for_csv, names))
    for row in make_trial_rows(run, analysis):
        writer.writerow(_format_csv_cell(row.get(name)) for name in names)
    return out.getvalue()


def _format_csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join("" if number is None else repr(number) for number in value)
    return str(value).lower() if isinstance(value, bool) else escape_for_csv(value)


def make_frame(run: StoredRun, analysis: Analysis) -> polars.DataFrame:
    """Return the long form as a data frame, every column with its type."""
    install_extra("polars", "frames", "data frames and Parquet")
    # Polars is an optional dependency; the line above has installed it if it was missing.
    import polars

    types: dict[str, Any] = dict.fromkeys(list_column_names(run), polars.String)
    types |= dict.fromkeys(("block", "order", "iterations"), polars.Int64)
    types |= {"baseline": polars.Boolean, "value": polars.Float64, "duration_s": polars.Float64}
    types |= dict.fromkeys(ITERATION_COLUMNS, polars.List(polars.Float64))
    types |= dict.fromkeys((name for name in ANSWER_COLUMNS if not name.endswith("verdict")), polars.Float64)
    return polars.DataFrame(make_trial_rows(run, analysis), schema=types)


def make_parquet(run: StoredRun, analysis: Analysis) -> bytes:
    """Return the long form as a Parquet file."""
    out = io.BytesIO()
    make_frame(run, analysis).write_parquet(out)
    return out.getvalue()

"""How the runs of the cells differ: typical run, total, slow runs and first run, each with its own verdict."""

from collections.abc import Sequence

from guestmark.core.rare import SLOW
from guestmark.page import figures
from guestmark.page.names import name_in_sentences, name_rows
from guestmark.page.tables import Align, Cell, Column, Row, Table, TableBuilder, make_figure_cell
from guestmark.page.text import Inline, Span, Tone, line
from guestmark.report.sections.verdict_words import LEGEND, choose_verdict_tone, mark_verdict
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.cell_answers import Answers, SlowComparison
from guestmark.stats.compare import Comparison
from guestmark.stats.estimands import find_median_first_run
from guestmark.stats.sensitivity import is_informative_about_slow_runs
from guestmark.stats.tails import CellRuns
from guestmark.stats.total import LARGEST_EVENT

_RATIO = (Align.POINT, Align.LEFT, Align.LEFT)  # ×1.05 [1.04, 1.06] *
_TOTALS = "total: the cost of all runs together; the details show how far off it could be if rare events were missed"
_LEGEND = (
    f"slow runs: the share of runs over {SLOW:g} times what is normal for both, minus the baseline's share"
)
_RUNS_COLUMNS = (
    Column("typical", (Align.POINT,)),
    Column("mean", (Align.POINT,)),
    Column("95 % within", (Align.POINT,)),
    Column("slowest", (Align.POINT,)),
    Column("slow", (Align.RIGHT,)),
    Column("over twice", (Align.RIGHT,)),
)
_Answered = Sequence[tuple[CellResult, Answers]]


def make_tables(workload: WorkloadResult, *, details: bool) -> list[Table]:
    """Return the four answers of each cell, and the figures behind them.

    Without `details` only the first table, and only if it says more than the typical run does.
    """
    answered = []
    for result in workload.shown_cells:
        answers = result.answers
        if answers is not None and (
            _find_known_total(answers) or _find_known_slow_runs(answers) or answers.first
        ):
            answered.append((result, answers))
    if not answered or not (details or any(answers.differing_questions for _, answers in answered)):
        return []
    tables = [_make_answers_table(workload, answered)]
    if details:
        tables += _make_runs_tables(workload, answered)
    return tables


def _make_answers_table(workload: WorkloadResult, answered: _Answered) -> Table:
    table = TableBuilder(*name_rows(workload, [result for result, _ in answered]))
    table.add("typical run", [_make_judged_ratio_cell(answers.typical) for _, answers in answered], _RATIO)
    totals = [_find_known_total(answers) for _, answers in answered]
    if any(totals):
        table.add("total", map(_make_judged_ratio_cell, totals), _RATIO)
    slow_runs = [_find_known_slow_runs(answers) for _, answers in answered]
    if any(slow_runs):
        table.add("slow runs, points", map(_make_difference_cell, slow_runs), _RATIO)
    firsts = [answers.first for _, answers in answered]
    if any(firsts):
        table.add("first run", map(_make_judged_ratio_cell, firsts), _RATIO)
    against = ""
    if workload.baseline is not None:
        against = f", against {name_in_sentences(workload)[workload.baseline.cell.id]}"
    legend = [line(LEGEND), line(_LEGEND)]
    if any(totals):
        legend.append(line(_TOTALS))
    return table.build(
        f"How the runs of {workload.title} differ{against}",
        heading=f"How the runs differ{against}",
        legend=tuple(legend),
        divisible=True,
    )


def _find_known_total(answers: Answers) -> Comparison | None:
    total = answers.total
    return total if total is not None and total.has_enough_blocks else None


def _find_known_slow_runs(answers: Answers) -> SlowComparison | None:
    slow = answers.slow
    return slow if slow is not None and is_informative_about_slow_runs(slow) else None


def _make_judged_ratio_cell(comparison: Comparison | None) -> Cell:
    if comparison is None or comparison.ratio is None:
        return make_figure_cell("–")
    return _make_judged_cell(figures.format_ratio_pieces(comparison.ratio, comparison.ci), comparison)


def _make_difference_cell(slow: SlowComparison | None) -> Cell:
    if slow is None:
        return make_figure_cell("–")
    low, middle, high = (100 * share for share in (slow.ci[0], slow.difference, slow.ci[1]))
    places = min(figures.count_decimals((high - low) / 2, middle), 1)
    sign = "+" if middle > 0 else ""
    interval = f"[{figures.format_number(low, places)}, {figures.format_number(high, places)}]"
    return _make_judged_cell((f"{sign}{figures.format_number(middle, places)}", interval), slow)


def _make_judged_cell(pieces: Sequence[str], comparison: Comparison | SlowComparison) -> Cell:
    return make_figure_cell(*pieces, mark_verdict(comparison), last=choose_verdict_tone(comparison))


# --- the figures behind them ------------------------------------------------------------------------------------------


def _make_runs_tables(workload: WorkloadResult, answered: _Answered) -> list[Table]:
    """Return a table of all measured runs of each cell, and of the total's range if events were missed."""
    slow_runs = [answers.slow for _, answers in answered if answers.slow is not None]
    if not slow_runs:
        return []
    described = _list_described_runs(workload, answered, slow_runs[0])
    metric = workload.metrics[0]
    unit = figures.choose_table_unit(metric.unit, [runs.typical for _, runs, _ in described])
    headings, names = name_rows(workload, [result for result, *_ in described])
    firsts = [find_median_first_run(metric.name, result.trials) for result, *_ in described]
    columns = [*_RUNS_COLUMNS]
    has_firsts = any(first is not None for first in firsts)
    if has_firsts:
        columns.append(Column("first run", (Align.POINT,)))
    columns.append(Column("total, pessimistic"))
    rows = []
    for name, (result, runs, answers), first in zip(names, described, firsts, strict=True):
        cells = _list_runs_cells(runs, unit)
        if has_firsts:
            cells.append(_make_amount_cell(first, unit))
        cells.append(_make_pessimistic_cell(answers))
        rows.append(Row(name, tuple(cells), strong=result.cell.baseline))
    in_unit = figures.format_column_heading(metric, unit)
    return [
        Table(
            f"All runs of {workload.title}, {in_unit}",
            headings,
            tuple(columns),
            tuple(rows),
            divisible=True,
            legend=_make_runs_legend(slow_runs),
            heading=f"Runs: {in_unit}",
        )
    ]


def _list_runs_cells(runs: CellRuns, unit: figures.Unit) -> list[Cell]:
    return [
        _make_amount_cell(runs.typical, unit),
        _make_amount_cell(runs.total, unit),
        _make_amount_cell(runs.p95, unit),
        _make_amount_cell(runs.worst, unit),
        make_figure_cell(f"{runs.slow} of {runs.iterations}"),
        make_figure_cell(str(runs.over_twice)),
    ]


def _list_described_runs(
    workload: WorkloadResult, answered: _Answered, first: SlowComparison
) -> list[tuple[CellResult, CellRuns, Answers | None]]:
    rows: list[tuple[CellResult, CellRuns, Answers | None]] = []
    for result, answers in answered:
        if answers.slow is not None:
            rows.append((result, answers.slow.cell, answers))
    # The baseline is not compared with itself; its runs are described in the other cells' comparisons.
    baseline = workload.baseline
    if baseline is not None and baseline not in (result for result, *_ in rows):
        rows.insert(0, (baseline, first.baseline, None))
    return rows


def _make_runs_legend(slow_runs: Sequence[SlowComparison]) -> tuple[Inline, ...]:
    fewest = min(slow_runs, key=lambda slow: slow.n)
    starts = figures.format_percent(fewest.unseen.machines)
    runs = figures.format_percent(fewest.unseen.iterations)
    missed = (
        f"{fewest.n} starts may miss events that affect fewer than {starts} of starts or, if each run is affected "
        f"independently, fewer than {runs} of runs"
    )
    pessimistic = (
        f"total, pessimistic: as if starts {LARGEST_EVENT:g} times as slow had been missed that often"
    )
    return ((Span(missed, Tone.SOFT),), (Span(pessimistic, Tone.SOFT),))


def _make_amount_cell(value: float | None, unit: figures.Unit) -> Cell:
    if value is None:
        return make_figure_cell("–")
    return make_figure_cell(figures.format_three_digits(value / unit.size))


def _make_pessimistic_cell(answers: Answers | None) -> Cell:
    if answers is None or answers.total is None or answers.total.unseen_ci is None:
        return Cell()
    low, high = answers.total.unseen_ci
    places = figures.count_ratio_decimals(low, (low, high))
    return make_figure_cell(
        f"×{figures.format_number(low, places)} to ×{figures.format_number(high, places)}"
    )

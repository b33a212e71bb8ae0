"""The best of several cells, in a sentence; a table if several rankings share their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from guestmark.core.cell_levels import NESTED_WORDS
from guestmark.core.findings import Proof
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.sentence_names import name_apart, shorten_levels
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.sections.answer_words import (
    describe_forecast,
    format_ratio,
    list_few,
    name_row_durability,
    shorten_reason,
)
from guestmark.report.sections.nested import format_typical
from guestmark.report.sections.verdict_words import BOUNDED_LEGEND, MARKS, mark_verdict
from guestmark.stats.analysis import CellResult
from guestmark.stats.compare import Comparison, Verdict, label_verdict
from guestmark.stats.questions import Ranking, forecast_more_blocks

_MOST_NAMED = 6  # cells in one sentence
_SUPERLATIVES = {"faster": "fastest", "less": "least", "more": "most", "better": "best"}
RANKING_LEGEND = (
    f"{MARKS[Verdict.SLOWER]} behind the best   ≈ typical run alike   {BOUNDED_LEGEND}   ? not told apart"
)


def describe_ranking(ranking: Ranking, *, brief: bool) -> Inline:
    """Return which cell is best; in full also which are alike, which are behind, and which were left out."""
    where = f"{_describe_levels(ranking)}: " if ranking.levels else ""
    best, left_out = ranking.best, _describe_left_out(ranking)
    if best is None:
        return line(f"{where}not answered. {left_out}")
    names = _name_ranked_cells(ranking)
    name = names[best.cell.id]
    if brief and len(ranking.cells) > 1:
        name = shorten_levels(name, best.cell)
    shown = f"{name} ({' '.join(format_typical(best, ranking.metric))})"
    if len(ranking.cells) == 1:
        alone = "qualifies" if ranking.excluded else "was measured"
        sentence = f"{where}only {shown} {alone}, so there is nothing to compare it with."
        return line(_join_sentences(sentence, left_out))
    superlative = Claim.BEST.format(superlative=_SUPERLATIVES[label_verdict(Verdict.FASTER, ranking.metric)])
    tone = Tone.FASTER if ranking.answered else Tone.UNCLEAR
    if brief:
        lead = superlative
        if ranking.contenders:
            lead = f" leads; {_count_contenders(ranking)}"
        return spans(where, Span(shown, tone), lead)
    verb = superlative if ranking.is_best_shown else " leads"
    claims = "; ".join([verb, *_describe_rest_of_ranking(ranking, names)])
    text = _join_sentences(f"{claims}.{_describe_doubt(ranking)}", left_out)
    return spans(where, Span(shown, tone), text)


def _count_contenders(ranking: Ranking) -> str:
    """Return how many cells may be as good as the best one: `2 within 6 %, 1 open`."""
    still_open = ranking.open_contenders
    near = [result for result in ranking.contenders if result not in still_open]
    parts = []
    if near:
        most = _find_largest_factor([ranking.against_best[result.cell.id] for result in near])
        parts.append(f"{len(near)} within {figures.format_percent(most - 1)}")
    if still_open:
        parts.append(f"{len(still_open)} open")
    return ", ".join(parts)


def _find_largest_factor(comparisons: Iterable[Comparison]) -> float:
    """Return the factor, up or down, that the ends of all intervals stay within."""
    factors = []
    for comparison in comparisons:
        for end in comparison.ci or ():
            factors.append(max(end, 1 / end))
    return max(factors, default=1.0)


def _name_ranked_cells(ranking: Ranking) -> dict[str, str]:
    return name_apart([*ranking.cells, *ranking.excluded, *ranking.missing])


def _describe_levels(ranking: Ranking) -> str:
    """Return the levels that the ranking is for: `sysbench on tcg`, `upload, nothing written (nested)`."""
    *names, last = ranking.levels
    if not names:
        return last
    if last in NESTED_WORDS.values():
        where = f" ({last})"
    elif len(names) == 1:
        where = f" on {last}"
    else:
        where = f", {last}"
    return f"{', '.join(names)}{where}"


def _describe_rest_of_ranking(ranking: Ranking, names: Mapping[str, str]) -> list[str]:
    alike: list[CellResult] = []
    unclear: list[CellResult] = []
    for result in ranking.contenders:
        if ranking.is_alike(result):
            alike.append(result)
        else:
            unclear.append(result)
    beaten: list[CellResult] = []
    others: list[CellResult] = []
    for result in ranking.cells:
        if result is ranking.best or result in ranking.contenders:
            continue
        # The best cell is found by comparing pairs, so it need not have beaten every cell that another one has beaten.
        if ranking.verdict(result) is Verdict.SLOWER:
            beaten.append(result)
        else:
            others.append(result)
    groups = (
        ("typical run like it", alike),
        ("not told apart from it", unclear),
        ("behind it", beaten),
        ("behind another one", others),
    )
    return [f"{title}: {_format_cell_list(results, names, ranking)}" for title, results in groups if results]


def _format_cell_list(results: Sequence[CellResult], names: Mapping[str, str], ranking: Ranking) -> str:
    shown = []
    for result in results[:_MOST_NAMED]:
        text = names[result.cell.id]
        comparison = ranking.against_best.get(result.cell.id)
        if comparison is not None and comparison.ratio is not None:
            text += f" {format_ratio(comparison)}"
        shown.append(text)
    if len(results) > _MOST_NAMED:
        shown.append(f"{len(results) - _MOST_NAMED} more")
    return ", ".join(shown)


def _describe_doubt(ranking: Ranking) -> str:
    """Return why contenders are not told apart from the best, and how many more blocks would help."""
    unclear = []
    for result in ranking.contenders:
        if result.cell.id in ranking.against_best and not ranking.is_alike(result):
            unclear.append(ranking.against_best[result.cell.id])
    if not unclear:
        return ""
    reasons = ", ".join(dict.fromkeys(comparison.reason for comparison in unclear if comparison.reason))
    helps = describe_forecast(_forecast_blocks_for_all(unclear))
    return f" Reason: {reasons or 'the intervals are too wide'}{helps}."


def _forecast_blocks_for_all(comparisons: Sequence[Comparison]) -> int | None:
    """Return how many more blocks would settle all of the comparisons; None if that is unknown for one."""
    most = 0
    for comparison in comparisons:
        blocks = forecast_more_blocks(comparison)
        if not blocks:
            return None
        most = max(most, blocks)
    return most


def _describe_left_out(ranking: Ranking) -> str:
    """Return which cells were not measured, or are not what was asked for."""
    names = _name_ranked_cells(ranking)
    sentences = []
    if ranking.excluded:
        groups = _group_names(ranking.excluded, names, name_row_durability)
        listed = "; ".join(f"{word}: {list_few(group)}" for word, group in groups.items())
        sentences.append(f"Left out: {listed}{_note_if_power_not_cut(ranking.excluded)}.")
    if ranking.missing:
        parts = []
        for reason, group in _group_names(ranking.missing, names, shorten_reason).items():
            part = list_few(group)
            if reason:
                part += f" ({reason})"
            parts.append(part)
        sentences.append(f"Not measured: {'; '.join(parts)}.")
    return " ".join(sentences)


def _group_names(
    results: Iterable[CellResult], names: Mapping[str, str], key: Callable[[CellResult], str]
) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(names[result.cell.id])
    return groups


def _note_if_power_not_cut(results: Iterable[CellResult]) -> str:
    for result in results:
        if any(trial.facts.find_fact(Proof) for trial in result.trials):
            return ""
    return " (the power was not cut in this run; --prove cuts it)"


def _join_sentences(sentence: str, more: str) -> str:
    return f"{sentence} {more}" if more else sentence


def make_ranking_table(rankings: Sequence[Ranking]) -> Table | None:
    """Return a column for each ranking; None unless they share at least two names of cells and their metric."""
    names = [name_apart(ranking.cells) for ranking in rankings]
    # How many rankings have a row; only those that share cells are worth a common table.
    occurrences = Counter(chain.from_iterable(of_ranking.values() for of_ranking in names))
    shared = [name for name, count in occurrences.items() if count > 1]
    if len(shared) < 2 or len({ranking.metric for ranking in rankings}) > 1:
        return None
    metric = rankings[0].metric
    typical = []
    for ranking in rankings:
        typical += [result.summary[metric.name].typical for result in ranking.cells]
    unit = figures.choose_table_unit(metric.unit, typical)
    cells = {}
    columns = []
    for ranking, of_ranking in zip(rankings, names, strict=True):
        heading = _describe_levels(ranking)
        columns.append(Column(heading, (Align.POINT, Align.LEFT)))
        for result in ranking.cells:
            cells[of_ranking[result.cell.id], len(columns)] = _make_ranked_cell(result, ranking, unit)
    none = make_figure_cell("–", "")
    body = []
    for name in occurrences:
        row = tuple(cells.get((name, at), none) for at in range(1, len(columns) + 1))
        body.append(Row(RowName((name,)), row))
    heading = figures.format_column_heading(metric, unit)
    return Table("the same in figures", (heading,), tuple(columns), tuple(body))


def _make_ranked_cell(result: CellResult, ranking: Ranking, unit: figures.Unit) -> Cell:
    summary = result.summary[ranking.metric.name]
    shown, _ = figures.format_estimate(summary.typical, summary.typical_ci, unit)
    if result is ranking.best:
        return make_figure_cell(shown, "best")
    if ranking.is_alike(result):
        return make_figure_cell(shown, "≈")
    comparison = ranking.against_best.get(result.cell.id)
    if comparison is None:
        return make_figure_cell(shown, "")
    return make_figure_cell(shown, mark_verdict(comparison))

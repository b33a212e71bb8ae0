"""Questions of a plan and the answers of its run, in sentences; a table if several rankings share their cells.

Every kind of answer has a full form, and a brief one for the screen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from guestmark.core.cell_levels import NESTED_WORDS
from guestmark.core.findings import Durability, Proof, Proven
from guestmark.core.model import CellStatus, QuestionKind
from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.json_text import list_interval
from guestmark.page.names import name_across_workloads
from guestmark.page.nodes import Bullets, Node, Note, Paragraph
from guestmark.page.sentence_names import PairNames, name_apart, shorten_levels
from guestmark.page.tables import (
    Align,
    Cell,
    Column,
    Row,
    RowName,
    Table,
    make_figure_cell,
    make_grid_table,
    make_word_cell,
)
from guestmark.page.text import Inline, Span, Tone, join_plain_text, line, spans
from guestmark.report.sections.nested import format_typical
from guestmark.report.sections.verdict_words import (
    BOUNDED_LEGEND,
    LEGEND,
    MARKS,
    choose_verdict_tone,
    format_verdict,
    mark_verdict,
)
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import Comparison, Verdict, label_verdict
from guestmark.stats.durability import describe_row_durability, is_about_row
from guestmark.stats.published import Agreement, Conclusion, judge_agreement
from guestmark.stats.questions import (
    Breakdown,
    DurabilityGroup,
    Finding,
    PairAnswer,
    QuestionAnswer,
    Ranking,
    answer_plan_questions,
    forecast_more_blocks,
)
from guestmark.workloads.powercut.sections import describe_unsynced

_MOST_NAMED = 6  # cells in one sentence
_MOST_IN_LIST = 3  # of cells that were left out
_NARROW = 80  # columns
_MOST_LINES = 3  # of comparisons, in place of a table
# With more platforms beside each other, 80 columns leave no room for intervals.
_MOST_WITH_INTERVALS = 2
_SUPERLATIVES = {"faster": "fastest", "less": "least", "more": "most", "better": "best"}
_RANKING_LEGEND = (
    f"{MARKS[Verdict.SLOWER]} behind the best   ≈ typical run alike   {BOUNDED_LEGEND}   ? not told apart"
)
_LEAST_SHARE = 0.005  # a smaller share would be shown as 0 %
_UNIT_SUFFIXES = ("_s", "_ns", "_bytes")
_OUT_OF_TIME = "time ran out; guestmark resume --time-limit 5m continues the run"
_UNANSWERED = {
    QuestionKind.BEST: "no cell of this run belongs to the question",
    QuestionKind.COMPARE: "no two cells of this run differ only in that",
    QuestionKind.PARTS: "no cell has values for two of these parts",
    QuestionKind.DURABILITY: "flushes were not checked; --prove checks them by cutting the power",
}
# With more rows than this, only the figures are printed.
_SPELLED_OUT = 4
_DURABILITY_MEANINGS = {
    Durability.SYNCED_PART_PROVEN: "data that was never synced may be lost",
    Durability.REACHED: "this host's kernel was asked to flush; --prove cuts the power",
    Durability.CLAIMED: "by the hypervisor's own count; --prove cuts the power",
    Durability.LOST: "flushes do not reach the disk",
    Durability.MEMORY: "lost with the power, flushed or not",
    Durability.NOTHING: "the workload asked for no flush",
}
_DURABILITY_TONES = {
    Durability.PROVEN: Tone.FASTER,
    Durability.LOST: Tone.SLOWER,
    Durability.MEMORY: Tone.SLOWER,
}
_AGREEMENTS = {
    Agreement.CONTAINED: Claim.PUBLISHED_AGREES.value,
    Agreement.POSSIBLE: "which these blocks do not exclude",
    Agreement.OTHER_FACTOR: Claim.PUBLISHED_FACTOR.value,
    Agreement.EXCLUDED: Claim.PUBLISHED_OUTSIDE.value,
}
_CONCLUSION_TONES = {
    Conclusion.HOLDS: Tone.FASTER,
    Conclusion.FAILS: Tone.SLOWER,
    Conclusion.OPEN: Tone.UNCLEAR,
}
_AnyFinding = TypeVar("_AnyFinding", bound=Finding)


def make_nodes(answers: Sequence[QuestionAnswer], *, brief: bool = False) -> list[Node]:
    """Return the sentences under each question, and a table of rankings that share cells; empty without questions.

    With `brief`, many comparisons become a table in place of sentences, and rankings have no table.
    """
    return list(chain.from_iterable(group_nodes(answers, brief=brief)))


def group_nodes(answers: Sequence[QuestionAnswer], *, brief: bool = False) -> list[list[Node]]:
    """Return the nodes of `make_nodes`, those of each question together, the question first."""
    if not brief:
        return [_make_full_nodes(answer) for answer in answers]
    groups: list[list[Node]] = []
    # The signs of comparisons are explained once, below the last of them.
    comparing = [answer for answer in answers if _has_only(answer, PairAnswer)]
    for answer in answers:
        if _has_only(answer, PairAnswer):
            groups.append(_make_brief_comparisons(answer, with_legend=answer is comparing[-1]))
        else:
            groups.append(_join_question(answer, _answer_sentences(answer, brief=True)))
    return groups


def make_document(analysis: Analysis) -> list[dict[str, Any]]:
    """Return questions and answers for the result document."""
    return [_make_answer_document(answer) for answer in answer_plan_questions(analysis)]


def _make_answer_document(answer: QuestionAnswer) -> dict[str, Any]:
    return {
        "ask": answer.question.ask,
        "wants": answer.question.wants.value,
        "answered": answer.answered,
        "answers": [_make_finding_document(finding) for finding in answer.findings],
        "sentences": [join_plain_text(sentence) for sentence in _answer_sentences(answer)],
    }


def _make_full_nodes(answer: QuestionAnswer) -> list[Node]:
    sentences = (*_answer_sentences(answer), *_describe_dropped(answer))
    nodes: list[Node] = [Bullets(line(answer.question.ask, Tone.STRONG), sentences)]
    rankings = [ranking for ranking in _select_findings(answer, Ranking) if ranking.cells]
    table = _make_ranking_table(rankings)
    if table is not None:
        nodes += [table, Note(line(_RANKING_LEGEND))]
    return nodes


def _join_question(answer: QuestionAnswer, sentences: Sequence[Inline]) -> list[Node]:
    """Return the question and its answers without blank lines; a single short answer goes on the question's line."""
    ask = answer.question.ask
    sentences = [*sentences, *_describe_dropped(answer)]
    if len(sentences) == 1 and len(ask) + len(join_plain_text(sentences[0])) < _NARROW:
        return [Paragraph(spans(f"{ask} ", *sentences[0]))]
    nodes: list[Node] = [Paragraph(line(ask))]
    for sentence in sentences:
        nodes.append(Paragraph(spans("  ", *sentence)))
    return nodes


def _describe_dropped(answer: QuestionAnswer) -> list[Inline]:
    """Return a sentence that names the cells for which there was no time; none if some time was left for all."""
    if not (answer.no_time and answer.findings):
        return []
    return [line(f"Not answered for lack of time: {_list_few(_list_cell_ids(answer.no_time))}.")]


def _list_cell_ids(results: Iterable[CellResult]) -> list[str]:
    return [result.cell.id for result in results]


def _has_only(answer: QuestionAnswer, kind: type[Finding]) -> bool:
    """Return whether there are findings, all of them of this kind."""
    return bool(answer.findings) and all(isinstance(finding, kind) for finding in answer.findings)


def _select_findings(answer: QuestionAnswer, kind: type[_AnyFinding]) -> list[_AnyFinding]:
    return [finding for finding in answer.findings if isinstance(finding, kind)]


def _answer_sentences(answer: QuestionAnswer, *, brief: bool = False) -> list[Inline]:
    """Return a sentence for each finding and one for the published conclusion; else why there is no answer."""
    if not answer.findings:
        reason = _OUT_OF_TIME if answer.no_time else _UNANSWERED[answer.question.wants]
        return [line(f"Not answered: {reason}.")]
    brief = brief and (_has_only(answer, Ranking) or _has_only(answer, Breakdown))
    names = _choose_pair_names(answer)
    short_names: Mapping[str, str] = {}
    if brief:
        breakdowns = _select_findings(answer, Breakdown)
        short_names = _name_breakdowns([breakdown.result for breakdown in breakdowns])
    sentences = []
    for finding in answer.findings:
        match finding:
            case Ranking():
                sentences.append(_describe_ranking(finding, brief=brief))
            case PairAnswer():
                sentences.append(_describe_pair(finding, names))
            case Breakdown():
                sentences.append(_describe_breakdown(finding, short_names.get(finding.result.cell.id)))
            case DurabilityGroup():
                sentences.append(_describe_durability(finding))
    if not brief:
        sentences += _describe_conclusion(answer, names)
    return sentences


# --- the best cell ------------------------------------------------------------------------------------------


def _name_breakdowns(results: Sequence[CellResult]) -> Mapping[str, str]:
    """Return short names by cell id, all with their platforms if the names would not be distinct without."""
    names = name_across_workloads(results)
    if len(set(names.values())) == len(names):
        return names
    return {result.cell.id: f"{names[result.cell.id]} {result.cell.platform}" for result in results}


def _describe_ranking(ranking: Ranking, *, brief: bool) -> Inline:
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
            text += f" {_format_ratio(comparison)}"
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
    helps = _describe_forecast(_forecast_blocks_for_all(unclear))
    return f" Reason: {reasons or 'the intervals are too wide'}{helps}."


def _forecast_blocks_for_all(comparisons: Sequence[Comparison]) -> int | None:
    """Return how many more blocks help with all of the comparisons; None if that is unknown for one of them."""
    most = 0
    for comparison in comparisons:
        blocks = forecast_more_blocks(comparison)
        if not blocks:
            return None
        most = max(most, blocks)
    return most


def _describe_forecast(blocks: int | None) -> str:
    return f"; about {format_count(blocks, 'more block')} would tell" if blocks else ""


def _describe_left_out(ranking: Ranking) -> str:
    """Return which cells were not measured, or are not what was asked for."""
    names = _name_ranked_cells(ranking)
    sentences = []
    if ranking.excluded:
        groups = _group_names(ranking.excluded, names, _describe_row_durability)
        listed = "; ".join(f"{word}: {_list_few(group)}" for word, group in groups.items())
        sentences.append(f"Left out: {listed}{_note_if_power_not_cut(ranking.excluded)}.")
    if ranking.missing:
        parts = []
        for reason, group in _group_names(ranking.missing, names, _shorten_reason).items():
            part = _list_few(group)
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


def _describe_row_durability(result: CellResult) -> str:
    return describe_row_durability(result) or "unknown"


def _shorten_reason(result: CellResult) -> str:
    """Return why a cell has no values, without the program's own words, which the report quotes elsewhere."""
    parts = result.reason.split(": ")
    if result.status in {CellStatus.FAILED, CellStatus.PARTIAL}:
        return ": ".join(parts[:2])
    return parts[0]


def _list_few(names: Sequence[str]) -> str:
    shown = list(names[:_MOST_IN_LIST])
    more = len(names) - _MOST_IN_LIST
    if more > 0:
        shown.append(f"{more} more")
    return ", ".join(shown)


def _make_ranking_table(rankings: Sequence[Ranking]) -> Table | None:
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


# --- pairs of cells -----------------------------------------------------------------------------------------


def _choose_pair_names(answer: QuestionAnswer) -> PairNames:
    firsts = [pair.first.cell for pair in _select_findings(answer, PairAnswer)]
    return PairNames(answer.question.compare.keys() | answer.question.against.keys(), firsts)


def _describe_pair(pair: PairAnswer, names: PairNames) -> Inline:
    first_name, second_name, common = names.name_pair(pair.first.cell, pair.second.cell)
    where = f"{common}: " if common else ""
    comparison = pair.comparison
    if comparison is None:
        lacking = _find_unmeasured_side(pair)
        if lacking is None:
            return line(
                f"{where}{first_name} against {second_name} is not answered: their values have no ratio yet."
            )
        why = f" ({_shorten_reason(lacking)})" if lacking.reason else ""
        return line(
            f"{where}{first_name} against {second_name} is not answered: {lacking.cell.id} was not measured{why}."
        )
    doubt = ""
    if comparison.is_open:
        doubt = f" ({comparison.reason}{_describe_forecast(forecast_more_blocks(comparison))})"
    return spans(
        f"{where}{first_name} is {_format_ratio(comparison)} of {second_name} in {figures.name_metric(pair.metric)}: ",
        Span(format_verdict(comparison, pair.metric), choose_verdict_tone(comparison)),
        f"{doubt}{_compare_with_published(comparison, pair.published)}.",
    )


def _find_unmeasured_side(pair: PairAnswer) -> CellResult | None:
    for result in (pair.first, pair.second):
        if pair.metric.name not in result.summary:
            return result
    return None


def _compare_with_published(comparison: Comparison, then: float | None) -> str:
    if then is None:
        return ""
    agreement = judge_agreement(comparison, then)
    if agreement is Agreement.UNKNOWN:
        return f"; published ×{then:.2g}, which one block can neither confirm nor exclude"
    return f"; published ×{then:.2g}, {_AGREEMENTS[agreement]}"


def _describe_conclusion(answer: QuestionAnswer, names: PairNames) -> list[Inline]:
    """Return whether a publication's conclusion holds; nothing if the question has none, or the run no cells for it."""
    places: dict[Conclusion, list[str]] = {}
    for pair in _select_findings(answer, PairAnswer):
        if pair.published is not None:
            _, _, common = names.name_pair(pair.first.cell, pair.second.cell)
            place = f"{common or pair.first.cell.id}{_describe_differing_factor(pair)}"
            places.setdefault(pair.conclusion, []).append(place)
    if not answer.question.conclusion or not places:
        return []
    parts: list[str | Span] = []
    for outcome in Conclusion:
        if outcome in places:
            parts.append("; " if parts else f"The published conclusion – {answer.question.conclusion} – ")
            parts += [Span(outcome.value, _CONCLUSION_TONES[outcome]), f" for {', '.join(places[outcome])}"]
    return [spans(*parts, ".")]


def _describe_differing_factor(pair: PairAnswer) -> str:
    """Return both ratios if the conclusion holds with another factor than the published one; else nothing."""
    comparison, then = pair.comparison, pair.published
    if comparison is None or then is None or pair.conclusion is not Conclusion.HOLDS:
        return ""
    if not comparison.is_ratio_excluded(then):
        return ""
    return f" (×{comparison.ratio:.2g}, published ×{then:.2g})"


def _make_brief_comparisons(answer: QuestionAnswer, *, with_legend: bool) -> list[Node]:
    """Return a table of ratios, a row for each kind of cell, a column for each platform; lines if there are few."""
    every = _select_findings(answer, PairAnswer)
    # Pairs that were not measured would only show dashes; the details list them.
    pairs = [pair for pair in every if _has_ratio(pair.comparison)] or every
    names = name_across_workloads([pair.first for pair in pairs])
    platforms = list(dict.fromkeys(str(pair.first.cell.platform) for pair in pairs))
    pieces: tuple[Align, ...] = (Align.POINT, Align.LEFT, Align.LEFT)
    if len(platforms) > _MOST_WITH_INTERVALS:
        pieces = pieces[:2]
    cells = {}
    for pair in pairs:
        at = (names[pair.first.cell.id], str(pair.first.cell.platform))
        cells[at] = _make_brief_ratio_cell(pair.comparison, len(pieces))
    conclusion = _describe_conclusion(answer, _choose_pair_names(answer))
    rows = list(dict.fromkeys(name for name, _ in cells))
    if len(rows) > _MOST_LINES:
        legend = (line(LEGEND),) if with_legend else ()
        table = make_grid_table(answer.question.ask, platforms, pieces, cells, legend)
        return [table, *map(Paragraph, [*conclusion, *_describe_dropped(answer)])]
    lines = []
    for name in rows:
        ratios = []
        for platform in platforms:
            if (name, platform) in cells:
                ratios.append(f"{platform} {cells[name, platform].text}")
        lines.append(line(f"{name}: {', '.join(ratios)}"))
    nodes = _join_question(answer, [*lines, *conclusion])
    if with_legend:
        nodes.append(Note(line(LEGEND)))
    return nodes


def _has_ratio(comparison: Comparison | None) -> bool:
    return comparison is not None and comparison.ratio is not None


def _make_brief_ratio_cell(comparison: Comparison | None, pieces: int) -> Cell:
    if comparison is None or comparison.ratio is None:
        return make_word_cell("–")
    number, *interval = figures.format_ratio_pieces(comparison.ratio, comparison.ci)
    return make_figure_cell(*(number, mark_verdict(comparison), *(interval or [""]))[:pieces])


def _format_ratio(comparison: Comparison) -> str:
    return figures.format_ratio(comparison.ratio or 1.0, comparison.ci)


# --- parts, and power cuts ----------------------------------------------------------------------------------


def _describe_breakdown(breakdown: Breakdown, short_name: str | None) -> Inline:
    """Return the shares of the parts; in full also which is the largest, and the total."""
    listed = []
    for metric, share in breakdown.shares:
        listed.append(f"{_format_part_name(metric.name)} {figures.format_percent(share)}")
    shares = ", ".join(listed)
    if breakdown.remaining_share >= _LEAST_SHARE:
        shares += f", neither {figures.format_percent(breakdown.remaining_share)}"
    if short_name is not None:
        return line(f"{short_name}: {shares}")
    largest, _ = breakdown.parts[0]
    name = breakdown.result.cell.id
    of_total = ""
    if largest.unit:
        unit = figures.choose_unit(largest.unit, [breakdown.total])
        of_total = f"of {figures.format_three_digits(breakdown.total / unit.size)} {unit.name}: "
    return line(
        f"{name}: the largest part of these runs is {_format_part_name(largest.name)} ({of_total}{shares})."
    )


def _format_part_name(metric: str) -> str:
    for suffix in _UNIT_SUFFIXES:
        metric = metric.removesuffix(suffix)
    return metric.replace("_", " ")


def _describe_durability(group: DurabilityGroup) -> Inline:
    losses = [_describe_losses(result) for result in group.results]
    remarks = [""] * len(losses)
    detail = ""
    if counts := _count_losses(group.results):
        remarks = [f" {count}" for count in counts]
        detail = " (crash states that lose acknowledged records)"
    elif not any(losses):
        if group.word in _DURABILITY_MEANINGS:
            detail = f" ({_DURABILITY_MEANINGS[group.word]})"
    elif len(set(losses)) == 1:
        each = "each: " if len(losses) > 1 else ""
        detail = f" ({each}{losses[0]})"
    else:
        for number, lost in enumerate(losses):
            if lost:
                remarks[number] = f" ({lost})"
    tone = _DURABILITY_TONES.get(group.word, Tone.UNCLEAR)
    cells = [f"{result.cell.id}{remark}" for result, remark in zip(group.results, remarks, strict=True)]
    return spans(Span(str(group.word), tone), f": {', '.join(cells)}{detail}.")


def _count_losses(results: Sequence[CellResult]) -> list[str]:
    """Return for each row how many of its crash states lose acknowledged records, such as `3 of 120`.

    Empty if there are few rows, which have room for a sentence each, or if one of them is about something else.
    """
    if len(results) <= _SPELLED_OUT:
        return []
    counts = []
    for result in results:
        proven = _find_proof(result)
        if proven is None or proven.syncs or proven.word.is_about_consistency:
            return []
        counts.append(f"{proven.losing} of {proven.states:,}")
    return counts


def _find_proof(result: CellResult) -> Proven | None:
    """Return the last proof about the row itself; None if its power was not cut."""
    for trial in reversed(result.trials):
        proof = trial.facts.find_fact(Proof)
        if proof is not None and is_about_row(result, proof.proven):
            return proof.proven
    return None


def _describe_losses(result: CellResult) -> str:
    """Return in how many crash states acknowledged records are missing; empty if the row's power was not cut."""
    proven = _find_proof(result)
    if proven is None:
        return ""
    states = f"{proven.states:,} crash states"
    if proven.word.is_about_consistency:
        return f"the check fails on {proven.losing} of {states}"
    verb = "loses" if proven.losing == 1 else "lose"
    what = "what was synced" if proven.syncs else "acknowledged records"
    return f"{proven.losing} of {states} {verb} {what}{describe_unsynced(proven)}"


def _join_sentences(sentence: str, more: str) -> str:
    return f"{sentence} {more}" if more else sentence


# --- for the result document --------------------------------------------------------------------------------


def _make_finding_document(finding: Finding) -> dict[str, Any]:
    match finding:
        case Ranking():
            compared = finding.against_best.items()
            return {
                "of": list(finding.levels),
                "metric": finding.metric.name,
                "answered": finding.answered,
                "best": finding.best.cell.id if finding.best else None,
                "not_worse": _list_cell_ids(finding.contenders),
                "order": _list_cell_ids(finding.cells),
                "against_best": {cell: _make_pair_document(comparison) for cell, comparison in compared},
                "left_out": {result.cell.id: _describe_row_durability(result) for result in finding.excluded},
                "missing": {result.cell.id: result.reason for result in finding.missing},
            }
        case PairAnswer():
            document = {
                "metric": finding.metric.name,
                "answered": finding.answered,
                "cell": finding.first.cell.id,
                "against": finding.second.cell.id,
                "published": finding.published,
            }
            if finding.comparison is not None:
                document |= _make_pair_document(finding.comparison)
            return document
        case Breakdown():
            return {
                "cell": finding.result.cell.id,
                "parts": {metric.name: value for metric, value in finding.parts},
            }
        case DurabilityGroup():
            return {"durability": str(finding.word), "cells": _list_cell_ids(finding.results)}


def _make_pair_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        "ci": list_interval(comparison.ci),
        "n": comparison.n,
        "q": comparison.q,
        "verdict": comparison.verdict.value,
        "alike": comparison.alike,
        "reason": comparison.reason,
        "more_blocks": forecast_more_blocks(comparison) if comparison.is_undecided else None,
    }

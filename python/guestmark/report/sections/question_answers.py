"""Questions of a plan and the answers of its run, in sentences; a table if several rankings share their cells.

Every kind of answer has a full form, and a brief one for the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from guestmark.core.cell_levels import NESTED_WORDS
from guestmark.core.findings import Durability, Proof, Proven
from guestmark.core.model import CellStatus, QuestionKind
from guestmark.core.units import format_count
from guestmark.page import figures
from guestmark.page.claims import Claim
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


def make_nodes(answers: Sequence[QuestionAnswer], *, brief: bool = False) -> list[Node]:
    """Return the sentences under each question, and a table of rankings that share cells; empty without questions.

    With `brief`, many comparisons become a table in place of sentences, and rankings have no table.
    """
    return [node for group in group_nodes(answers, brief=brief) for node in group]


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
    return [
        {
            "ask": answer.question.ask,
            "wants": answer.question.wants.value,
            "answered": answer.answered,
            "answers": [_make_finding_document(finding) for finding in answer.findings],
            "sentences": [join_plain_text(sentence) for sentence in _answer_sentences(answer)],
        }
        for answer in answer_plan_questions(analysis)
    ]


def _make_full_nodes(answer: QuestionAnswer) -> list[Node]:
    sentences = (*_answer_sentences(answer), *_describe_dropped(answer))
    nodes: list[Node] = [Bullets(line(answer.question.ask, Tone.STRONG), sentences)]
    rankings = [finding for finding in answer.findings if isinstance(finding, Ranking) and finding.cells]
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
    return [Paragraph(line(ask)), *(Paragraph(spans("  ", *sentence)) for sentence in sentences)]


def _describe_dropped(answer: QuestionAnswer) -> list[Inline]:
    """Return a sentence that names the cells for which there was no time; none if some time was left for all."""
    if not (answer.no_time and answer.findings):
        return []
    return [
        line(f"Not answered for lack of time: {_list_few([result.cell.id for result in answer.no_time])}.")
    ]


def _has_only(answer: QuestionAnswer, kind: type[Finding]) -> bool:
    """Return whether there are findings, all of them of this kind."""
    return bool(answer.findings) and all(isinstance(finding, kind) for finding in answer.findings)


def _answer_sentences(answer: QuestionAnswer, *, brief: bool = False) -> list[Inline]:
    """Return a sentence for each finding and one for the published conclusion; else why there is no answer."""
    if not answer.findings:
        reason = _OUT_OF_TIME if answer.no_time else _UNANSWERED[answer.question.wants]
        return [line(f"Not answered: {reason}.")]
    brief = brief and (_has_only(answer, Ranking) or _has_only(answer, Breakdown))
    names = _choose_pair_names(answer)
    breakdowns = [finding.result for finding in answer.findings if isinstance(finding, Breakdown)]
    short_names = _name_breakdowns(breakdowns) if brief else {}
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
    conclusion = None if brief else _describe_conclusion(answer, names)
    return sentences if conclusion is None else [*sentences, conclusion]


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
    span = Span(shown, Tone.FASTER if ranking.answered else Tone.UNCLEAR)
    if brief:
        return spans(
            where, span, f" leads; {_count_contenders(ranking)}" if ranking.contenders else superlative
        )
    verb = superlative if ranking.is_best_shown else " leads"
    others = "".join(f"; {group}" for group in _describe_rest_of_ranking(ranking, names))
    return spans(where, span, _join_sentences(f"{verb}{others}.{_describe_doubt(ranking)}", left_out))


def _count_contenders(ranking: Ranking) -> str:
    """Return how many cells may be as good as the best one: `2 within 6 %, 1 open`."""
    still_open = ranking.open_contenders
    near = [result for result in ranking.contenders if result not in still_open]
    parts = []
    if near:
        compared = [ranking.against_best[result.cell.id] for result in near]
        ends = [end for comparison in compared for end in comparison.ci or ()]
        most = max((max(end, 1 / end) for end in ends), default=1.0)
        parts.append(f"{len(near)} within {figures.format_percent(most - 1)}")
    if still_open:
        parts.append(f"{len(still_open)} open")
    return ", ".join(parts)


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
    alike = [result for result in ranking.contenders if ranking.is_alike(result)]
    unclear = [result for result in ranking.contenders if not ranking.is_alike(result)]
    behind = [
        result for result in ranking.cells if result is not ranking.best and result not in ranking.contenders
    ]
    # The best cell is found by comparing pairs, so it need not have beaten every cell that another one has beaten.
    beaten = [result for result in behind if ranking.verdict(result) is Verdict.SLOWER]
    others = [result for result in behind if result not in beaten]
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
        comparison = ranking.against_best.get(result.cell.id)
        known = comparison is not None and comparison.ratio is not None
        ratio = f" {_format_ratio(comparison)}" if comparison is not None and known else ""
        shown.append(f"{names[result.cell.id]}{ratio}")
    if len(results) > _MOST_NAMED:
        shown.append(f"{len(results) - _MOST_NAMED} more")
    return ", ".join(shown)


def _describe_doubt(ranking: Ranking) -> str:
    """Return why contenders are not told apart from the best, and how many more blocks would help."""
    unclear = [
        ranking.against_best[result.cell.id]
        for result in ranking.contenders
        if result.cell.id in ranking.against_best and not ranking.is_alike(result)
    ]
    if not unclear:
        return ""
    reasons = ", ".join(dict.fromkeys(comparison.reason for comparison in unclear if comparison.reason))
    # A forecast is given only if it helps with all of them.
    forecasts = [forecast_more_blocks(comparison) for comparison in unclear]
    known = [blocks for blocks in forecasts if blocks]
    helps = _describe_forecast(max(known)) if known and len(known) == len(forecasts) else ""
    return f" Reason: {reasons or 'the intervals are too wide'}{helps}."


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
        groups = _group_names(ranking.missing, names, _shorten_reason)
        parts = [
            f"{_list_few(group)} ({reason})" if reason else _list_few(group)
            for reason, group in groups.items()
        ]
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
    if any(trial.facts.find_fact(Proof) for result in results for trial in result.trials):
        return ""
    return " (the power was not cut in this run; --prove cuts it)"


def _describe_row_durability(result: CellResult) -> str:
    return describe_row_durability(result) or "unknown"


def _shorten_reason(result: CellResult) -> str:
    """Return why a cell has no values, without the program's own words, which the report quotes elsewhere."""
    parts = result.reason.split(": ")
    return ": ".join(parts[: 2 if result.status in {CellStatus.FAILED, CellStatus.PARTIAL} else 1])


def _list_few(names: Sequence[str]) -> str:
    more = len(names) - _MOST_IN_LIST
    return ", ".join([*names[:_MOST_IN_LIST], *([f"{more} more"] if more > 0 else [])])


def _make_ranking_table(rankings: Sequence[Ranking]) -> Table | None:
    """Return a column for each ranking; None unless they share at least two names of cells and their metric."""
    names = [name_apart(ranking.cells) for ranking in rankings]
    rows = dict.fromkeys(name for of_ranking in names for name in of_ranking.values())
    # Only rankings that share cells are worth a common table.
    shared = sum(sum(name in of_ranking.values() for of_ranking in names) > 1 for name in rows)
    if shared < 2 or len({ranking.metric for ranking in rankings}) > 1:
        return None
    metric = rankings[0].metric
    typical = [result.summary[metric.name].typical for ranking in rankings for result in ranking.cells]
    unit = figures.choose_table_unit(metric.unit, typical)
    cells = {}
    columns = []
    for ranking, of_ranking in zip(rankings, names, strict=True):
        heading = _describe_levels(ranking)
        columns.append(Column(heading, (Align.POINT, Align.LEFT)))
        for result in ranking.cells:
            cells[of_ranking[result.cell.id], len(columns)] = _make_ranked_cell(result, ranking, unit)
    none = make_figure_cell("–", "")
    body = tuple(
        Row(RowName((name,)), tuple(cells.get((name, at), none) for at in range(1, len(columns) + 1)))
        for name in rows
    )
    return Table("the same in figures", (figures.format_column_heading(metric, unit),), tuple(columns), body)


def _make_ranked_cell(result: CellResult, ranking: Ranking, unit: figures.Unit) -> Cell:
    summary = result.summary[ranking.metric.name]
    shown, _ = figures.format_estimate(summary.typical, summary.typical_ci, unit)
    if result is ranking.best:
        return make_figure_cell(shown, "best")
    if ranking.is_alike(result):
        return make_figure_cell(shown, "≈")
    comparison = ranking.against_best.get(result.cell.id)
    return make_figure_cell(shown, mark_verdict(comparison) if comparison else "")


# --- pairs of cells -----------------------------------------------------------------------------------------


def _choose_pair_names(answer: QuestionAnswer) -> PairNames:
    firsts = [finding.first.cell for finding in answer.findings if isinstance(finding, PairAnswer)]
    return PairNames(answer.question.compare.keys() | answer.question.against.keys(), firsts)


def _describe_pair(pair: PairAnswer, names: PairNames) -> Inline:
    first_name, second_name, common = names.name_pair(pair.first.cell, pair.second.cell)
    where = f"{common}: " if common else ""
    comparison = pair.comparison
    if comparison is None:
        both = (pair.first, pair.second)
        lacking = next((result for result in both if pair.metric.name not in result.summary), None)
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


def _compare_with_published(comparison: Comparison, then: float | None) -> str:
    if then is None:
        return ""
    agreement = judge_agreement(comparison, then)
    if agreement is Agreement.UNKNOWN:
        return f"; published ×{then:.2g}, which one block can neither confirm nor exclude"
    return f"; published ×{then:.2g}, {_AGREEMENTS[agreement]}"


def _describe_conclusion(answer: QuestionAnswer, names: PairNames) -> Inline | None:
    """Return whether a publication's conclusion holds; None if the question has none, or the run no cells for it."""
    places: dict[Conclusion, list[str]] = {}
    for finding in answer.findings:
        if isinstance(finding, PairAnswer) and finding.published is not None:
            _, _, common = names.name_pair(finding.first.cell, finding.second.cell)
            place = f"{common or finding.first.cell.id}{_describe_differing_factor(finding)}"
            places.setdefault(finding.conclusion, []).append(place)
    if not answer.question.conclusion or not places:
        return None
    parts: list[str | Span] = []
    for outcome in Conclusion:
        if outcome in places:
            parts.append("; " if parts else f"The published conclusion – {answer.question.conclusion} – ")
            parts += [Span(outcome.value, _CONCLUSION_TONES[outcome]), f" for {', '.join(places[outcome])}"]
    return spans(*parts, ".")


def _describe_differing_factor(pair: PairAnswer) -> str:
    """Return both ratios if the conclusion holds with another factor than the published one; else nothing."""
    comparison, then = pair.comparison, pair.published
    if comparison is None or then is None or pair.conclusion is not Conclusion.HOLDS:
        return ""
    return f" (×{comparison.ratio:.2g}, published ×{then:.2g})" if comparison.is_ratio_excluded(then) else ""


def _make_brief_comparisons(answer: QuestionAnswer, *, with_legend: bool) -> list[Node]:
    """Return a table of ratios, a row for each kind of cell, a column for each platform; lines if there are few."""
    every = [finding for finding in answer.findings if isinstance(finding, PairAnswer)]
    # Pairs that were not measured would only show dashes; the details list them.
    pairs = [
        pair for pair in every if pair.comparison is not None and pair.comparison.ratio is not None
    ] or every
    names = name_across_workloads([pair.first for pair in pairs])
    platforms = list(dict.fromkeys(str(pair.first.cell.platform) for pair in pairs))
    pieces = (Align.POINT, Align.LEFT, Align.LEFT)[: 3 if len(platforms) <= _MOST_WITH_INTERVALS else 2]
    cells = {}
    for pair in pairs:
        at = (names[pair.first.cell.id], str(pair.first.cell.platform))
        cells[at] = _make_brief_ratio_cell(pair.comparison, len(pieces))
    conclusion = _describe_conclusion(answer, _choose_pair_names(answer))
    sentences = [] if conclusion is None else [conclusion]
    rows = list(dict.fromkeys(name for name, _ in cells))
    if len(rows) > _MOST_LINES:
        legend = (line(LEGEND),) if with_legend else ()
        table = make_grid_table(answer.question.ask, platforms, pieces, cells, legend)
        return [table, *map(Paragraph, [*sentences, *_describe_dropped(answer)])]
    lines = []
    for name in rows:
        ratios = [
            f"{platform} {cells[name, platform].text}" for platform in platforms if (name, platform) in cells
        ]
        lines.append(line(f"{name}: {', '.join(ratios)}"))
    nodes = _join_question(answer, [*lines, *sentences])
    return [*nodes, Note(line(LEGEND))] if with_legend else nodes


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
    shares = ", ".join(
        f"{_format_part_name(metric.name)} {figures.format_percent(share)}"
        for metric, share in breakdown.shares
    )
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
    alike = len(set(losses)) == 1
    cells = []
    for result, lost in zip(group.results, losses, strict=True):
        cells.append(f"{result.cell.id} ({lost})" if lost and not alike else result.cell.id)
    detail = ""
    if counts := _count_losses(group.results):
        cells = [f"{result.cell.id} {count}" for result, count in zip(group.results, counts, strict=True)]
        detail = " (crash states that lose acknowledged records)"
    elif alike and losses[0]:
        detail = f" ({'each: ' if len(losses) > 1 else ''}{losses[0]})"
    elif not any(losses) and group.word in _DURABILITY_MEANINGS:
        detail = f" ({_DURABILITY_MEANINGS[group.word]})"
    tone = _DURABILITY_TONES.get(group.word, Tone.UNCLEAR)
    return spans(Span(str(group.word), tone), f": {', '.join(cells)}{detail}.")


def _count_losses(results: Sequence[CellResult]) -> list[str]:
    """Return for each row how many of its crash states lose acknowledged records, such as `3 of 120`.

    Empty if there are few rows, which have room for a sentence each, or if one of them is about something else.
    """
    proofs = [_find_proof(result) for result in results]
    found = [
        f"{proven.losing} of {proven.states:,}"
        for proven in proofs
        if proven is not None and not proven.syncs and not proven.word.is_about_consistency
    ]
    return found if len(found) == len(results) > _SPELLED_OUT else []


def _find_proof(result: CellResult) -> Proven | None:
    """Return the last proof about the row itself; None if its power was not cut."""
    proofs: list[Proven] = []
    for trial in result.trials:
        proof = trial.facts.find_fact(Proof)
        if proof is not None and is_about_row(result, proof.proven):
            proofs.append(proof.proven)
    return proofs[-1] if proofs else None


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
                "not_worse": [result.cell.id for result in finding.contenders],
                "order": [result.cell.id for result in finding.cells],
                "against_best": {cell: _make_pair_document(comparison) for cell, comparison in compared},
                "left_out": {result.cell.id: _describe_row_durability(result) for result in finding.excluded},
                "missing": {result.cell.id: result.reason for result in finding.missing},
            }
        case PairAnswer():
            return {
                "metric": finding.metric.name,
                "answered": finding.answered,
                "cell": finding.first.cell.id,
                "against": finding.second.cell.id,
                "published": finding.published,
                **({} if finding.comparison is None else _make_pair_document(finding.comparison)),
            }
        case Breakdown():
            return {
                "cell": finding.result.cell.id,
                "parts": {metric.name: value for metric, value in finding.parts},
            }
        case DurabilityGroup():
            return {
                "durability": str(finding.word),
                "cells": [result.cell.id for result in finding.results],
            }


def _make_pair_document(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        "ci": None if comparison.ci is None else list(comparison.ci),
        "n": comparison.n,
        "q": comparison.q,
        "verdict": comparison.verdict.value,
        "alike": comparison.alike,
        "reason": comparison.reason,
        "more_blocks": forecast_more_blocks(comparison) if comparison.is_undecided else None,
    }

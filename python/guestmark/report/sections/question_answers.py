"""Questions of a plan and the answers of its run, in sentences; a table if several rankings share their cells.

Every kind of answer has a full form, and a brief one for the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from guestmark.core.metric import Metric
from guestmark.core.model import QuestionKind
from guestmark.page import figures
from guestmark.page.json_text import list_interval
from guestmark.page.names import name_across_workloads, name_groups
from guestmark.page.nodes import Bullets, Node, Note, Paragraph
from guestmark.page.sentence_names import PairNames
from guestmark.page.tables import Align, Cell, make_figure_cell, make_grid_table, make_word_cell
from guestmark.page.text import Inline, Tone, join_plain_text, line, spans
from guestmark.report.sections.answer_words import (
    list_cell_ids,
    list_few,
    name_row_durability,
    select_findings,
)
from guestmark.report.sections.durability_answers import describe_durability
from guestmark.report.sections.pair_answers import describe_conclusion, describe_pair
from guestmark.report.sections.ranking_answers import RANKING_LEGEND, describe_ranking, make_ranking_table
from guestmark.report.sections.verdict_words import LEGEND, mark_verdict
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import Comparison
from guestmark.stats.questions import (
    Breakdown,
    DurabilityGroup,
    Finding,
    PairAnswer,
    QuestionAnswer,
    Ranking,
    answer_plan_questions,
    average_shares,
    forecast_more_blocks,
    have_alike_shares,
)

_NARROW = 80  # columns
_MOST_LINES = 3  # of comparisons, in place of a table
# With more platforms beside each other, 80 columns leave no room for intervals.
_MOST_WITH_INTERVALS = 2
_LEAST_SHARE = 0.005  # a smaller share would be shown as 0 %
_UNIT_SUFFIXES = ("_s", "_ns", "_bytes", "_share")
_OUT_OF_TIME = "time ran out; guestmark resume --time-limit 5m continues the run"
_UNANSWERED = {
    QuestionKind.BEST: "no cell of this run belongs to the question",
    QuestionKind.COMPARE: "no two cells of this run differ only in that",
    QuestionKind.PARTS: "no cell has values for two of these parts",
    QuestionKind.DURABILITY: "flushes were not checked; --prove checks them by cutting the power",
}


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
    told = ""
    for answer in answers:
        if _has_only(answer, PairAnswer):
            pairs = _select_shown_pairs(answer)
            groups.append(_make_brief_comparisons(answer, pairs, told, with_legend=answer is comparing[-1]))
            told = figures.name_most_frequent_metric(pair.metric for pair in pairs)
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
    rankings = [ranking for ranking in select_findings(answer, Ranking) if ranking.cells]
    table = make_ranking_table(rankings)
    if table is not None:
        nodes += [table, Note(line(RANKING_LEGEND))]
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
    return [line(f"Not answered for lack of time: {list_few(list_cell_ids(answer.no_time))}.")]


def _has_only(answer: QuestionAnswer, kind: type[Finding]) -> bool:
    """Return whether there are findings, all of them of this kind."""
    return bool(answer.findings) and all(isinstance(finding, kind) for finding in answer.findings)


def _answer_sentences(answer: QuestionAnswer, *, brief: bool = False) -> list[Inline]:
    """Return a sentence for each finding and one for the published conclusion; else why there is no answer."""
    if not answer.findings:
        reason = _OUT_OF_TIME if answer.no_time else _UNANSWERED[answer.question.wants]
        return [line(f"Not answered: {reason}.")]
    if brief and _has_only(answer, Breakdown):
        return _describe_briefly(select_findings(answer, Breakdown))
    brief = brief and _has_only(answer, Ranking)
    names = _choose_pair_names(answer)
    sentences = []
    for finding in answer.findings:
        match finding:
            case Ranking():
                sentences.append(describe_ranking(finding, brief=brief))
            case PairAnswer():
                sentences.append(describe_pair(finding, names))
            case Breakdown():
                sentences.append(_describe_breakdown(finding))
            case DurabilityGroup():
                sentences.append(describe_durability(finding))
    if not brief:
        sentences += describe_conclusion(answer, names)
    return sentences


# --- pairs of cells -----------------------------------------------------------------------------------------


def _choose_pair_names(answer: QuestionAnswer) -> PairNames:
    firsts = [pair.first.cell for pair in select_findings(answer, PairAnswer)]
    return PairNames(answer.question.compare.keys() | answer.question.against.keys(), firsts)


def _select_shown_pairs(answer: QuestionAnswer) -> Sequence[PairAnswer]:
    """Return the pairs that have a ratio, or all if none has.

    The others would only show dashes, and the details list them.
    """
    every = select_findings(answer, PairAnswer)
    return [pair for pair in every if _has_ratio(pair.comparison)] or every


def _make_brief_comparisons(
    answer: QuestionAnswer, pairs: Sequence[PairAnswer], told: str, *, with_legend: bool
) -> list[Node]:
    """Return the pairs as a table with a row for each kind of cell and a column for each platform; lines if few.

    `told` is the metric of the comparisons before these, which is not named again. Any other metric is named: in the
    table's title if most pairs have it, else in its row or line.
    """
    names = name_across_workloads([pair.first for pair in pairs])
    platforms = list(dict.fromkeys(str(pair.first.cell.platform) for pair in pairs))
    pieces: tuple[Align, ...] = (Align.POINT, Align.LEFT, Align.LEFT)
    if len(platforms) > _MOST_WITH_INTERVALS:
        pieces = pieces[:2]
    title = answer.question.ask
    in_table = len(set(names.values())) > _MOST_LINES
    most_frequent = figures.name_most_frequent_metric(pair.metric for pair in pairs)
    if in_table and most_frequent != told:
        told = most_frequent
        title += f" ({told})"
    cells = {}
    for pair in pairs:
        name = names[pair.first.cell.id]
        if (metric := figures.name_metric(pair.metric)) != told:
            name = f"{name}, {metric}"
        cells[name, str(pair.first.cell.platform)] = _make_brief_ratio_cell(pair.comparison, len(pieces))
    conclusion = describe_conclusion(answer, _choose_pair_names(answer))
    if in_table:
        legend = (line(LEGEND),) if with_legend else ()
        table = make_grid_table(title, platforms, pieces, cells, legend)
        return [table, *map(Paragraph, [*conclusion, *_describe_dropped(answer)])]
    lines = []
    for name in dict.fromkeys(name for name, _ in cells):
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


# --- parts, and power cuts ----------------------------------------------------------------------------------


def _describe_briefly(breakdowns: Sequence[Breakdown]) -> list[Inline]:
    """Return a line for each breakdown; one with the mean shares for several that are alike."""
    by_id = {breakdown.result.cell.id: breakdown for breakdown in breakdowns}

    def list_breakdowns(results: Sequence[CellResult]) -> list[Breakdown]:
        return [by_id[result.cell.id] for result in results]

    sentences = []
    for name, members in name_groups(
        [breakdown.result for breakdown in breakdowns], lambda some: have_alike_shares(list_breakdowns(some))
    ):
        shares = average_shares(list_breakdowns(members))
        sentences.append(line(f"{name}: {_list_shares(shares)}"))
    return sentences


def _list_shares(shares: Sequence[tuple[Metric, float]]) -> str:
    listed = [f"{_format_part_name(metric.name)} {figures.format_percent(share)}" for metric, share in shares]
    remaining = 1 - sum(share for _, share in shares)
    if remaining >= _LEAST_SHARE:
        listed.append(f"neither {figures.format_percent(remaining)}")
    return ", ".join(listed)


def _describe_breakdown(breakdown: Breakdown) -> Inline:
    """Return a sentence with the largest part, the total, and the share of each part."""
    shares = _list_shares(breakdown.shares)
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
                "not_worse": list_cell_ids(finding.contenders),
                "order": list_cell_ids(finding.cells),
                "against_best": {cell: _make_pair_document(comparison) for cell, comparison in compared},
                "left_out": {result.cell.id: name_row_durability(result) for result in finding.excluded},
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
            return {"durability": str(finding.word), "cells": list_cell_ids(finding.results)}


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

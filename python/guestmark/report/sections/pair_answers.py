"""Two cells beside each other in a sentence, and whether a published conclusion about them holds."""

from __future__ import annotations

from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.sentence_names import PairNames
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.report.sections.answer_words import (
    describe_forecast,
    format_ratio,
    select_findings,
    shorten_reason,
)
from guestmark.report.sections.verdict_words import choose_verdict_tone, format_verdict
from guestmark.stats.analysis import CellResult
from guestmark.stats.compare import Comparison
from guestmark.stats.published import Agreement, Conclusion, judge_agreement
from guestmark.stats.questions import PairAnswer, QuestionAnswer, forecast_more_blocks

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


def describe_pair(pair: PairAnswer, names: PairNames) -> Inline:
    """Return the ratio of two cells with its verdict, or why they are not compared."""
    first_name, second_name, common = names.name_pair(pair.first.cell, pair.second.cell)
    where = f"{common}: " if common else ""
    comparison = pair.comparison
    if comparison is None:
        lacking = _find_unmeasured_side(pair)
        if lacking is None:
            return line(
                f"{where}{first_name} against {second_name} is not answered: their values have no ratio yet."
            )
        why = f" ({shorten_reason(lacking)})" if lacking.reason else ""
        return line(
            f"{where}{first_name} against {second_name} is not answered: {lacking.cell.id} was not measured{why}."
        )
    doubt = ""
    if comparison.is_open:
        doubt = f" ({comparison.reason}{describe_forecast(forecast_more_blocks(comparison))})"
    return spans(
        f"{where}{first_name} is {format_ratio(comparison)} of {second_name} in {figures.name_metric(pair.metric)}: ",
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


def describe_conclusion(answer: QuestionAnswer, names: PairNames) -> list[Inline]:
    """Return whether a publication's conclusion holds; nothing if the question has none, or the run no cells for it."""
    places: dict[Conclusion, list[str]] = {}
    for pair in select_findings(answer, PairAnswer):
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

"""What a plan asked, and the answers of its run: in sentences, and where several are ranked alike in a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Any

from guestmark.core.findings import Durability, Proof
from guestmark.core.model import Asked, Cell, CellStatus
from guestmark.core.units import counted
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.names import across_workloads, implied_placement, varying
from guestmark.page.nodes import Bullets, Node, Note, Paragraph
from guestmark.page.tables import Align, Column, Row, RowName, Table, by_column, figure, words
from guestmark.page.tables import Cell as TableCell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.plan.pattern import PLATFORM, WORKLOAD
from guestmark.plan.questions import NESTED_WORDS
from guestmark.report.sections.answering import (
    Against,
    Answer,
    Finding,
    Kept,
    Parts,
    Ranked,
    answers,
    more_blocks,
)
from guestmark.report.sections.durability import durability, of_row
from guestmark.report.sections.nested import mean_of
from guestmark.report.sections.verdicts import LEGEND, MARKS, mark, tone, word
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import Comparison, Verdict, label_verdict

_NAMED = 6  # cells in one sentence
_NARROW = 80  # columns
_FEW_LINES = 3  # of comparisons, in place of a table
_WITH_INTERVALS = 2  # platforms beside each other, whose ratios leave room for their intervals
_SUPERLATIVES = {"faster": "fastest", "less": "least", "more": "most", "better": "best"}
_LEGEND = f"{MARKS[Verdict.SLOWER]} behind the best   ≈ typical run as its   ? not told apart"
_MEANINGS = {
    Durability.PART: "what was never synced may be gone",
    Durability.REACHED: "this host's kernel was asked to flush; --prove cuts the power",
    Durability.CLAIMED: "by the hypervisor's own count; --prove cuts the power",
    Durability.LOST: "flushes do not arrive",
    Durability.MEMORY: "gone with the power, flushed or not",
    Durability.NOTHING: "the workload asked for no flush",
}
_SUFFIXES = ("_s", "_ns", "_bytes")


def nodes(analysis: Analysis, *, briefly: bool = False) -> list[Node]:
    """The sentences under each question, and a table of those that rank cells of several kinds; empty without any.

    `briefly`, many comparisons are a table in place of sentences, and rankings have none beside them.
    """
    found: list[Node] = []
    asked = answers(analysis)
    last = max((number for number, answer in enumerate(asked) if _are(answer, Against)), default=None)
    for number, answer in enumerate(asked):
        if briefly and _are(answer, Against):
            found += _comparisons(answer, legend=number == last)
            continue
        items = (_briefly(answer) if briefly else _sentences(answer)) or [line(_nothing(answer))]
        if briefly:
            found += _closely(answer, items)
            continue
        found.append(Bullets(line(answer.question.ask, Tone.STRONG), tuple(items)))
        ranked = [finding for finding in answer.findings if isinstance(finding, Ranked)]
        if table := _table(ranked):
            found += [table, Note(line(_LEGEND))]
    return found


def _are(answer: Answer, kind: type[Finding]) -> bool:
    """Whether there are findings, all of them of this kind."""
    return bool(answer.findings) and all(isinstance(finding, kind) for finding in answer.findings)


def document(analysis: Analysis) -> list[dict[str, Any]]:
    """For the result document."""
    return [
        {
            "ask": answer.question.ask,
            "wants": answer.question.wants.value,
            "answered": answer.answered,
            "answers": [_plain(finding) for finding in answer.findings],
            "sentences": [_text(sentence) for sentence in _sentences(answer)] or [_nothing(answer)],
        }
        for answer in answers(analysis)
    ]


def _nothing(answer: Answer) -> str:
    why = {
        Asked.BEST: "this run has none of its cells",
        Asked.COMPARE: "no two cells of this run differ only in that",
        Asked.PARTS: "no cell has values of two of these parts",
        Asked.DURABILITY: "whether anything was flushed was not checked; --prove cuts the power",
    }
    return f"Not answered: {why[answer.question.wants]}."


def _sentences(answer: Answer) -> list[Inline]:
    names = _names_in(answer)
    return [*(_sentence(finding, names) for finding in answer.findings), *holds(answer, names)]


def _briefly(answer: Answer) -> list[Inline]:
    """As few lines as say the answer: which is best, which part is largest."""
    if _are(answer, Ranked):
        return [_in_brief(finding) for finding in answer.findings if isinstance(finding, Ranked)]
    if _are(answer, Parts):
        parts = [finding for finding in answer.findings if isinstance(finding, Parts)]
        called = across_workloads([finding.result for finding in parts])
        return [line(f"{called[each.result.cell.id]}: {_shares_of(each)}") for each in parts]
    return _sentences(answer)


def _names_in(answer: Answer) -> Names:
    firsts = [finding.first.cell for finding in answer.findings if isinstance(finding, Against)]
    asked = answer.question.compare.keys() | answer.question.against.keys()
    return Names(asked, firsts)


def _sentence(finding: Finding, names: Names) -> Inline:
    match finding:
        case Ranked():
            return _best(finding)
        case Against():
            return _compared(finding, names)
        case Parts():
            return _shares(finding)
        case Kept():
            return _safe(finding)


# --- the best -----------------------------------------------------------------------------------------------


def _best(ranked: Ranked) -> Inline:
    where = f"{_about(ranked)}: " if ranked.of else ""
    best = ranked.best
    if best is None:
        return line(f"{where}not answered. {_lacking(ranked)}")
    names = names_of([*ranked.cells, *ranked.barred, *ranked.missing])
    superlative = _SUPERLATIVES[label_verdict(Verdict.FASTER, ranked.metric)]
    shown = f"{names[best.cell.id]} ({' '.join(mean_of(best, ranked.metric))})"
    if len(ranked.cells) == 1:
        alone = "qualifies" if ranked.barred else "was measured"
        return line(
            f"{where}only {shown} {alone}, so there is nothing to compare it with.{_space(_lacking(ranked))}"
        )
    behind = [result for result in ranked.cells if result is not best and result not in ranked.open]
    said: list[str] = []
    same = [result for result in ranked.open if _same(ranked, result)]
    unclear = [result for result in ranked.open if result not in same]
    for title, some in (("typical run as", same), ("not told apart from", unclear), ("behind", behind)):
        if some:
            said.append(f"{title} it: {_listed(some, names, ranked)}")
    shown_behind = all(
        _verdict(ranked, result) is Verdict.SLOWER for result in ranked.cells if result is not best
    )
    verb = Claim.BEST.format(superlative=superlative) if shown_behind else " leads"
    return spans(
        where,
        Span(shown, Tone.FASTER if ranked.answered else Tone.UNCLEAR),
        f"{verb}{'; ' if said else ''}{'; '.join(said)}.{_more(ranked, unclear)}{_space(_lacking(ranked))}",
    )


def _in_brief(ranked: Ranked) -> Inline:
    """Which is best, and which may be."""
    best = ranked.best
    where = f"{_about(ranked)}: " if ranked.of else ""
    if best is None or len(ranked.cells) == 1:
        return _best(ranked)
    names = names_of([*ranked.cells, *ranked.barred, *ranked.missing])
    superlative = _SUPERLATIVES[label_verdict(Verdict.FASTER, ranked.metric)]
    verb = " leads" if ranked.open else Claim.BEST.format(superlative=superlative)
    beside = f"; {len(ranked.open)} open" if ranked.open else ""
    tone = Tone.FASTER if ranked.answered else Tone.UNCLEAR
    name = names[best.cell.id]
    for factor, level in best.cell.factors.items():
        name = name.replace(f"{factor}={level}", level) if level[:1].isalpha() else name
    shown = f"{name} ({' '.join(mean_of(best, ranked.metric))})"
    return spans(where, Span(shown, tone), f"{verb}{beside}")


def _about(ranked: Ranked) -> str:
    """What it is the best of: "sysbench on tcg", "upload, nothing written (nested)"."""
    *names, last = ranked.of
    if not names:
        return last
    where = (
        f" ({last})" if last in NESTED_WORDS.values() else f" on {last}" if len(names) == 1 else f", {last}"
    )
    return f"{', '.join(names)}{where}"


def _same(ranked: Ranked, result: CellResult) -> bool:
    comparison = ranked.against_best.get(result.cell.id)
    return comparison is not None and comparison.typical_is_equal


def _verdict(ranked: Ranked, result: CellResult) -> Verdict | None:
    comparison = ranked.against_best.get(result.cell.id)
    return None if comparison is None else comparison.verdict


def _listed(some: Sequence[CellResult], names: dict[str, str], ranked: Ranked) -> str:
    shown = [
        f"{names[result.cell.id]}{_ratio(ranked.against_best.get(result.cell.id))}"
        for result in some[:_NAMED]
    ]
    more = [f"{len(some) - _NAMED} more"] if len(some) > _NAMED else []
    return ", ".join([*shown, *more])


def _ratio(comparison: Comparison | None) -> str:
    if comparison is None or comparison.ratio is None:
        return ""
    return f" {figures.ratio(comparison.ratio, comparison.ci)}"


def _more(ranked: Ranked, unclear: Iterable[CellResult]) -> str:
    """Why they are not told apart, and what would help."""
    open_ = [found for result in unclear if (found := ranked.against_best.get(result.cell.id))]
    if not open_:
        return ""
    reasons = ", ".join(dict.fromkeys(comparison.reason for comparison in open_ if comparison.reason))
    forecasts = [more_blocks(comparison) for comparison in open_]
    known = [blocks for blocks in forecasts if blocks]
    helps = _would_tell(max(known)) if known and len(known) == len(forecasts) else ""
    return f" Reason: {reasons or 'the intervals are too wide'}{helps}."


def _would_tell(blocks: int) -> str:
    return f"; about {counted(blocks, 'more block')} would tell"


def _lacking(ranked: Ranked) -> str:
    """Cells that were not measured, or are not what was asked for."""
    names = names_of([*ranked.cells, *ranked.barred, *ranked.missing])
    said = []
    if ranked.barred:
        words: dict[str, list[str]] = {}
        for result in ranked.barred:
            words.setdefault(_word(result), []).append(names[result.cell.id])
        listed = "; ".join(f"{word}: {_few(some)}" for word, some in words.items())
        said.append(f"Left out: {listed}{_unproven(ranked.barred)}.")
    if ranked.missing:
        reasons: dict[str, list[str]] = {}
        for result in ranked.missing:
            reasons.setdefault(_shortly(result), []).append(names[result.cell.id])
        listed = "; ".join(f"{_few(some)}{f' ({why})' if why else ''}" for why, some in reasons.items())
        said.append(f"Not measured: {listed}.")
    return " ".join(said)


def _unproven(results: Iterable[CellResult]) -> str:
    if any(trial.facts.of(Proof) for result in results for trial in result.trials):
        return ""
    return " (the power was not cut in this run; --prove does)"


def _shortly(result: CellResult) -> str:
    """Why it has no values, without the words of others that follow it, which the report has elsewhere in full."""
    parts = result.reason.split(": ")
    return ": ".join(parts[: 2 if result.status in {CellStatus.FAILED, CellStatus.PARTIAL} else 1])


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _table(ranked: Sequence[Ranked]) -> Table | None:
    """A column for each ranking, where several are of cells with the same names."""
    ranked = [ranking for ranking in ranked if ranking.cells]
    names = [names_of(ranking.cells) for ranking in ranked]
    rows = dict.fromkeys(name for some in names for name in some.values())
    shared = sum(sum(name in some.values() for some in names) > 1 for name in rows)
    if shared < 2 or len({ranking.metric for ranking in ranked}) > 1:
        return None
    metric = ranked[0].metric
    unit = figures.table_unit(
        metric.unit,
        [result.summary[metric.name].typical for ranking in ranked for result in ranking.cells],
    )
    made = [_column(ranking, some, unit) for ranking, some in zip(ranked, names, strict=True)]
    columns = tuple(Column(_about(ranking), (Align.POINT, Align.LEFT)) for ranking in ranked)
    body = tuple(
        Row(RowName((name,)), tuple(column.get(name, figure("–", "")) for column in made)) for name in rows
    )
    return Table("the same in figures", (figures.heading(metric, unit),), columns, body)


def _column(ranking: Ranked, names: dict[str, str], unit: figures.Unit) -> dict[str, Any]:
    found = {}
    for result in ranking.cells:
        summary = result.summary[ranking.metric.name]
        shown, _ = figures.estimate(summary.typical, summary.typical_ci, unit)
        verdict = _verdict(ranking, result)
        sign = "≈" if _same(ranking, result) else MARKS[verdict] if verdict else ""
        mark = "best" if result is ranking.best else sign
        found[names[result.cell.id]] = figure(shown, mark)
    return found


def _comparisons(answer: Answer, *, legend: bool) -> list[Node]:
    """The ratio of each comparison: a row for each kind of cell, a column for each platform; of few a line for each."""
    against = [finding for finding in answer.findings if isinstance(finding, Against)]
    called = across_workloads([finding.first for finding in against])
    platforms = list(dict.fromkeys(str(finding.first.cell.platform) for finding in against))
    pieces = (
        (Align.POINT, Align.LEFT, Align.LEFT)
        if len(platforms) <= _WITH_INTERVALS
        else (Align.POINT, Align.LEFT)
    )
    filled = {
        (called[finding.first.cell.id], str(finding.first.cell.platform)): _ratio_in_brief(
            finding.found, len(pieces)
        )
        for finding in against
    }
    held = list(holds(answer, _names_in(answer)))
    rows = list(dict.fromkeys(name for name, _ in filled))
    if len(rows) > _FEW_LINES:
        table = by_column(answer.question.ask, platforms, pieces, filled, (line(LEGEND),) if legend else ())
        return [table, *map(Paragraph, held)]
    lines = [
        line(
            f"{name}: {', '.join(f'{on} {filled[name, on].text}' for on in platforms if (name, on) in filled)}"
        )
        for name in rows
    ]
    under = [Note(line(LEGEND))] if legend else []
    return [*_closely(answer, [*lines, *held]), *under]


def _closely(answer: Answer, items: Sequence[Inline]) -> list[Node]:
    """The question and its answers without room between; a single short one beside it."""
    ask = answer.question.ask
    if len(items) == 1 and len(ask) + len(_text(items[0])) < _NARROW:
        return [Paragraph(spans(f"{ask} ", *items[0]))]
    return [Paragraph(line(ask)), *(Paragraph(spans("  ", *item)) for item in items)]


def _ratio_in_brief(comparison: Comparison | None, pieces: int) -> TableCell:
    if comparison is None or comparison.ratio is None:
        return words("–")
    number, _, interval = figures.ratio(comparison.ratio, comparison.ci).partition(" ")
    return figure(*(number, mark(comparison), interval)[:pieces])


# --- some against others ------------------------------------------------------------------------------------


def _compared(against: Against, names: Names) -> Inline:
    first, second = against.first, against.second
    mine, theirs, common = names.apart(first.cell, second.cell)
    where = f"{common}: " if common else ""
    if against.found is None:
        lacking = next((one for one in (first, second) if against.metric.name not in one.summary), first)
        why = f" ({_shortly(lacking)})" if lacking.reason else ""
        return line(
            f"{where}{mine} against {theirs} is not answered: {lacking.cell.id} was not measured{why}."
        )
    comparison = against.found
    missing = ""
    if comparison.is_undecided and not comparison.is_bounded:
        blocks = more_blocks(comparison)
        missing = f" ({comparison.reason}{_would_tell(blocks) if blocks else ''})"
    return spans(
        f"{where}{mine} is {figures.ratio(comparison.ratio or 1.0, comparison.ci)} of {theirs} "
        f"in {figures.in_prose(against.metric)}: ",
        Span(word(comparison, against.metric), tone(comparison)),
        f"{missing}{_then(against, comparison)}.",
    )


def _then(against: Against, comparison: Comparison) -> str:
    """How that agrees with the publication."""
    then = against.published
    if then is None:
        return ""
    if comparison.ci is None:
        return f"; published ×{then:.2g}, of which one block says nothing"
    differs = not comparison.typical_is_equal and not comparison.is_undecided
    if not comparison.excludes_ratio(then):
        held = Claim.PUBLISHED_AGREES if differs else "which these blocks do not exclude"
    elif differs and (then > 1) == ((comparison.ratio or 1.0) > 1):
        held = Claim.PUBLISHED_FACTOR
    else:
        held = Claim.PUBLISHED_OUTSIDE
    return f"; published ×{then:.2g}, {held}"


# --- parts, and power cuts ----------------------------------------------------------------------------------


def _shares(found: Parts) -> Inline:
    total = sum(value for _, value in found.parts)
    said = _shares_of(found)
    metric = found.parts[0][0]
    unit = figures.fitting_unit(metric.unit, [total])
    shown = total / unit.size
    whole = f"{figures.number(shown, figures.decimals(None, shown))} {unit.name}".strip()
    return line(f"{found.result.cell.id}: the largest part is {_part(metric.name)} (of {whole}: {said}).")


def _shares_of(found: Parts) -> str:
    total = sum(value for _, value in found.parts)
    return ", ".join(
        f"{_part(metric.name)} {figures.percent(value / total)}" for metric, value in found.parts
    )


def _part(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _safe(kept: Kept) -> Inline:
    tone = {Durability.PROVEN: Tone.FASTER, Durability.LOST: Tone.SLOWER, Durability.MEMORY: Tone.SLOWER}
    states = [_states(result) for result in kept.results]
    alike = len(set(states)) == 1
    shown = [
        result.cell.id if alike or not said else f"{result.cell.id} ({said})"
        for result, said in zip(kept.results, states, strict=True)
    ]
    each = f" ({'each: ' if len(states) > 1 else ''}{states[0]})" if alike and states[0] else ""
    meaning = f" ({_MEANINGS[kept.word]})" if kept.word in _MEANINGS and not any(states) else ""
    return spans(
        Span(str(kept.word), tone.get(kept.word, Tone.UNCLEAR)), f": {', '.join(shown)}{each}{meaning}."
    )


def _states(result: CellResult) -> str:
    """In how many crash states acknowledged records are missing; empty where the row's power was not cut."""
    found = [
        proof.proven
        for trial in result.trials
        if (proof := trial.facts.of(Proof)) is not None and of_row(result, proof.proven)
    ]
    if not found:
        return ""
    from guestmark.workloads.powercut.sections import not_covered

    proven = found[-1]
    states, verb = f"{proven.states:,} crash states", "loses" if proven.losing == 1 else "lose"
    if proven.word in {Durability.CONSISTENT, Durability.BROKEN}:
        return f"the check fails on {proven.losing} of {states}"
    what = "what was synced" if proven.syncs else "acknowledged records"
    return f"{proven.losing} of {states} {verb} {what}{not_covered(proven)}"


# --- words --------------------------------------------------------------------------------------------------


def _word(result: CellResult) -> str:
    return durability(result) or "unknown"


def _space(text: str) -> str:
    return f" {text}" if text else ""


def _text(inline: Inline) -> str:
    return "".join(span.text for span in inline)


def _plain(finding: Finding) -> dict[str, Any]:
    match finding:
        case Ranked():
            return {
                "of": list(finding.of),
                "metric": finding.metric.name,
                "answered": finding.answered,
                "best": finding.best.cell.id if finding.best else None,
                "not_worse": [result.cell.id for result in finding.open],
                "order": [result.cell.id for result in finding.cells],
                "against_best": {
                    name: _plain_comparison(comparison) for name, comparison in finding.against_best.items()
                },
                "left_out": {result.cell.id: _word(result) for result in finding.barred},
                "missing": {result.cell.id: result.reason for result in finding.missing},
            }
        case Against():
            return {
                "metric": finding.metric.name,
                "answered": finding.answered,
                "cell": finding.first.cell.id,
                "against": finding.second.cell.id,
                "published": finding.published,
                **({} if finding.found is None else _plain_comparison(finding.found)),
            }
        case Parts():
            return {
                "cell": finding.result.cell.id,
                "parts": {metric.name: value for metric, value in finding.parts},
            }
        case Kept():
            return {
                "durability": str(finding.word),
                "cells": [result.cell.id for result in finding.results],
            }


def _plain_comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "ratio": comparison.ratio,
        "ci": None if comparison.ci is None else list(comparison.ci),
        "n": comparison.n,
        "q": comparison.q,
        "verdict": comparison.verdict.value,
        "alike": comparison.alike,
        "reason": comparison.reason,
        "more_blocks": more_blocks(comparison) if comparison.is_undecided else None,
    }


class Held(StrEnum):
    """What became of a conclusion."""

    YES = "holds"
    NO = "does not hold"
    OPEN = "is undecided"


_TONES = {Held.YES: Tone.FASTER, Held.NO: Tone.SLOWER, Held.OPEN: Tone.UNCLEAR}


def holds(answer: Answer, names: Names) -> Iterator[Inline]:
    """The sentence, where the question has a published conclusion and the run has cells that it is about."""
    found: dict[Held, list[str]] = {}
    for finding in answer.findings:
        if isinstance(finding, Against) and finding.published is not None:
            _, _, where = names.apart(finding.first.cell, finding.second.cell)
            factor = _factor(finding) if held(finding) is Held.YES else ""
            found.setdefault(held(finding), []).append(f"{where or finding.first.cell.id}{factor}")
    if not answer.question.conclusion or not found:
        return
    said: list[str | Span] = [f"The published conclusion – {answer.question.conclusion} – "]
    for became, places in sorted(found.items(), key=lambda item: list(Held).index(item[0])):
        if len(said) > 1:
            said.append("; ")
        said += [Span(became.value, _TONES[became]), f" for {', '.join(places)}"]
    yield spans(*said, ".")


def held(against: Against) -> Held:
    """Whether the measured difference has the direction of the published one."""
    found, then = against.found, against.published
    if found is None or found.ratio is None or then is None or found.is_undecided:
        return Held.OPEN
    if found.typical_is_equal:
        return Held.NO if found.excludes_ratio(then) else Held.OPEN
    return Held.YES if (found.ratio > 1) == (then > 1) else Held.NO


def _factor(against: Against) -> str:
    found, then = against.found, against.published
    if found is None or then is None or not found.excludes_ratio(then):
        return ""
    return f" (×{found.ratio:.2g}, published ×{then:.2g})"


# --- what cells are called in sentences: what tells them apart -----------------------------------------------

_PLACES = {WORKLOAD, PLATFORM}


def names_of(results: Sequence[CellResult]) -> dict[str, str]:
    """What tells these cells apart, by id: workload and platform as far as they vary, and of those that share both the
    levels that differ among them; these stand alone where all differ in one factor only.
    """
    if len(results) == 1:
        return {result.cell.id: result.cell.id for result in results}
    labels = {_label(result.cell) for result in results}
    platforms = {str(result.cell.platform) for result in results}
    only = len(_varying(results)) == 1
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        parts = [_label(result.cell)] if len(labels) > 1 else []
        parts += [str(result.cell.platform)] if len(platforms) > 1 else []
        groups.setdefault(" ".join(parts), []).append(result)
    found = {}
    for start, some in groups.items():
        several = _varying(some)
        for result in some:
            levels = [
                (name, result.cell.shown(name) or "") for name in several if name in result.cell.factors
            ]
            named = [level if only else f"{name}={level}" for name, level in levels]
            found[result.cell.id] = " ".join([*([start] if start else []), *named]) or result.cell.id
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def _varying(results: Sequence[CellResult]) -> list[str]:
    """The factors of which those that have them have several levels."""
    return [
        name
        for name in varying(results)
        if len({result.cell.factors[name] for result in results if name in result.cell.factors}) > 1
    ]


def _label(cell: Cell) -> str:
    return cell.workload.label or cell.workload.name


class Names:
    """What the cells of a question that compares are called: by what it `asked` of, and what else varies."""

    def __init__(self, asked: AbstractSet[str], firsts: Sequence[Cell]) -> None:
        self._asked = asked
        levels = [_named(cell) for cell in firsts]
        self._varies = {
            name
            for some in levels
            for name in some
            if len({each[name] for each in levels if name in each}) > 1
        } - implied_placement([cell.factors for cell in firsts])

    def apart(self, first: Cell, second: Cell) -> tuple[str, str, str]:
        """What the one is, what the other is, and what both are."""
        mine, theirs = _named(first), _named(second)
        own = {
            name: text
            for name, text in mine.items()
            if name in self._asked or (name in self._varies and theirs.get(name) != text)
        }
        others = {name: text for name, text in theirs.items() if name in self._asked}
        if (
            own.keys() ^ others.keys()
        ) & self._asked - _PLACES:  # levels of different factors: `on` of which?
            own, others = (
                {name: text if name in _PLACES else f"{name}={text}" for name, text in levels.items()}
                for levels in (own, others)
            )
        alike = {name: text for name, text in mine.items() if theirs.get(name) == text} if own else {}
        both = [text for name, text in alike.items() if name in _PLACES and name not in self._asked]
        more = [
            f"{name}={text}"
            for name, text in alike.items()
            if name in self._varies and name not in _PLACES and name not in self._asked
        ]
        return (
            _places_first(own) or first.id,
            _places_first(others) or second.id,
            " ".join([" on ".join(both), *more]).strip(),
        )


def _places_first(levels: dict[str, str]) -> str:
    """`write on uml, ext2`."""
    places = " on ".join(levels[name] for name in (WORKLOAD, PLATFORM) if name in levels)
    others = " ".join(text for name, text in levels.items() if name not in _PLACES)
    return ", ".join(part for part in (places, others) if part)


def _named(cell: Cell) -> dict[str, str]:
    levels = {name: cell.shown(name) or "" for name in cell.factors}
    return {WORKLOAD: _label(cell), PLATFORM: str(cell.platform), **levels}

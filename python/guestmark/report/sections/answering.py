"""The answers to a plan's questions: which cells each is about, and what their trials say."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from guestmark.core.findings import Durability
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Asked, Question
from guestmark.plan.pattern import PLATFORM, WORKLOAD
from guestmark.plan.questions import fits, groups_of, pairs_of, shown_level
from guestmark.report.sections.durability import durability, of_disk, verdicts
from guestmark.report.sections.published import figure_for
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import MIN_BLOCKS, Comparison, Verdict
from guestmark.stats.pairwise import Pair, compare_pairs
from guestmark.stats.repetition import blocks_until_within, half_width

_MOST_BLOCKS = 1000  # a forecast beyond this is no help
_FEWEST_PARTS = 2


@dataclass(frozen=True, slots=True)
class Ranked:
    """Cells by a metric, best first. Nobody is shown to be better than `best` and those in `open`.

    `against_best` compares each other cell with it. `barred` were measured and are not what was asked for; `missing`
    were not measured.
    """

    of: tuple[str, ...]  # levels of the names in the question's `per`, workload and platform first
    metric: Metric
    cells: tuple[CellResult, ...]
    best: CellResult | None = None
    open: tuple[CellResult, ...] = ()
    against_best: Mapping[str, Comparison] = field(default_factory=dict)
    barred: tuple[CellResult, ...] = ()
    missing: tuple[CellResult, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether each that is not worse than the best does not differ from it."""
        return all(
            self.against_best[result.cell.id].typical_is_equal
            for result in self.open
            if result.cell.id in self.against_best
        )

    @property
    def answered(self) -> bool:
        """Whether there is a best, or several that do not differ."""
        return self.best is not None and len(self.cells) > 1 and self.equal


@dataclass(frozen=True, slots=True)
class Against:
    """A cell over another; without a comparison one of them was not measured."""

    metric: Metric
    first: CellResult
    second: CellResult
    found: Comparison | None
    published: float | None = None

    @property
    def answered(self) -> bool:
        """Whether there is a verdict, or it is known that any difference is small."""
        return self.found is not None and (self.found.is_bounded or not self.found.is_undecided)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a cell's sum consists of, the largest part first, in the metrics' unit."""

    result: CellResult
    parts: tuple[tuple[Metric, float], ...]

    @property
    def answered(self) -> bool:
        """It has values, or it would not be here."""
        return True


@dataclass(frozen=True, slots=True)
class Kept:
    """The cells of which the same was found out about a power cut."""

    word: Durability
    results: tuple[CellResult, ...]

    @property
    def answered(self) -> bool:
        """Whether it was found out at all."""
        return self.word not in {Durability.UNKNOWN, Durability.CLAIMED}


Finding = Ranked | Against | Parts | Kept


@dataclass(frozen=True, slots=True)
class Answer:
    """A question with all that was found; nothing where the run has no such cells."""

    question: Question
    findings: tuple[Finding, ...]

    @property
    def answered(self) -> bool:
        """Whether nothing is missing."""
        return bool(self.findings) and all(finding.answered for finding in self.findings)


def answers(analysis: Analysis) -> tuple[Answer, ...]:
    """The answers to all questions of the run's plan, in order."""
    makers: Mapping[Asked, Callable[[Question, Analysis], Iterator[Finding]]] = {
        Asked.BEST: _ranked,
        Asked.COMPARE: _against,
        Asked.PARTS: _parts,
        Asked.DURABILITY: _kept,
    }
    return tuple(
        Answer(question, tuple(makers[question.wants](question, analysis)))
        for question in analysis.plan.questions
    )


def more_blocks(comparison: Comparison) -> int | None:
    """How many more blocks would probably tell two cells apart; None where that cannot be said."""
    if comparison.ci is None or comparison.ratio is None or comparison.withdrawn:
        return None
    away = abs(math.log(comparison.ratio)) - comparison.stretch
    half = half_width(comparison.ci)
    needed = blocks_until_within(half, comparison.n, away, most=_MOST_BLOCKS)
    if needed is None:
        return None
    needed = max(needed, MIN_BLOCKS)  # fewer never tell
    return needed - comparison.n if needed > comparison.n else None


def _about(question: Question, analysis: Analysis) -> list[CellResult]:
    return [result for result in _measured(analysis) if fits(result.cell, question.where)]


def _measured(analysis: Analysis) -> list[CellResult]:
    """What answers may be about: no copies, and no cells that were left out when the time got short."""
    gone = set(analysis.plan.context.no_time)
    return [result for result in analysis.cells if result.cell.null_of is None and result.cell.id not in gone]


def _metric(question: Question, result: CellResult, analysis: Analysis) -> Metric | None:
    """The metric that the question is about, else the primary one of the cell's table."""
    named = {metric.name: metric for metric in analysis.plan.metrics}
    if question.metric:
        return named.get(question.metric)
    for workload in analysis.workloads:
        if result in workload.cells and workload.metrics:
            return workload.metrics[0]
    return analysis.plan.metrics[0] if analysis.plan.metrics else None


# --- the best -----------------------------------------------------------------------------------------------


def _ranked(question: Question, analysis: Analysis) -> Iterator[Ranked]:
    # "write on tcg", in whatever order the plan names them.
    first = [name for name in (WORKLOAD, PLATFORM) if name in question.per]
    per = [*first, *(name for name in question.per if name not in first)]
    by_id = {result.cell.id: result for result in _measured(analysis)}
    groups = groups_of(question, (result.cell for result in by_id.values()))
    several = [group for group in groups if len(group) > 1]
    for group in several or groups:  # one alone has nothing to be compared with
        results = [by_id[cell.id] for cell in group]
        of = tuple(_level(results[0], name) for name in per)
        metric = next((found for result in results if (found := _metric(question, result, analysis))), None)
        if metric is not None:
            yield _order(of, results, metric, question, analysis)


def _level(result: CellResult, name: str) -> str:
    if name == WORKLOAD:
        return result.cell.workload.label or result.cell.workload.name
    if name == PLATFORM:
        return str(result.cell.platform)
    return result.cell.shown(name) or shown_level(result.cell, name) or "–"


def _order(
    of: tuple[str, ...],
    results: Sequence[CellResult],
    metric: Metric,
    question: Question,
    analysis: Analysis,
) -> Ranked:
    measured = [result for result in results if metric.name in result.summary]
    missing = tuple(result for result in results if result not in measured)
    able = [result for result in measured if _is(result, question)]
    barred = tuple(result for result in measured if result not in able)
    sign = 1 if metric.better is Better.LOWER else -1
    ordered = sorted(able, key=lambda result: sign * result.summary[metric.name].typical)
    if not ordered:
        return Ranked(of, metric, (), barred=barred, missing=missing)
    pairs = [(second.cell.id, first.cell.id) for first, second in combinations(ordered, 2)]
    found = compare_pairs(pairs, metric, analysis)
    beaten = {first for (first, _), comparison in found.items() if comparison.verdict is Verdict.SLOWER}
    beaten |= {second for (_, second), comparison in found.items() if comparison.verdict is Verdict.FASTER}
    best = next((result for result in ordered if result.cell.id not in beaten), ordered[0])
    others = [result for result in ordered if result is not best]
    against = {
        result.cell.id: comparison
        for result in others
        if (comparison := _compared(result, best, found)) is not None
    }
    return Ranked(
        of,
        metric,
        tuple(ordered),
        best,
        tuple(result for result in others if result.cell.id not in beaten),
        against,
        barred,
        missing,
    )


def _is(result: CellResult, question: Question) -> bool:
    """Whether it is as durable as the question wants, the row itself or its disk."""
    if question.disk and (of_disk(result) or durability(result)) not in question.disk:
        return False
    words = {str(word) for word in verdicts(result)}
    return not question.durability or (bool(words) and words <= set(question.durability))


def _compared(result: CellResult, best: CellResult, found: Mapping[Pair, Comparison]) -> Comparison | None:
    """The cell over the best one: where that ranks behind it, there is none this way round."""
    return found.get((result.cell.id, best.cell.id))


# --- some against others ------------------------------------------------------------------------------------


def _against(question: Question, analysis: Analysis) -> Iterator[Against]:
    results = {result.cell.id: result for result in _about(question, analysis)}
    pairs: dict[Metric, list[tuple[CellResult, CellResult]]] = {}
    for one, other in pairs_of(question, (result.cell for result in results.values())):
        first, second = results[one.id], results[other.id]
        metric = _metric(question, first, analysis)
        if metric is not None:
            pairs.setdefault(metric, []).append((first, second))
    for metric, some in pairs.items():
        found = compare_pairs([(first.cell.id, second.cell.id) for first, second in some], metric, analysis)
        for first, second in some:
            yield Against(
                metric,
                first,
                second,
                found.get((first.cell.id, second.cell.id)),
                _published(first, second, metric, analysis),
            )


def _published(first: CellResult, second: CellResult, metric: Metric, analysis: Analysis) -> float | None:
    for published in analysis.plan.published:
        mine, theirs = figure_for(first, published), figure_for(second, published)
        if published.metric != metric.name or not mine or not theirs:
            continue
        if mine.value != theirs.value:  # otherwise it is the one figure that the publication has for both
            return mine.value / theirs.value
    return None


# --- parts, and power cuts ----------------------------------------------------------------------------------


def _parts(question: Question, analysis: Analysis) -> Iterator[Parts]:
    named = {metric.name: metric for metric in analysis.plan.metrics}
    for result in _about(question, analysis):
        parts = [
            (named[name], result.summary[name].typical)
            for name in question.parts
            if name in named and name in result.summary and result.summary[name].typical > 0
        ]
        if len(parts) >= _FEWEST_PARTS:
            yield Parts(result, tuple(sorted(parts, key=lambda part: -part[1])))


def _kept(question: Question, analysis: Analysis) -> Iterator[Kept]:
    by_word: dict[Durability, list[CellResult]] = {}
    for result in _about(question, analysis):
        for word in verdicts(result):
            by_word.setdefault(word, []).append(result)
    for word in Durability:
        if word in by_word:
            yield Kept(word, tuple(by_word[word]))

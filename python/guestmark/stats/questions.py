"""Answers to a plan's questions: the cells that each question is about, and the results of their trials."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations
from statistics import fmean

from guestmark.core.cell_levels import (
    PLATFORM,
    WORKLOAD,
    describe_level,
    group_cells,
    matches_levels,
    pair_cells,
)
from guestmark.core.findings import Durability
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Question, QuestionKind
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import MIN_BLOCKS, Comparison, Verdict
from guestmark.stats.durability import describe_disk_durability, describe_row_durability, find_durability
from guestmark.stats.pairwise import compare_pairs
from guestmark.stats.published import Conclusion, compute_published_ratio, judge_conclusion
from guestmark.stats.repetition import count_blocks_until_within, half_width
from guestmark.stats.stopping import FEWEST_IF_SETTLED

_MOST_BLOCKS = 1000  # a forecast beyond this does not help
_FEWEST_PARTS = 2
_ALIKE_WITHIN = 0.05  # of the total


@dataclass(frozen=True, slots=True)
class Ranking:
    """Cells by a metric, best first. No cell is shown to be better than `best` and the `contenders`.

    `against_best` compares each other cell with the best one. `excluded` cells were measured but are not what was asked
    for; `missing` ones were not measured.
    """

    # The levels of the names in the question's `per`, workload and platform first.
    levels: tuple[str, ...]
    metric: Metric
    cells: tuple[CellResult, ...]
    best: CellResult | None = None
    contenders: tuple[CellResult, ...] = ()
    against_best: Mapping[str, Comparison] = field(default_factory=dict)
    excluded: tuple[CellResult, ...] = ()
    missing: tuple[CellResult, ...] = ()

    @property
    def answered(self) -> bool:
        """True if there is a best cell, or several that are shown to differ little, if at all."""
        return self.best is not None and len(self.cells) > 1 and not self.open_contenders

    @property
    def open_contenders(self) -> list[CellResult]:
        """The contenders that may well be much better or worse than the best cell."""
        found = []
        for result in self.contenders:
            comparison = self.against_best.get(result.cell.id)
            # Cells without a common block were never compared.
            if comparison is None or comparison.is_open:
                found.append(result)
        return found

    @property
    def is_best_shown(self) -> bool:
        """True if every other cell is shown to be worse than the best one."""
        return all(self.verdict(result) is Verdict.SLOWER for result in self.cells if result is not self.best)

    def verdict(self, result: CellResult) -> Verdict | None:
        """Return the verdict of a cell over the best one; None if they were not compared."""
        comparison = self.against_best.get(result.cell.id)
        return None if comparison is None else comparison.verdict

    def is_alike(self, result: CellResult) -> bool:
        """Return True if the cell's typical run is shown to equal the best cell's."""
        comparison = self.against_best.get(result.cell.id)
        return comparison is not None and comparison.typical_is_equal


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """One cell compared with another; without a comparison one of them was not measured."""

    metric: Metric
    first: CellResult
    second: CellResult
    comparison: Comparison | None
    published: float | None = None

    @property
    def answered(self) -> bool:
        """True if there is a verdict, or the interval shows that any difference is small."""
        return self.comparison is not None and not self.comparison.is_open

    @property
    def conclusion(self) -> Conclusion:
        """Whether the published conclusion about these cells holds, does not hold, or is open."""
        return judge_conclusion(self.comparison, self.published)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The parts that a cell's sum consists of, the largest first, in the metrics' unit."""

    result: CellResult
    parts: tuple[tuple[Metric, float], ...]

    @property
    def answered(self) -> bool:
        """Always true: breakdowns are created only from measured values."""
        return True

    @property
    def total(self) -> float:
        """The sum of the parts, or 1 for parts that are shares of a whole already and do not fill it."""
        summed = sum(value for _, value in self.parts)
        is_of_whole = not any(metric.unit for metric, _ in self.parts)
        return max(summed, 1.0) if is_of_whole else summed

    @property
    def shares(self) -> list[tuple[Metric, float]]:
        """Each part's share of the total, from 0 to 1."""
        total = self.total
        return [(metric, value / total) for metric, value in self.parts]


@dataclass(frozen=True, slots=True)
class DurabilityGroup:
    """Cells whose durability is described by the same word."""

    word: Durability
    results: tuple[CellResult, ...]

    @property
    def answered(self) -> bool:
        """True if anything has been shown at all."""
        return self.word not in {Durability.UNKNOWN, Durability.CLAIMED}


Finding = Ranking | PairAnswer | Breakdown | DurabilityGroup


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """A question with all its findings; there are none if the run has no such cells."""

    question: Question
    findings: tuple[Finding, ...]
    # Cells of the question that were dropped because time ran short, before they had blocks enough for an answer.
    no_time: tuple[CellResult, ...] = ()

    @property
    def answered(self) -> bool:
        """True if nothing is missing."""
        return bool(self.findings) and all(finding.answered for finding in self.findings)


def answer_plan_questions(analysis: Analysis) -> tuple[QuestionAnswer, ...]:
    """Answer all questions of the run's plan, in order."""
    answering: Mapping[QuestionKind, Callable[[Question, Analysis], Iterator[Finding]]] = {
        QuestionKind.BEST: _rank_groups,
        QuestionKind.COMPARE: _yield_pair_answers,
        QuestionKind.PARTS: _yield_breakdowns,
        QuestionKind.DURABILITY: _group_by_durability,
    }
    answers = []
    for question in analysis.plan.questions:
        findings = tuple(answering[question.wants](question, analysis))
        answers.append(QuestionAnswer(question, findings, no_time=_find_dropped(question, analysis)))
    return tuple(answers)


def _find_dropped(question: Question, analysis: Analysis) -> tuple[CellResult, ...]:
    """Return the cells of a question that no answer is about because time ran short."""
    cells = [result.cell for result in analysis.cells if result.cell.null_of is None]
    asked = {cell.id for cell in cells if matches_levels(cell, question.where)}
    if question.wants is QuestionKind.COMPARE:
        # A cell that has one side's levels, but nothing on the other side, would not have been compared anyway.
        asked = {cell.id for cell in chain.from_iterable(pair_cells(question, cells))}
    return tuple(
        result
        for result in analysis.cells
        if result.cell.id in asked and _was_dropped_early(result, analysis)
    )


def forecast_more_blocks(comparison: Comparison) -> int | None:
    """Return how many more blocks would probably tell two cells apart; None if that cannot be forecast."""
    if comparison.ci is None or comparison.ratio is None or comparison.withdrawn:
        return None
    distance = abs(math.log(comparison.ratio)) - comparison.stretch
    needed = count_blocks_until_within(half_width(comparison.ci), comparison.n, distance, most=_MOST_BLOCKS)
    if needed is None:
        return None
    # Fewer blocks give no verdict, however narrow the interval.
    needed = max(needed, MIN_BLOCKS)
    return needed - comparison.n if needed > comparison.n else None


def _list_measured_cells(analysis: Analysis) -> list[CellResult]:
    """Return the cells that answers may be about: no null copies, and none that was dropped too early."""
    measured = []
    for result in analysis.cells:
        if result.cell.null_of is None and not _was_dropped_early(result, analysis):
            measured.append(result)
    return measured


def _was_dropped_early(result: CellResult, analysis: Analysis) -> bool:
    """Return whether the cell was dropped for lack of time, with fewer blocks than a large difference needs."""
    return result.cell.id in analysis.plan.context.no_time and len(result.good_trials) < FEWEST_IF_SETTLED


def _select_cells(question: Question, analysis: Analysis) -> list[CellResult]:
    measured = _list_measured_cells(analysis)
    return [result for result in measured if matches_levels(result.cell, question.where)]


def find_question_metric(question: Question, cell_id: str, analysis: Analysis) -> Metric | None:
    """Return the metric that the question names, else the primary one of the cell's table."""
    if question.metric:
        return analysis.plan.find_metric(question.metric)
    return analysis.find_primary_metric(cell_id)


# --- the best cell ------------------------------------------------------------------------------------------


def _rank_groups(question: Question, analysis: Analysis) -> Iterator[Ranking]:
    # Sentences say "write on tcg", in whatever order the plan names the two.
    leading = [name for name in (WORKLOAD, PLATFORM) if name in question.per]
    names = [*leading, *(name for name in question.per if name not in leading)]
    measured = _list_measured_cells(analysis)
    by_id = {result.cell.id: result for result in measured}
    groups = group_cells(question, [result.cell for result in measured])
    # A cell alone in its group has nothing to be compared with, and is shown only if all groups are like that.
    several = [group for group in groups if len(group) > 1]
    for group in several or groups:
        results = [by_id[cell.id] for cell in group]
        levels = tuple(_describe_level(results[0], name) for name in names)
        metric = _choose_group_metric(question, results, analysis)
        if metric is not None:
            yield _rank_results(levels, results, metric, question, analysis)


def _choose_group_metric(
    question: Question, results: Iterable[CellResult], analysis: Analysis
) -> Metric | None:
    """Return the metric of the first cell that has one."""
    for result in results:
        metric = find_question_metric(question, result.cell.id, analysis)
        if metric is not None:
            return metric
    return None


def _describe_level(result: CellResult, name: str) -> str:
    if name == WORKLOAD:
        return result.cell.workload.label or result.cell.workload.name
    if name == PLATFORM:
        return str(result.cell.platform)
    return result.cell.get_displayed_level(name) or describe_level(result.cell, name) or "–"


def _rank_results(
    levels: tuple[str, ...],
    results: Sequence[CellResult],
    metric: Metric,
    question: Question,
    analysis: Analysis,
) -> Ranking:
    eligible, excluded, missing = _split_by_eligibility(results, metric, question)
    sign = 1 if metric.better is Better.LOWER else -1
    ordered = sorted(eligible, key=lambda result: sign * result.summary[metric.name].typical)
    if not ordered:
        return Ranking(levels, metric, (), excluded=excluded, missing=missing)
    pairs = [(second.cell.id, first.cell.id) for first, second in combinations(ordered, 2)]
    compared = compare_pairs(pairs, metric, analysis)
    beaten = _find_beaten(compared)
    unbeaten = [result for result in ordered if result.cell.id not in beaten]
    # The cell with the best typical value may be beaten by one whose blocks pair better.
    best, *contenders = unbeaten or ordered[:1]
    against_best = {}
    for result in ordered:
        # If the best one has the worse typical value, the pair was compared the other way round only.
        pair = (result.cell.id, best.cell.id)
        if pair in compared:
            against_best[result.cell.id] = compared[pair]
    return Ranking(levels, metric, tuple(ordered), best, tuple(contenders), against_best, excluded, missing)


def _split_by_eligibility(
    results: Iterable[CellResult], metric: Metric, question: Question
) -> tuple[tuple[CellResult, ...], tuple[CellResult, ...], tuple[CellResult, ...]]:
    """Return the cells that may be best, those that are not durable enough, and those without a value."""
    eligible, excluded, missing = [], [], []
    for result in results:
        if metric.name not in result.summary:
            missing.append(result)
        elif is_durable_enough(result, question):
            eligible.append(result)
        else:
            excluded.append(result)
    return tuple(eligible), tuple(excluded), tuple(missing)


def _find_beaten(compared: Mapping[tuple[str, str], Comparison]) -> set[str]:
    """Return the cells that are shown to be worse than any other; pairs are the first cell over the second."""
    beaten = set()
    for (first, second), comparison in compared.items():
        if comparison.verdict is Verdict.SLOWER:
            beaten.add(first)
        elif comparison.verdict is Verdict.FASTER:
            beaten.add(second)
    return beaten


def is_durable_enough(result: CellResult, question: Question) -> bool:
    """Return True if the row, or the disk below it, is as durable as the question wants."""
    if (
        question.disk
        and (describe_disk_durability(result) or describe_row_durability(result)) not in question.disk
    ):
        return False
    words = {str(word) for word in find_durability(result)}
    return not question.durability or (bool(words) and words <= set(question.durability))


# --- pairs of cells -----------------------------------------------------------------------------------------


def _yield_pair_answers(question: Question, analysis: Analysis) -> Iterator[PairAnswer]:
    results = {result.cell.id: result for result in _select_cells(question, analysis)}
    pairs: dict[Metric, list[tuple[CellResult, CellResult]]] = {}
    for cell, other in pair_cells(question, (result.cell for result in results.values())):
        first, second = results[cell.id], results[other.id]
        metric = find_question_metric(question, first.cell.id, analysis)
        if metric is not None:
            pairs.setdefault(metric, []).append((first, second))
    for metric, of_metric in pairs.items():
        ids = [(first.cell.id, second.cell.id) for first, second in of_metric]
        compared = compare_pairs(ids, metric, analysis)
        for first, second in of_metric:
            comparison = compared.get((first.cell.id, second.cell.id))
            published = _find_published(first, second, metric, analysis)
            yield PairAnswer(metric, first, second, comparison, published)


def _find_published(
    first: CellResult, second: CellResult, metric: Metric, analysis: Analysis
) -> float | None:
    for published in analysis.plan.published:
        ratio = compute_published_ratio(first.cell, second.cell, published)
        if published.metric == metric.name and ratio is not None:
            return ratio
    return None


# --- parts, and power cuts ----------------------------------------------------------------------------------


def _yield_breakdowns(question: Question, analysis: Analysis) -> Iterator[Breakdown]:
    by_name = {metric.name: metric for metric in analysis.plan.metrics}
    for result in _select_cells(question, analysis):
        parts = []
        for name in question.parts:
            summary = result.summary.get(name)
            if name in by_name and summary is not None and summary.typical > 0:
                parts.append((by_name[name], summary.typical))
        if len(parts) >= _FEWEST_PARTS:
            yield Breakdown(result, tuple(sorted(parts, key=lambda part: -part[1])))


def have_alike_shares(breakdowns: Sequence[Breakdown]) -> bool:
    """Return whether all have the same parts, with shares that differ by no more than a twentieth of the total."""
    shares = [dict(breakdown.shares) for breakdown in breakdowns]
    if any(own.keys() != shares[0].keys() for own in shares):
        return False
    by_metric = [[own[metric] for own in shares] for metric in shares[0]]
    return all(max(some) - min(some) <= _ALIKE_WITHIN for some in by_metric)


def average_shares(breakdowns: Sequence[Breakdown]) -> list[tuple[Metric, float]]:
    """Return the mean of each part's shares, in the first one's order; all have the same parts."""
    shares = [dict(breakdown.shares) for breakdown in breakdowns]
    return [(metric, fmean(own[metric] for own in shares)) for metric in shares[0]]


def _group_by_durability(question: Question, analysis: Analysis) -> Iterator[DurabilityGroup]:
    by_word: dict[Durability, list[CellResult]] = {}
    for result in _select_cells(question, analysis):
        for word in find_durability(result):
            by_word.setdefault(word, []).append(result)
    # Losses come first, because a screen may have no room for the rest.
    for word in sorted(Durability, key=lambda word: not word.is_loss):
        if word in by_word:
            yield DurabilityGroup(word, tuple(by_word[word]))

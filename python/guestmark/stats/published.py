"""Published figures for the cells of a run, and whether the run reproduces them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.cell_levels import get_level
from guestmark.core.metric import Better
from guestmark.core.model import Cell, Plan, Published, PublishedFigure
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.compare import BOUNDED_RATIO, Comparison, Verdict

# Published figures are rounded: 1500 MB in 8 s are given as 188 MB/s.
_ROUNDING = 1.1


class Repetition(StrEnum):
    """Whether a published ratio was reproduced."""

    # The published ratio lies in the interval of today's.
    SAME = "agrees"
    DIRECTION = "same way"
    OPPOSITE = "opposite"
    EQUAL = "equal now"  # it was different
    DIFFERS = "differs now"  # it was equal
    # No difference is shown, and neither then nor now is it above `BOUNDED_RATIO`.
    BOUNDED = "small then and now"
    # No difference is shown, and today's interval excludes the published one twice over.
    EXCLUDED = "not as then"
    OPEN = "open"


class Agreement(StrEnum):
    """How the interval of a comparison relates to a published ratio."""

    UNKNOWN = "unknown"  # a single block has no interval
    # A difference is shown, and its interval holds the published ratio.
    CONTAINED = "contained"
    # No difference is shown, and the published ratio is not excluded.
    POSSIBLE = "possible"
    # The direction is the published one, the size is not.
    OTHER_FACTOR = "other factor"
    EXCLUDED = "excluded"


class Conclusion(StrEnum):
    """Whether a published conclusion about which of two cells is better was reproduced."""

    HOLDS = "holds"
    FAILS = "does not hold"
    OPEN = "is undecided"


class FasterClaim(StrEnum):
    """Whether the published statement that one cell is faster than another still holds."""

    HOLDS = "holds"
    OTHER_FACTOR = "holds, by another factor"
    FAILS = "fails"
    TOO_LARGE = "so large a difference is excluded"
    OPEN = "open"


def find_figure(cell: Cell, published: Published) -> PublishedFigure | None:
    """Return the most specific figure whose every key matches this cell; None for a null cell."""
    fitting = [figure for figure in published.figures if is_about(figure.cell, cell)]
    return max(fitting, key=lambda figure: len(figure.cell), default=None)


def is_about(levels: Mapping[str, str], cell: Cell) -> bool:
    """Return True if the cell has all these levels and is not a null cell."""
    return cell.null_of is None and all(get_level(cell, name) == level for name, level in levels.items())


def compute_ratio_to_baseline(figure: PublishedFigure | None) -> float | None:
    """Return a figure's ratio to the publication's own baseline; None if it has no baseline."""
    if figure is None or not figure.baseline:
        return None
    return figure.value / figure.baseline


@dataclass(frozen=True, slots=True)
class PublishedRatio:
    """A published ratio of a cell to its baseline, and the cell's result in this run."""

    published: Published
    result: CellResult
    then: float

    @property
    def now(self) -> Comparison | None:
        """Today's comparison of the same two cells; None if one was not measured."""
        return self.result.comparison.get(self.published.metric)

    def judge(self, margin: float) -> Repetition:
        """Judge whether today's comparison repeats the published one, see `judge_repetition`."""
        return judge_repetition(self.now, self.then, margin)


def group_published_ratios(analysis: Analysis) -> list[list[PublishedRatio]]:
    """Return for each publication its ratios of this run's cells to their baselines, if it has any.

    Of publications about the same work only the first counts.
    """
    groups = []
    for published in _list_distinct_publications(analysis.plan):
        if ratios := _list_published_ratios(published, analysis.cells):
            groups.append(ratios)
    return groups


def _list_published_ratios(published: Published, results: Iterable[CellResult]) -> list[PublishedRatio]:
    """Return the publication's ratios of these cells to their baselines.

    If the publication has another baseline, its figures of both cells give the ratio.
    """
    every = list(results)
    baselines = [result.cell for result in every if result.cell.baseline]
    ratios = []
    for result in every:
        if result.cell.baseline:
            continue
        ratio = _find_ratio_to_baseline(result.cell, baselines, published)
        if ratio is not None:
            ratios.append(PublishedRatio(published, result, ratio))
    return ratios


def _find_ratio_to_baseline(cell: Cell, baselines: Iterable[Cell], published: Published) -> float | None:
    """Return the published ratio of a cell to the baseline of its own table; None if there is none."""
    for ours in baselines:
        if ours.compares_with(cell):
            return _find_ratio_between(cell, ours, published)
    return compute_ratio_to_baseline(find_figure(cell, published))


def _find_ratio_between(cell: Cell, ours: Cell, published: Published) -> float | None:
    """Return the published ratio of a cell to `ours`, which may not be the publication's baseline."""
    over = find_figure(cell, published)
    if not published.baseline or is_about(published.baseline, ours):
        return compute_ratio_to_baseline(over)
    under = find_figure(ours, published)
    if over is None or under is None or over is under:
        return None
    return over.value / under.value


def compute_published_ratio(first: Cell, second: Cell, published: Published) -> float | None:
    """Return the published ratio of two cells; None if one has no figure, or equal figures give no direction."""
    over, under = find_figure(first, published), find_figure(second, published)
    if over is None or under is None or over.value == under.value:
        return None
    return over.value / under.value


def convert_ratio(ratio: float, percent_of: str, better: Better) -> float:
    """Return a metric's ratio to its baseline as a ratio of times or of throughputs, whichever `percent_of` names.

    A metric of which less is better is a time, any other a throughput; each is the inverse of the other.
    """
    is_time = better is Better.LOWER
    return ratio if is_time == (percent_of == "time") else 1 / ratio


def is_same_work(one: Published, other: Published) -> bool:
    """Return True if two publications give times and throughputs of the same work.

    Then the product of both figures, the amount of work, is about the same for all cells. One cell cannot show that.
    """
    if one.percent_of == other.percent_of:
        return False
    mine, theirs = _index_figures(one), _index_figures(other)
    if len(mine) < 2 or mine.keys() != theirs.keys():
        return False
    if not all(value > 0 for value in (*mine.values(), *theirs.values())):
        return False
    products = [mine[cell] * theirs[cell] for cell in mine]
    return max(products) <= _ROUNDING * min(products)


def _list_distinct_publications(plan: Plan) -> list[Published]:
    """Return the publications about a metric of this plan; of those about the same work, only the first."""
    found: list[Published] = []
    for published in plan.published:
        if plan.find_metric(published.metric) is None:
            continue
        # Times and throughputs of the same work have inverse ratios, so one of them is enough.
        if not any(is_same_work(published, other) for other in found):
            found.append(published)
    return found


def _index_figures(published: Published) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(figure.cell.items()): figure.value for figure in published.figures}


def judge_repetition(now: Comparison | None, then: float, margin: float) -> Repetition:
    """Judge today's comparison by the published ratio `then`, of the same metric and the same two cells.

    Published ratios within the relative `margin` of 1 count as equal. Raises ValueError unless `then` is above 0.
    """
    if not then > 0:
        raise ValueError("a ratio must be above 0")
    if now is None or now.ratio is None:
        return Repetition.OPEN
    if now.is_undecided:
        return _judge_undecided(now, then)
    was_equal = abs(math.log(then)) <= math.log1p(margin)
    if now.typical_is_equal:
        return Repetition.SAME if was_equal else Repetition.EQUAL
    if now.ci is not None and now.ci[0] <= then <= now.ci[1]:
        return Repetition.SAME
    if was_equal:
        return Repetition.DIFFERS
    return Repetition.DIRECTION if _have_same_direction(now, then) else Repetition.OPPOSITE


def _judge_undecided(now: Comparison, then: float) -> Repetition:
    """Judge a published ratio where today's comparison has no verdict."""
    if _is_far_outside(now, then):
        return Repetition.EXCLUDED
    was_small = abs(math.log(then)) <= math.log(BOUNDED_RATIO)
    return Repetition.BOUNDED if now.is_bounded and was_small else Repetition.OPEN


def _is_far_outside(now: Comparison, then: float) -> bool:
    """Return whether `then` is more than twice as far from the middle of today's interval as its ends, in logs.

    That is rare by chance even if looked for after every block: 1 in 3,600 simulated pairs with that very ratio.
    """
    if now.ci is None or now.ci[0] <= 0 or not now.is_ratio_excluded(then):
        return False
    low, high = map(math.log, now.ci)
    return abs(math.log(then) - (low + high) / 2) > high - low


def judge_agreement(now: Comparison, then: float) -> Agreement:
    """Judge whether the interval of today's comparison agrees with the published ratio `then`."""
    if now.ci is None:
        return Agreement.UNKNOWN
    differs = not now.typical_is_equal and not now.is_undecided
    if not now.is_ratio_excluded(then):
        return Agreement.CONTAINED if differs else Agreement.POSSIBLE
    return Agreement.OTHER_FACTOR if differs and _have_same_direction(now, then) else Agreement.EXCLUDED


def judge_conclusion(now: Comparison | None, then: float | None) -> Conclusion:
    """Judge whether the measured difference has the direction of the published ratio `then`."""
    if now is None or now.ratio is None or then is None or now.is_undecided:
        return Conclusion.OPEN
    if now.typical_is_equal:
        return Conclusion.FAILS if now.is_ratio_excluded(then) else Conclusion.OPEN
    return Conclusion.HOLDS if _have_same_direction(now, then) else Conclusion.FAILS


def judge_faster_claim(now: Comparison, then: float) -> FasterClaim:
    """Judge a published statement that a cell is `then` times as fast, by its comparison over the slower one."""
    if now.verdict is Verdict.FASTER:
        return FasterClaim.OTHER_FACTOR if now.is_ratio_excluded(then) else FasterClaim.HOLDS
    if now.verdict is Verdict.SLOWER or (now.typical_is_equal and now.is_ratio_excluded(then)):
        return FasterClaim.FAILS
    return FasterClaim.TOO_LARGE if now.is_ratio_excluded(then) else FasterClaim.OPEN


def _have_same_direction(now: Comparison, then: float) -> bool:
    return ((now.ratio or 1.0) > 1) == (then > 1)

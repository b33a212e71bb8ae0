"""Published figures beside the measured ones, each with its ratio to its own baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.metric import Better, Metric
from guestmark.core.model import CellStatus, Plan, Published, PublishedFigure
from guestmark.core.units import unit_size
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import across_workloads, row_names
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, Table, by_column, figure, words
from guestmark.page.text import line
from guestmark.plan.pattern import level_of
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison
from guestmark.stats.repeated import Repeated, judge_repetition

_MEANING = {
    "time": "change: of the baseline's time, so +6 % takes 6 % longer, −50 % half as long",
    "throughput": "change: of the baseline's throughput, so +6 % moves 6 % more in a second, −50 % half as much",
}
_ROUNDED = 1.1  # published figures are: 8 s and 188 MB/s of 1500 MB


@dataclass(frozen=True, slots=True)
class Pair:
    """A cell and the published figure about it, or None."""

    result: CellResult
    figure: PublishedFigure | None


def figure_for(cell: CellResult, published: Published) -> PublishedFigure | None:
    """The most specific figure whose every key matches this cell."""
    fitting = [figure for figure in published.figures if _is_about(figure.cell, cell)]
    return max(fitting, key=lambda figure: len(figure.cell), default=None)


def _is_about(named: Mapping[str, str], result: CellResult) -> bool:
    return result.cell.null_of is None and all(
        level_of(result.cell, name) == level for name, level in named.items()
    )


def percent_ratio(ratio: float, percent_of: str, better: Better) -> float:
    """What a percentage of time or throughput is computed from, given the ratio of a metric to its baseline.

    A metric of which less is better is a time, any other a throughput; each is the inverse of the other.
    """
    is_time = better is Better.LOWER
    return ratio if is_time == (percent_of == "time") else 1 / ratio


def signed_percent(ratio: float) -> str:
    """`+6 %` for 1.06; no more digits than published figures warrant."""
    value = (ratio - 1) * 100
    places = 1 if 0.05 <= abs(value) < 9.95 else 0
    if -100 < value <= -99:  # how much is left
        places = -math.floor(math.log10(100 + value))
    text = figures.number(abs(value), places)
    sign = "" if float(text.replace(" ", "")) == 0 else "+" if value > 0 else "−"
    return f"{sign}{text} %"


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """A table for each publication that says something about this workload's cells."""
    found = []
    for published in run.plan.published:
        cells = [result for result in workload.cells if result.cell.null_of is None]
        pairs = [Pair(result, figure_for(result, published)) for result in cells]
        if any(pair.figure for pair in pairs):
            found.append(_table(workload, pairs, published, run.plan))
    return found


def _table(workload: WorkloadResult, pairs: Sequence[Pair], published: Published, plan: Plan) -> Table:
    metric = next(
        (metric for metric in plan.metrics if metric.name == published.metric),
        Metric(published.metric, published.unit),
    )
    unit = figures.Unit(unit_size(published.unit, metric.unit), published.unit)
    now_ratios = [_now_ratio(pair.result, metric) for pair in pairs]
    then_ratios = [_then_ratio(pair.figure) for pair in pairs]
    of = published.percent_of
    columns = (
        Column(f"now, {unit.name}", (Align.POINT,)),
        Column("×base", (Align.POINT,)),
        Column("change", (Align.RIGHT,)),
        Column(f"then, {unit.name}", (Align.POINT,)),
        Column("×base", (Align.POINT,)),
        Column("change", (Align.RIGHT,)),
    )
    headings, names = row_names(workload, [pair.result for pair in pairs])
    rows = tuple(
        Row(
            name,
            (
                _now(pair.result, metric, unit),
                _ratio(now_ratio),
                _percent(now_ratio, of, metric),
                _then(pair.figure),
                _ratio(then_ratio),
                _percent(then_ratio, of, metric),
            ),
        )
        for name, pair, now_ratio, then_ratio in zip(names, pairs, now_ratios, then_ratios, strict=True)
    )
    small = [f"then: {published.source}", *([published.conditions] if published.conditions else [])]
    small.append(f"×base: {published.metric} against the baseline's; then: against the publication's own")
    if other := _other_baseline(pairs, published):
        small.append(other)
    small.append(_MEANING[of])
    if (scale := plan.context.scale) != 1.0:
        small.append(f"now is at scale {scale:g}, then was at full size: compare ratios, not seconds")
    called = f" ({published.name})" if published.name else ""
    title = f"Then and now: {figures.heading(metric, unit)}{called}"
    return Table(title, headings, columns, rows, legend=tuple(map(line, small)), heading=title)


def overview(analysis: Analysis) -> Table | None:
    """Every published comparison of cells that this run has: today's ratio, whether it agrees, and the published one.

    A row for each kind of cell, a column for each platform. Publications that give the same figures in another unit are
    shown once; None where no figure is about these cells.
    """
    plan = analysis.plan
    found: dict[tuple[str, str], tuple[Comparison | None, float]] = {}
    shown: list[Published] = []
    for published in plan.published:
        metric = next((each for each in plan.metrics if each.name == published.metric), None)
        if metric is None or any(_says_the_same(published, other) for other in shown):
            continue
        about = [
            (result, ratio)
            for result in analysis.cells
            if (then := figure_for(result, published)) is not None
            and (ratio := _then_ratio(then)) is not None
            and not result.cell.baseline
        ]
        called = across_workloads([result for result, _ in about])
        for result, ratio in about:
            name = f"{called[result.cell.id]}, {published.name}" if published.name else called[result.cell.id]
            found[name, str(result.cell.platform)] = (result.comparison.get(metric.name), ratio)
        if about:
            shown.append(published)
    if not found:
        return None
    small = [_NOW_AND_THEN, *(f"then: {source}" for source in dict.fromkeys(each.source for each in shown))]
    scale = plan.context.scale
    size = "" if scale == 1.0 else f" at {scale:g} of the sizes"
    platforms = list(dict.fromkeys(platform for _, platform in found))
    thens: dict[str, set[float]] = {}
    for (name, _), (_, ratio) in found.items():
        thens.setdefault(name, set()).add(ratio)
    once = all(len(several) == 1 for several in thens.values())  # then one column is enough
    filled = {
        at: figure(*_today(comparison, ratio, plan.policy.margin), *([] if once else [f"×{_short(ratio)}"]))
        for at, (comparison, ratio) in found.items()
    }
    if once:
        filled |= {(name, "then"): figure(f"×{_short(ratio)}") for name, (ratio,) in thens.items()}
    pieces = (Align.POINT, Align.LEFT, Align.POINT)[: 2 if once else 3]
    columns = [*platforms, *(["then"] if once else [])]
    return by_column(f"Now{size} and then, ×base", columns, pieces, filled, tuple(map(line, small)))


_SIGNS = {
    Repeated.SAME: "✓",
    Repeated.DIRECTION: "~",
    Repeated.OPPOSITE: "✗",
    Repeated.EQUAL: "✗",
    Repeated.DIFFERS: "✗",
    Repeated.OPEN: "?",
}
_NOW_AND_THEN = "✓ agrees   ~ same direction, by another factor   ✗ not so today   ? open"


def _today(now: Comparison | None, then: float, margin: float) -> tuple[str, str]:
    """Today's ratio, and the sign of what became of the published one."""
    ratio = "–" if now is None or now.ratio is None else figures.ratio(now.ratio, now.ci).partition(" ")[0]
    return ratio, _SIGNS[judge_repetition(now, then, margin)]


def _says_the_same(one: Published, other: Published) -> bool:
    """Whether they give times and throughputs of the same work: the products of both are alike for all cells."""
    mine, theirs = (
        {frozenset(each.cell.items()): each.value for each in published.figures} for published in (one, other)
    )
    if mine.keys() != theirs.keys() or not all(value > 0 for value in (*mine.values(), *theirs.values())):
        return False
    products = [mine[cell] * theirs[cell] for cell in mine]
    return max(products) <= _ROUNDED * min(products)


def _other_baseline(pairs: Sequence[Pair], published: Published) -> str:
    """A remark for when the published and measured baselines differ."""
    ours = next((pair.result for pair in pairs if pair.result.cell.baseline), None)
    if ours is None or not published.baseline or _is_about(published.baseline, ours):
        return ""
    theirs = " ".join(f"{name}={level}" for name, level in published.baseline.items())
    return f"the baselines differ, now {ours.cell.id}, then {theirs}: the ratios are not comparable"


def _now(result: CellResult, metric: Metric, unit: figures.Unit) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return words("–" if result.status is CellStatus.OK else result.status.value)
    return figure(figures.estimate(summary.typical, summary.typical_ci, unit)[0])


def _then(published: PublishedFigure | None) -> Cell:
    return (
        figure("–")
        if published is None
        else figure(figures.number(published.value, _places(published.value)))
    )


def _now_ratio(result: CellResult, metric: Metric) -> float | None:
    if result.cell.baseline:
        return 1.0 if metric.name in result.summary else None
    comparison = result.comparison.get(metric.name)
    return None if comparison is None else comparison.ratio


def _then_ratio(published: PublishedFigure | None) -> float | None:
    return None if published is None or not published.baseline else published.value / published.baseline


def _ratio(ratio: float | None) -> Cell:
    return figure("–") if ratio is None else figure(f"×{_short(ratio)}")


def _short(ratio: float) -> str:
    """Two decimals; none for large values, two significant digits for small ones."""
    if ratio >= 99.5:
        return figures.number(ratio, 0)
    return figures.number(ratio, 2 if ratio >= 0.095 or ratio <= 0 else figures.decimals(None, ratio) - 1)


def _percent(ratio: float | None, of: str, metric: Metric) -> Cell:
    if ratio is None or ratio <= 0:
        return figure("–")
    return figure(signed_percent(percent_ratio(ratio, of, metric.better)))


def _places(value: float) -> int:
    """As many decimals as the publication gave, at most six."""
    return len(f"{value:.6f}".rstrip("0").partition(".")[2])


def not_measured(analysis: Analysis) -> list[Bullets]:
    """The published figures about cells this run does not have, so that none is hidden."""
    parts = []
    for published in analysis.plan.published:
        used = [figure_for(result, published) for result in analysis.cells]
        rest = [each for each in published.figures if not any(each is other for other in used)]
        if not rest:
            continue
        where = f" ({published.name})" if published.name else ""
        items = []
        for each in rest:
            cell = " ".join(f"{name}={level}" for name, level in each.cell.items())
            value = figures.number(each.value, _places(each.value))
            items.append(line(f"{cell}: {value} {published.unit}"))
        parts.append(Bullets(line(f"Published{where}, not measured in this run:"), tuple(items)))
    return parts

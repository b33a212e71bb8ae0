"""Then and now: published figures beside the measured ones, each with its ratio to its own baseline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from guestmark.core.model import Better, Metric, Plan, Published, PublishedFigure
from guestmark.plan.pattern import level_of
from guestmark.plan.published_units import size_of
from guestmark.report import figures
from guestmark.report.document import clean
from guestmark.report.rows import Names, plain_table, taken
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult

_MEANING = {
    "time": "time: of the baseline's time, so +6 % takes 6 % longer, −50 % half as long",
    "throughput": "throughput: of the baseline's throughput, so +6 % moves 6 % more in a second, −50 % half as much",
}


@dataclass(frozen=True, slots=True)
class Pair:
    """One cell with the published figure about it (None: none is)."""

    result: CellResult
    figure: PublishedFigure | None


def figure_for(cell: CellResult, published: Published) -> PublishedFigure | None:
    """The figure about this cell: all that it names agrees; of several the one that names most."""
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
    """`+6 %` for 1.06; no more digits than make sense beside published figures."""
    value = (ratio - 1) * 100
    places = 1 if 0.05 <= abs(value) < 9.95 else 0
    if -100 < value <= -99:  # how much is left
        places = -math.floor(math.log10(100 + value))
    text = figures.number(abs(value), places)
    sign = "" if float(text.replace(" ", "")) == 0 else "+" if value > 0 else "−"
    return f"{sign}{text} %"


@dataclass(frozen=True, slots=True)
class Side:
    """One publication beside one table: a row for each pair, the columns of figures with their headings first."""

    title: str
    pairs: tuple[Pair, ...]
    numbers: tuple[list[str], ...]
    small_print: tuple[str, ...]


def sides(workload: WorkloadResult, plan: Plan) -> list[Side]:
    """Then and now, for each publication that says something about this table's cells."""
    found = []
    for published in plan.published:
        cells = [result for result in workload.cells if result.cell.null_of is None]
        pairs = tuple(Pair(result, figure_for(result, published)) for result in cells)
        if any(pair.figure for pair in pairs):
            found.append(_side(pairs, published, plan))
    return found


def _side(pairs: tuple[Pair, ...], published: Published, plan: Plan) -> Side:
    metric = next(
        (metric for metric in plan.metrics if metric.name == published.metric),
        Metric(published.metric, published.unit),
    )
    unit = figures.Unit(size_of(published.unit, metric.unit), published.unit)
    then = [_then(pair.figure) for pair in pairs]
    now_ratios = [_now_ratio(pair.result, metric) for pair in pairs]
    then_ratios = [_then_ratio(pair.figure) for pair in pairs]
    of = published.percent_of
    numbers = (
        [f"now, {unit.name}", *figures.aligned([_now(pair.result, metric, unit) for pair in pairs])],
        ["×base", *_ratio_texts(now_ratios)],
        [of, *_percents(now_ratios, of, metric)],
        [f"then, {unit.name}", *figures.aligned(then)],
        ["×base", *_ratio_texts(then_ratios)],
        [of, *_percents(then_ratios, of, metric)],
    )
    small = [f"then: {published.source}", *([published.conditions] if published.conditions else [])]
    small.append(f"×base: {published.metric} against the baseline's; then: against the publication's own")
    if other := _other_baseline(pairs, published):
        small.append(other)
    small.append(_MEANING[of])
    if scale := plan.context.get("scale"):
        small.append(f"now is at scale {scale:g}, then at full size: ratios can be compared, seconds cannot")
    called = f" ({published.name})" if published.name else ""
    title = f"Then and now: {figures.heading(metric, unit)}{called}"
    return Side(str(clean(title)), pairs, numbers, tuple(str(clean(line)) for line in small))


def then_parts(workload: WorkloadResult, plan: Plan, names: Names) -> list[RenderableType]:
    """The tables of then and now, for the terminal."""
    parts: list[RenderableType] = []
    for side in sides(workload, plan):
        room = names.width - taken(side.numbers)
        columns = [*names.columns([pair.result for pair in side.pairs], room), *side.numbers]
        table = plain_table()
        for column in columns:
            table.add_column(column[0], no_wrap=True, overflow="ellipsis")
        for row in range(1, len(side.pairs) + 1):
            table.add_row(*(Text(column[row]) for column in columns))
        lines = [Text(line, style="dim", overflow="fold") for line in side.small_print]
        parts += [Text(side.title, style="bold"), table, *lines, Text()]
    return parts


def _other_baseline(pairs: Sequence[Pair], published: Published) -> str:
    """What has to be known when then and now are not compared with the same thing."""
    ours = next((pair.result for pair in pairs if pair.result.cell.baseline), None)
    if ours is None or not published.baseline or _is_about(published.baseline, ours):
        return ""
    theirs = " ".join(f"{name}={level}" for name, level in published.baseline.items())
    return f"the baselines differ, now {ours.cell.id}, then {theirs}: the ratios are not about the same"


def _now(result: CellResult, metric: Metric, unit: figures.Unit) -> str:
    summary = result.summary.get(metric.name)
    if summary is None:
        return result.status.value if result.status.value != "ok" else "–"
    return figures.estimate(summary.mean, summary.ci, unit)[0]


def _then(figure: PublishedFigure | None) -> str:
    return "–" if figure is None else figures.number(figure.value, _places(figure.value))


def _now_ratio(result: CellResult, metric: Metric) -> float | None:
    if result.cell.baseline:
        return 1.0 if metric.name in result.summary else None
    comparison = result.comparison.get(metric.name)
    return None if comparison is None else comparison.ratio


def _then_ratio(figure: PublishedFigure | None) -> float | None:
    return None if figure is None or not figure.baseline else figure.value / figure.baseline


def _ratio_texts(ratios: Sequence[float | None]) -> list[str]:
    return figures.aligned(["–" if ratio is None else f"×{_short(ratio)}" for ratio in ratios])


def _short(ratio: float) -> str:
    """Two decimals, none when it is large, and two digits that say something when it is small."""
    if ratio >= 99.5:
        return figures.number(ratio, 0)
    return figures.number(ratio, 2 if ratio >= 0.095 or ratio <= 0 else figures.decimals(None, ratio) - 1)


def _percents(ratios: Sequence[float | None], of: str, metric: Metric) -> list[str]:
    texts = [
        "–" if ratio is None or ratio <= 0 else signed_percent(percent_ratio(ratio, of, metric.better))
        for ratio in ratios
    ]
    room = max(map(len, texts), default=0)
    return [f"{text:>{room}}" for text in texts]


def _places(value: float) -> int:
    """The decimals a publication gave: as many as the number has, at most six."""
    return len(f"{value:.6f}".rstrip("0").partition(".")[2])


def not_measured(analysis: Analysis) -> list[RenderableType]:
    """The published figures about cells this run does not have, so that none is hidden."""
    lines: list[RenderableType] = []
    for published in analysis.plan.published:
        used = [figure_for(result, published) for result in analysis.cells]
        rest = [figure for figure in published.figures if not any(figure is one for one in used)]
        if not rest:
            continue
        where = f" ({published.name})" if published.name else ""
        lines.append(Text(f"Published{where}, not measured in this run:", style="dim"))
        for figure in rest:
            cell = " ".join(f"{name}={level}" for name, level in figure.cell.items())
            value = figures.number(figure.value, _places(figure.value))
            lines.append(Text(f"  {cell}: {value} {published.unit}", style="dim", overflow="fold"))
    return [*lines, Text()] if lines else []

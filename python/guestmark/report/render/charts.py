"""Charts as SVG that follows the page: its ink, its tones, light or dark; everything is seen without a script.

Laid out here: all charts are lanes, with a cell's name above what is drawn of it, so that they can be read on a
telephone, need no legend, and say nothing by colour alone. Every mark carries what it stands for as its `title`.
`page/chart.js` shows it at once and zooms: the inner drawing moves along the axis that `data-` attributes describe.
"""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from guestmark.page.charts import Drawing, Picture, Ratios, Series, Spread, Stack
from guestmark.page.nodes import Chart
from guestmark.page.text import Tone, escape_for_csv, make_inert
from guestmark.stats.distribution import median, quantiles

WIDTH = 440  # of the drawing, in its own units: CSS pixels on a screen of about 470
_LANE = 40
_SIZE = 12.5  # of text
_WIDE_SIGN = 7.8  # what a sign takes where fonts are wide
_EDGE = 24  # from an end of an axis within which a label is drawn inwards, not cut off
_OVERHANG = 4  # room for dots that stand at an end
_LOG_FROM = 8  # how many times the smallest value the largest is before an axis is logarithmic
_LETTERED = 0.035  # share of the longest bar from which a part has room for its letter
_MOST_TICKS = 8
_FEW_POINTS = 60  # a line of more has no dots

_COLOURS = {
    Tone.FASTER: "var(--faster)",
    Tone.SLOWER: "var(--slower)",
    Tone.SAME: "var(--same)",
    Tone.UNCLEAR: "var(--unclear)",
    Tone.SOFT: "var(--soft)",
}


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from `low` to `high` along the width; labels are a sign and the value."""

    low: float
    high: float
    title: str
    log: bool = False
    sign: str = ""
    whole: bool = False

    def at(self, value: float) -> float:
        """Where a value stands; beyond an end, at that end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return WIDTH * math.log(value / self.low) / math.log(self.high / self.low)
        return WIDTH * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values."""
        if self.log:
            return ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / 5)
        step = max(1.0, math.ceil(step)) if self.whole else step
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True, slots=True)
class _Lane:
    """What stands above a lane: its label on the left and a figure, with its tone, on the right."""

    label: str
    said: str
    tone: Tone


def render_svg(chart: Chart) -> Markup:
    """The drawing, with the chart's alternative as its text."""
    match chart.drawing:
        case Picture() as picture:
            return Markup(picture.svg())  # made here, from escaped text
        case Ratios() as ratios:
            drawn = _draw_ratios(ratios)
        case Spread() as spread:
            drawn = _draw_spread(spread)
        case Series() as series:
            drawn = _draw_series(series)
        case Stack() as stack:
            drawn = _draw_stack(stack)
    lanes, axis, marks = drawn
    return _render_lanes(lanes, axis, marks, make_inert(chart.alternative))


def raw_points(drawing: Drawing) -> str:
    """The values of a chart's marks as CSV, a line for each; empty for pictures made elsewhere."""
    rows: list[tuple[object, ...]] = []
    match drawing:
        case Ratios():
            rows = [(row.label, block, f"{value:.6g}") for row in drawing.rows for block, value in row.blocks]
        case Spread():
            rows = [(row.label, f"{value:.6g}") for row in drawing.rows for value in row.values]
        case Series():
            rows = [(row.label, block, f"{value:.6g}") for row in drawing.rows for block, value in row.points]
        case Stack():
            rows = [
                (row.label, name, f"{length:.6g}")
                for row in drawing.rows
                for name, length in zip(drawing.parts, row.parts, strict=True)
                if length
            ]
        case Picture():
            return ""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        [make_inert(str(escape_for_csv(value))) for value in row] for row in rows
    )
    return out.getvalue().rstrip("\n")


# --- lanes and their axis -----------------------------------------------------------------------------------


def _render_lanes(lanes: Sequence[_Lane], axis: _Axis, marks: Sequence[Markup], alternative: str) -> Markup:
    height = _LANE * len(lanes) + 6
    frame = Markup(
        '<svg viewBox="-{over} -2 {whole} {total}" role="img" tabindex="0" aria-label="{said}"'
        ' data-low="{low:.8g}" data-high="{high:.8g}" data-scale="{scale}" data-sign="{sign}"'
        ' data-plot="0 {width}" font-family="system-ui, sans-serif" font-size="{size}" fill="var(--ink)">'
        '<g class="axis">{grid}<text x="{middle}" y="{below}" text-anchor="middle" fill="var(--soft)">'
        '{title}</text></g><svg class="plot" x="-{over}" width="{whole}" height="{height}"'
        ' viewBox="-{over} 0 {whole} {height}">{marks}</svg>'
        "{heads}</svg>"
    )
    return frame.format(
        over=_OVERHANG,
        whole=WIDTH + 2 * _OVERHANG,
        total=height + 42,
        said=alternative,
        low=axis.low,
        high=axis.high,
        scale="log" if axis.log else "whole" if axis.whole else "linear",
        sign=axis.sign,
        width=WIDTH,
        size=_SIZE,
        grid=_join_markup(
            _render_tick(axis, value, height, named) for value, named in _choose_named_ticks(axis)
        ),
        middle=WIDTH / 2,
        below=height + 36,
        title=make_inert(axis.title),
        height=height,
        marks=_join_markup(marks),
        heads=_join_markup(_render_head(lane, number, len(lanes)) for number, lane in enumerate(lanes)),
    )


def _choose_named_ticks(axis: _Axis) -> list[tuple[float, bool]]:
    """The axis's values, and whether there is room for their names: 1 comes first, the others from the left."""
    placed: list[tuple[float, float]] = []
    named = set()
    for value in sorted(axis.ticks(), key=lambda value: (value != 1, value)):
        at, wide = axis.at(value), _WIDE_SIGN * len(f"{axis.sign}{value:.10g}")
        begin = at if at < _EDGE else at - wide if at > WIDTH - _EDGE else at - wide / 2
        if all(begin >= other_end or begin + wide <= other for other, other_end in placed):
            placed.append((begin, begin + wide))
            named.add(value)
    return [(value, value in named) for value in axis.ticks()]


def _render_tick(axis: _Axis, value: float, height: float, named: bool) -> Markup:
    at = axis.at(value)
    anchor = "start" if at < _EDGE else "end" if at > WIDTH - _EDGE else "middle"
    name = Markup(
        '<text x="{at:.1f}" y="{below}" text-anchor="{anchor}" fill="var(--soft)">{sign}{value:.10g}</text>'
    ).format(at=at, below=height + 17, anchor=anchor, sign=axis.sign, value=value)
    return Markup(
        '<g class="tick"><line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="var(--line)"/>{name}</g>'
    ).format(at=at, height=height, name=name if named else "")


def _render_head(lane: _Lane, number: int, count: int) -> Markup:
    room = 0.87 * (WIDTH - len(lane.said) * _WIDE_SIGN) / _WIDE_SIGN
    label, said = make_inert(lane.label), make_inert(lane.said)
    short = label if len(label) <= room else f"{label[: max(int(room) - 1, 4)]}…"
    return Markup(
        '<text x="0" y="{y:.1f}" font-weight="600">{short}<title>{label}</title></text>'
        '<text x="{width}" y="{y:.1f}" text-anchor="end" fill="{colour}">{said}</text>'
    ).format(
        y=_lane_height(number - 0.37, count) + 4,
        short=short,
        label=label,
        width=WIDTH,
        colour=_tone_colour(lane.tone),
        said=said,
    )


def _lane_height(lane: float, count: int) -> float:
    """From half a lane above the first to a little below the last."""
    return (lane + 0.5) / (count + 0.15) * (_LANE * count + 6)


def _join_markup(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _tone_colour(tone: Tone) -> str:
    return _COLOURS.get(tone, "var(--ink)")


_Ends = tuple[float, float]


def _render_rect(x: _Ends, y: _Ends, colour: str, title: str = "") -> Markup:
    told = Markup("<title>{}</title>").format(make_inert(title)) if title else ""
    return Markup(
        '<rect x="{x:.1f}" width="{width:.1f}" y="{y:.1f}" height="{height:.1f}" fill="{colour}">{told}</rect>'
    ).format(x=x[0], width=x[1] - x[0], y=y[0], height=y[1] - y[0], colour=colour, told=told)


def _render_rule(x: float, y: float, y2: float, colour: str, width: float = 1.0) -> Markup:
    return Markup(
        '<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
    ).format(x=x, y=y, y2=y2, colour=colour, width=width)


def _render_dot(x: float, y: float, colour: str, title: str) -> Markup:
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6" fill="{}"><title>{}</title></circle>').format(
        x, y, colour, make_inert(title)
    )


def _render_group(parts: Iterable[Markup], opacity: float) -> Markup:
    return Markup('<g fill-opacity="{}">{}</g>').format(opacity, _join_markup(parts))


def _dot_offset(number: int) -> float:
    return (number % 5 - 2) * 0.05 + 0.13


_Drawn = tuple[list[_Lane], _Axis, list[Markup]]


# --- each kind ----------------------------------------------------------------------------------------------


def _draw_ratios(drawing: Ratios) -> _Drawn:
    count = len(drawing.rows)
    shown = [value for row in drawing.rows for _, value in row.blocks]
    shown += [end for row in drawing.rows for end in row.interval or (row.ratio,)]
    axis = _Axis(min([*shown, 0.98]) / 1.005, max([*shown, 1.02]) * 1.005, drawing.axis, log=True, sign="×")
    bottom = _lane_height(count - 0.35, count)
    marks = []
    if drawing.noise_floor is not None:
        band = 1 + drawing.noise_floor
        marks.append(_render_rect((axis.at(1 / band), axis.at(band)), (0, bottom), "var(--band)"))
    marks.append(_render_rule(axis.at(1), 0, bottom, "var(--soft)"))
    bars, dots, middles = [], [], []
    for lane, row in enumerate(drawing.rows):
        colour, top, base = (
            _tone_colour(row.tone),
            _lane_height(lane - 0.1, count),
            _lane_height(lane + 0.36, count),
        )
        if row.interval is not None:
            ends = axis.at(row.interval[0]), axis.at(row.interval[1])
            bars.append(_render_rect(ends, (top, base), colour, f"{row.label}: {row.said}"))
        middles.append(_render_rule(axis.at(row.ratio), top, base, colour, 2))
        dots += [
            _render_dot(
                axis.at(value),
                _lane_height(lane + _dot_offset(block), count),
                colour,
                f"{row.label}, block {block}: ×{value:.4g}",
            )
            for block, value in row.blocks
        ]
    marks += [_render_group(bars, 0.28), _render_group(dots, 0.7), *middles]
    return [_Lane(row.label, row.said, row.tone) for row in drawing.rows], axis, marks


def _draw_spread(drawing: Spread) -> _Drawn:
    count = len(drawing.rows)
    values = [value for row in drawing.rows for value in row.values]
    low, high = min(values), max(values)
    if low > 0 and high / low > _LOG_FROM:
        axis = _Axis(low / 1.05, high * 1.05, drawing.axis, log=True)
    else:
        edge = (high - low) * 0.03 or abs(high) * 0.01 or 1.0
        axis = _Axis(low - edge, high + edge, drawing.axis)
    boxes, medians, dots = [], [], []
    for lane, row in enumerate(drawing.rows):
        first, median, third = quantiles(row.values)[1:4]
        top, base = _lane_height(lane - 0.1, count), _lane_height(lane + 0.36, count)
        said = f"{row.label}: median {median:.4g}, middle half {first:.4g} to {third:.4g}"
        boxes.append(_render_rect((axis.at(first), axis.at(third)), (top, base), "var(--accent)", said))
        medians.append(_render_rule(axis.at(median), top, base, "var(--accent)", 2))
        dots += [
            _render_dot(
                axis.at(value),
                _lane_height(lane + _dot_offset(number), count),
                "var(--accent)",
                f"{row.label}, trial {number + 1}: {value:.4g}",
            )
            for number, value in enumerate(row.values)
        ]
    marks = [_render_group(boxes, 0.22), _render_group(dots, 0.7), *medians]
    return [_Lane(row.label, row.said, Tone.SOFT) for row in drawing.rows], axis, marks


def _draw_series(drawing: Series) -> _Drawn:
    count = len(drawing.rows)
    middles = [median([value for _, value in row.points]) for row in drawing.rows]
    most = max(
        (
            abs(value / middle - 1)
            for row, middle in zip(drawing.rows, middles, strict=True)
            for _, value in row.points
        ),
        default=0.0,
    )
    blocks = [block for row in drawing.rows for block, _ in row.points]
    first, last = min(blocks), max(blocks)
    axis = _Axis(first - 0.5, last + 0.5, drawing.over, whole=True)
    marks = [
        _render_rect(
            (axis.at(block - 0.5), axis.at(block + 0.5)),
            (0, _lane_height(count - 0.35, count)),
            "var(--band)",
        )
        for block in drawing.disturbed
    ]
    for lane, (row, middle) in enumerate(zip(drawing.rows, middles, strict=True)):
        at = _lane_height(lane + 0.13, count)
        marks.append(_render_rect((0, WIDTH), (at - 0.5, at + 0.5), "var(--line)"))
        points = [
            (axis.at(block), _lane_height(lane + 0.13 - (value / middle - 1) / (most or 0.01) * 0.23, count))
            for block, value in row.points
        ]
        marks.append(
            Markup('<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5"/>').format(
                " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            )
        )
        dots = [
            _render_dot(x, y, "var(--accent)", f"{row.label}, {drawing.over} {block}: {value:.4g}")
            for (x, y), (block, value) in zip(points, row.points, strict=True)
        ]
        marks.append(_render_group(dots, 1 if len(points) <= _FEW_POINTS else 0))
    return [_Lane(row.label, row.said, Tone.SOFT) for row in drawing.rows], axis, marks


def _draw_stack(drawing: Stack) -> _Drawn:
    count = len(drawing.rows)
    axis = _Axis(0, max(sum(row.parts) for row in drawing.rows), drawing.axis)
    bars, letters = [], []
    for lane, row in enumerate(drawing.rows):
        at = 0.0
        for number, length in enumerate(row.parts):
            if length > 0:
                said = f"{row.label}, {drawing.parts[number]}: {length:.4g}"
                ends = axis.at(at), axis.at(at + length)
                ends_y = _lane_height(lane - 0.12, count), _lane_height(lane + 0.36, count)
                bars.append(_render_rect(ends, ends_y, f"var(--part-{number})", said))
            if length >= _LETTERED * axis.high:
                letters.append(
                    Markup('<text x="{:.1f}" y="{:.1f}">{}</text>').format(
                        axis.at(at + length / 2),
                        _lane_height(lane + 0.12, count) + 4,
                        drawing.letters[number],
                    )
                )
            at += length
    on = Markup('<g fill="var(--on-part)" font-weight="600" text-anchor="middle">{}</g>').format(
        _join_markup(letters)
    )
    return [_Lane(row.label, row.total, Tone.SOFT) for row in drawing.rows], axis, [*bars, on]


def _round_step(rough: float) -> float:
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)


def ticks(low: float, high: float) -> list[float]:
    """Round values from `low` to `high` of a logarithmic axis, 1 among them if it is inside, no more than eight."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        if (high - low) / step <= _MOST_TICKS:
            inside = range(math.ceil(low / step), math.floor(high / step) + 1)
            found = [round(n * step, 2) for n in inside if n > 0]
            if 0 < len(found) <= _MOST_TICKS:
                return found
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = []
    for multiples in ((1, 2, 5), (1,)):
        found = [m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high]
        if 0 < len(found) <= _MOST_TICKS:
            return found
    return found[:: math.ceil(len(found) / _MOST_TICKS)] or [low]

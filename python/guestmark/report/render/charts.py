"""Charts as SVG in the colours of the page, light or dark; they can be read without a script.

All charts consist of lanes, with a cell's name above its drawing, so that they can be read on a
telephone, need no legend, and do not rely on colour alone. The `title` of every mark states its meaning.
`page/chart.js` shows titles at once and zooms: the inner drawing moves along the axis that `data-` attributes describe.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from markupsafe import Markup

from guestmark.page.charts import Drawing, Picture, Ratios, Series, SeriesRow, Spread, SpreadRow, Stack
from guestmark.page.nodes import Chart
from guestmark.page.scales import Axis, make_ratio_axis, make_value_axis
from guestmark.page.text import Tone, escape_for_csv, make_inert
from guestmark.stats.distribution import find_quartiles, median

# Width of the drawing in its own units, which are CSS pixels on a screen of about 470.
WIDTH = 440
_LANE = 40
_FONT_SIZE = 12.5
# Width of a character in the widest usual font, as the width of text is not known before a browser draws it.
_CHARACTER = 7.8
# A label this close to an end of the axis is anchored inwards, so that it is not cut off.
_EDGE = 24
_OVERHANG = 4  # room for dots that stand at an end
# A part of a bar gets its letter if it is at least this share of the longest bar.
_LETTERED = 0.035
_FEW_POINTS = 60  # a line with more points has no dots
_ACCENT = "var(--accent)"
_COLOURS = {
    Tone.FASTER: "var(--faster)",
    Tone.SLOWER: "var(--slower)",
    Tone.SAME: "var(--same)",
    Tone.UNCLEAR: "var(--unclear)",
    Tone.SOFT: "var(--soft)",
}
_Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Lane:
    """The text above a lane: its label on the left and a figure, with its tone, on the right."""

    label: str
    text: str
    tone: Tone


@dataclass(frozen=True, slots=True)
class _Plot:
    """A drawing: lanes from top to bottom, their axis, and the marks, the lowest layer first."""

    lanes: list[_Lane]
    axis: Axis
    marks: list[Markup]


def render_svg(chart: Chart) -> Markup:
    """Return the chart as SVG, with its alternative text."""
    match chart.drawing:
        case Picture() as picture:
            # guestmark itself draws pictures, from escaped text, so their markup is safe.
            return Markup(picture.svg())
        case Ratios() as ratios:
            plot = _draw_ratios(ratios)
        case Spread() as spread:
            plot = _draw_spread(spread)
        case Series() as series:
            plot = _draw_series(series)
        case Stack() as stack:
            plot = _draw_stack(stack)
    return _render_plot(plot, make_inert(chart.alternative))


def format_raw_points(drawing: Drawing) -> str:
    """Return the values of a chart's marks as CSV, a line for each; empty for pictures, which hold no values."""
    rows: list[tuple[object, ...]] = []
    match drawing:
        case Ratios():
            for ratio_row in drawing.rows:
                rows += [(ratio_row.label, block, f"{value:.6g}") for block, value in ratio_row.blocks]
        case Spread():
            for spread_row in drawing.rows:
                rows += [(spread_row.label, f"{value:.6g}") for value in spread_row.values]
        case Series():
            for series_row in drawing.rows:
                rows += [(series_row.label, block, f"{value:.6g}") for block, value in series_row.points]
        case Stack():
            for stack_row in drawing.rows:
                parts = zip(drawing.parts, stack_row.parts, strict=True)
                rows += [(stack_row.label, name, f"{length:.6g}") for name, length in parts if length]
        case Picture():
            return ""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([make_inert(str(escape_for_csv(value))) for value in row])
    return out.getvalue().rstrip("\n")


# --- lanes and their axis -----------------------------------------------------------------------------------


def _render_plot(plot: _Plot, alternative: str) -> Markup:
    axis, count = plot.axis, len(plot.lanes)
    height = _LANE * count + 6
    scale = "linear"
    if axis.log:
        scale = "log"
    elif axis.whole:
        scale = "whole"
    ticks = [_render_tick(axis, value, height, named) for value, named in _choose_named_ticks(axis)]
    heads = [_render_head(lane, number, count) for number, lane in enumerate(plot.lanes)]
    frame = Markup(
        '<svg viewBox="-{over} -2 {whole} {total}" role="img" tabindex="0" aria-label="{alternative}"'
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
        alternative=alternative,
        low=axis.low,
        high=axis.high,
        scale=scale,
        sign=axis.sign,
        width=WIDTH,
        size=_FONT_SIZE,
        grid=_join_markup(ticks),
        middle=WIDTH / 2,
        below=height + 36,
        title=make_inert(axis.title),
        height=height,
        marks=_join_markup(plot.marks),
        heads=_join_markup(heads),
    )


def _choose_named_ticks(axis: Axis) -> list[tuple[float, bool]]:
    """Return the axis's ticks, and whether there is room for their names: 1 comes first, the others from the left."""
    placed: list[_Ends] = []
    named = set()
    for value in sorted(axis.ticks(), key=lambda value: (value != 1, value)):
        at, wide = axis.position(value), _CHARACTER * len(f"{axis.sign}{value:.10g}")
        begin = {"start": at, "end": at - wide, "middle": at - wide / 2}[_choose_tick_anchor(at)]
        if all(begin >= other_end or begin + wide <= other for other, other_end in placed):
            placed.append((begin, begin + wide))
            named.add(value)
    return [(value, value in named) for value in axis.ticks()]


def _choose_tick_anchor(at: float) -> str:
    if at < _EDGE:
        return "start"
    return "end" if at > WIDTH - _EDGE else "middle"


def _render_tick(axis: Axis, value: float, height: float, named: bool) -> Markup:
    at = axis.position(value)
    name = Markup()
    if named:
        name = Markup(
            '<text x="{at:.1f}" y="{below}" text-anchor="{anchor}" fill="var(--soft)">{sign}{value:.10g}</text>'
        ).format(at=at, below=height + 17, anchor=_choose_tick_anchor(at), sign=axis.sign, value=value)
    return Markup(
        '<g class="tick"><line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height}" stroke="var(--line)"/>{name}</g>'
    ).format(at=at, height=height, name=name)


def _render_head(lane: _Lane, number: int, count: int) -> Markup:
    # Bold labels are wider than the figure beside them.
    room = 0.87 * (WIDTH - len(lane.text) * _CHARACTER) / _CHARACTER
    label = short = make_inert(lane.label)
    if len(label) > room:
        short = f"{label[: max(int(room) - 1, 4)]}…"
    return Markup(
        '<text x="0" y="{y:.1f}" font-weight="600">{short}<title>{label}</title></text>'
        '<text x="{width}" y="{y:.1f}" text-anchor="end" fill="{colour}">{text}</text>'
    ).format(
        y=_compute_lane_height(number - 0.37, count) + 4,
        short=short,
        label=label,
        width=WIDTH,
        colour=_choose_tone_colour(lane.tone),
        text=make_inert(lane.text),
    )


def _compute_lane_height(lane: float, count: int) -> float:
    """Return the y coordinate of a position in lanes; there is half a lane above the first, less below the last."""
    return (lane + 0.5) / (count + 0.15) * (_LANE * count + 6)


# --- marks --------------------------------------------------------------------------------------------------


def _join_markup(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _choose_tone_colour(tone: Tone) -> str:
    return _COLOURS.get(tone, "var(--ink)")


def _render_rect(x: _Ends, y: _Ends, colour: str, title: str = "") -> Markup:
    tooltip = Markup("<title>{}</title>").format(make_inert(title)) if title else ""
    return Markup(
        '<rect x="{x:.1f}" width="{width:.1f}" y="{y:.1f}" height="{height:.1f}" fill="{colour}">{tooltip}</rect>'
    ).format(x=x[0], width=x[1] - x[0], y=y[0], height=y[1] - y[0], colour=colour, tooltip=tooltip)


def _render_rule(x: float, y: _Ends, colour: str, width: float = 1.0) -> Markup:
    return Markup(
        '<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
    ).format(x=x, y=y[0], y2=y[1], colour=colour, width=width)


def _render_dot(x: float, y: float, colour: str, title: str) -> Markup:
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6" fill="{}"><title>{}</title></circle>').format(
        x, y, colour, make_inert(title)
    )


def _render_group(parts: Iterable[Markup], opacity: float) -> Markup:
    return Markup('<g fill-opacity="{}">{}</g>').format(opacity, _join_markup(parts))


def _compute_dot_offset(number: int) -> float:
    """Return a dot's offset in lanes, which keeps neighbours from hiding each other."""
    return (number % 5 - 2) * 0.05 + 0.13


def _compute_bar_ends(lane: int, count: int) -> _Ends:
    return _compute_lane_height(lane - 0.1, count), _compute_lane_height(lane + 0.36, count)


# --- each kind ----------------------------------------------------------------------------------------------


def _draw_ratios(drawing: Ratios) -> _Plot:
    count = len(drawing.rows)
    values = []
    for row in drawing.rows:
        values += [value for _, value in row.blocks]
        values += row.interval or (row.ratio,)
    axis = make_ratio_axis(min(values), max(values), WIDTH, drawing.axis)
    bottom = _compute_lane_height(count - 0.35, count)
    marks = []
    if drawing.noise_floor is not None:
        band = 1 + drawing.noise_floor
        marks.append(_render_rect((axis.position(1 / band), axis.position(band)), (0, bottom), "var(--band)"))
    marks.append(_render_rule(axis.position(1), (0, bottom), "var(--soft)"))
    bars, dots, middles = [], [], []
    for lane, row in enumerate(drawing.rows):
        colour, y = _choose_tone_colour(row.tone), _compute_bar_ends(lane, count)
        if row.interval is not None:
            ends = axis.position(row.interval[0]), axis.position(row.interval[1])
            bars.append(_render_rect(ends, y, colour, f"{row.label}: {row.said}"))
        middles.append(_render_rule(axis.position(row.ratio), y, colour, 2))
        for block, value in row.blocks:
            at = axis.position(value), _compute_lane_height(lane + _compute_dot_offset(block), count)
            dots.append(_render_dot(*at, colour, f"{row.label}, block {block}: ×{value:.4g}"))
    marks += [_render_group(bars, 0.28), _render_group(dots, 0.7), *middles]
    return _Plot([_Lane(row.label, row.said, row.tone) for row in drawing.rows], axis, marks)


def _draw_spread(drawing: Spread) -> _Plot:
    count = len(drawing.rows)
    values: list[float] = []
    for row in drawing.rows:
        values += row.values
    axis = make_value_axis(min(values), max(values), WIDTH, drawing.axis)
    boxes, medians, dots = [], [], []
    for lane, row in enumerate(drawing.rows):
        _, first, middle, third, _ = find_quartiles(row.values)
        y = _compute_bar_ends(lane, count)
        title = f"{row.label}: median {middle:.4g}, middle half {first:.4g} to {third:.4g}"
        boxes.append(_render_rect((axis.position(first), axis.position(third)), y, _ACCENT, title))
        medians.append(_render_rule(axis.position(middle), y, _ACCENT, 2))
        for number, value in enumerate(row.values):
            at = axis.position(value), _compute_lane_height(lane + _compute_dot_offset(number), count)
            dots.append(_render_dot(*at, _ACCENT, f"{row.label}, trial {number + 1}: {value:.4g}"))
    marks = [_render_group(boxes, 0.22), _render_group(dots, 0.7), *medians]
    return _Plot(_list_soft_lanes(drawing.rows), axis, marks)


def _list_soft_lanes(rows: Iterable[SpreadRow | SeriesRow]) -> list[_Lane]:
    return [_Lane(row.label, row.said, Tone.SOFT) for row in rows]


def _draw_series(drawing: Series) -> _Plot:
    count = len(drawing.rows)
    blocks: list[int] = []
    # Each lane shows values relative to its own median, and all lanes have the scale of the widest one.
    relative = []
    for row in drawing.rows:
        blocks += [block for block, _ in row.points]
        values = [value for _, value in row.points]
        middle = median(values)
        relative.append([value / middle - 1 for value in values])
    widest = max(map(abs, chain.from_iterable(relative)), default=0.0) or 0.01
    axis = Axis(min(blocks) - 0.5, max(blocks) + 0.5, WIDTH, drawing.over, whole=True)
    bottom = _compute_lane_height(count - 0.35, count)
    marks = []
    for block in drawing.disturbed:
        ends = axis.position(block - 0.5), axis.position(block + 0.5)
        marks.append(_render_rect(ends, (0, bottom), "var(--band)"))
    for lane, (row, changes) in enumerate(zip(drawing.rows, relative, strict=True)):
        at = _compute_lane_height(lane + 0.13, count)
        marks.append(_render_rect((0, WIDTH), (at - 0.5, at + 0.5), "var(--line)"))
        points, dots = [], []
        for (block, value), change in zip(row.points, changes, strict=True):
            x, y = axis.position(block), _compute_lane_height(lane + 0.13 - change / widest * 0.23, count)
            points.append(f"{x:.1f},{y:.1f}")
            dots.append(_render_dot(x, y, _ACCENT, f"{row.label}, {drawing.over} {block}: {value:.4g}"))
        polyline = Markup('<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5"/>')
        marks.append(polyline.format(" ".join(points)))
        # Invisible dots still show their titles under the pointer.
        opacity = 1 if len(points) <= _FEW_POINTS else 0
        marks.append(_render_group(dots, opacity))
    return _Plot(_list_soft_lanes(drawing.rows), axis, marks)


def _draw_stack(drawing: Stack) -> _Plot:
    count = len(drawing.rows)
    axis = Axis(0, max(sum(row.parts) for row in drawing.rows), WIDTH, drawing.axis)
    bars, letters = [], []
    for lane, row in enumerate(drawing.rows):
        end = 0.0
        y = _compute_lane_height(lane - 0.12, count), _compute_lane_height(lane + 0.36, count)
        for number, length in enumerate(row.parts):
            begin, end = end, end + length
            if length > 0:
                title = f"{row.label}, {drawing.parts[number]}: {length:.4g}"
                ends = axis.position(begin), axis.position(end)
                bars.append(_render_rect(ends, y, f"var(--part-{number})", title))
            if length >= _LETTERED * axis.high:
                letter = Markup('<text x="{:.1f}" y="{:.1f}">{}</text>')
                x, below = axis.position(begin + length / 2), _compute_lane_height(lane + 0.12, count) + 4
                letters.append(letter.format(x, below, drawing.letters[number]))
    group = Markup('<g fill="var(--on-part)" font-weight="600" text-anchor="middle">{}</g>')
    marks: Sequence[Markup] = [*bars, group.format(_join_markup(letters))]
    return _Plot([_Lane(row.label, row.total, Tone.SOFT) for row in drawing.rows], axis, list(marks))

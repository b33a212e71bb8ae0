"""Charts as static SVG that follows the page: its ink, its tones, light or dark, without any script.

Drawn by Vega-Lite through vl-convert, from specifications that are plain data. What was tried on a busy 2-CPU
host, for a chart of 99 dots:

==============  =============  ==================  =========  =================================================
                import         each chart          SVG        colours
==============  =============  ==================  =========  =================================================
vl-convert      17 ms          80 ms (first 1.5 s)  27 kB     any CSS text passes through: `var(--ink)`
matplotlib      2.0 s          340 ms              21 kB      hex only, to be exchanged in the finished file
Vega in a page  –              –                   0.9 MB     script needed; nothing is seen on paper or without it
==============  =============  ==================  =========  =================================================

So vl-convert: the smaller page, text that stays text, colours from the page's style sheet and therefore a dark mode
without a second drawing. Altair itself would only build the dictionaries that are written down here.

All charts are lanes: a cell's name stands above what is drawn of it, so that they can be read on a telephone, need no
legend, and say nothing by colour alone.
"""

import math
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

from guestmark.core.own_program import bring
from guestmark.page.charts import Picture, Ratios, Series, Spread, Stack
from guestmark.page.nodes import Chart
from guestmark.page.text import Tone, inert

_SVG = "http://www.w3.org/2000/svg"
_DECIMAL = re.compile(r"-?\d+\.\d+")
_DECIMAL_OR_WHOLE = re.compile(r"-?\d+(?:\.\d+)?")
_CIRCLE = re.compile(r"M([\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0")
_INHERITED = (
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-width",
    "font-family",
    "font-size",
    "font-weight",
    "text-anchor",
)
WIDTH = 440  # of the drawing, in its own units: CSS pixels on a screen of about 470
_EDGE = 24  # pixels from an end of an axis within which a label is drawn inwards, not cut off
_LANE = 40
_SIZE = 12.5  # of text
_WIDE_SIGN = 7.8  # what a digit takes where the fonts are wide
_LOG_FROM = 8  # how many times the smallest value the largest is before an axis is logarithmic
_LETTERED = 0.035  # share of the longest bar from which a part has room for its letter

_CONFIG: dict[str, Any] = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "gridColor": "var(--line)",
        "domain": False,
        "ticks": False,
        "labelFontSize": _SIZE,
        "titleFontSize": _SIZE,
        "titleFontWeight": "normal",
        "labelPadding": 6,
        "titlePadding": 8,
    },
    "text": {"fontSize": _SIZE, "fill": "var(--ink)"},
}


def svg(chart: Chart) -> Markup:
    """The drawing, with the chart's alternative as its text."""
    drawing = chart.drawing
    match drawing:
        case Picture():
            return Markup(drawing.svg())  # made here, from escaped text
        case Ratios():
            spec = _ratios(drawing)
        case Spread():
            spec = _spread(drawing)
        case Series():
            spec = _series(drawing)
        case Stack():
            spec = _stack(drawing)
    return _drawn(spec, inert(chart.alternative))


def _drawn(spec: dict[str, Any], alternative: str) -> Markup:
    bring("vl_convert", "pictures", "charts")
    import vl_convert

    whole = {"config": _CONFIG, "autosize": {"type": "pad"}, "padding": 2, **_inert(spec)}
    text = vl_convert.vegalite_to_svg(whole)
    root = ElementTree.fromstring(text)
    for element in root.iter():  # in a page svg is known without its name space
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
    _slim(root)
    for name in ("width", "height", "class"):  # the page decides how wide it is
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("aria-label", alternative)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _inert(value: Any) -> Any:
    """A specification without anything active in its texts; some of it would end the process that draws."""
    if isinstance(value, str):
        return inert(value)
    if isinstance(value, dict):
        return {name: _inert(item) for name, item in value.items()}
    return [_inert(item) for item in value] if isinstance(value, list) else value


def _slim(element: ElementTree.Element) -> None:
    """Leaves out what says nothing: roles inside of one picture, invisible backgrounds, digits nobody sees.

    Circles are drawn as such, and what all children of a group have in common stands there once: half of the size.
    """
    _slim_attributes(element)
    for child in list(element):
        _slim(child)
        empty = child.tag == "path" and not child.get("fill") and not child.get("stroke")
        if empty and child.get("d", "").startswith("M0,0h"):
            element.remove(child)
    for name in _INHERITED:
        values = {child.get(name) for child in element}
        if len(element) > 1 and len(values) == 1 and None not in values:
            element.set(name, values.pop() or "")
            for child in element:
                del child.attrib[name]


def _slim_attributes(element: ElementTree.Element) -> None:
    attributes = element.attrib
    for name in [name for name in attributes if name.startswith(("aria-", "pointer-")) or name == "role"]:
        del attributes[name]
    attributes.pop("class", None)
    if "stroke" not in attributes:
        attributes.pop("stroke-width", None)
    if (opacity := attributes.pop("opacity", "1")) != "1":
        attributes["fill-opacity" if "fill" in attributes else "opacity"] = opacity
    for name in ("d", "transform", "x2", "y2"):
        if name in attributes:
            attributes[name] = _DECIMAL.sub(
                lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), attributes[name]
            )
    if element.tag == "path" and (circle := _CIRCLE.fullmatch(attributes.get("d", ""))):
        x, y = _DECIMAL_OR_WHOLE.findall(attributes.pop("transform"))
        element.tag = "circle"
        del attributes["d"]
        attributes |= {"cx": x, "cy": y, "r": circle[1]}


# --- lanes --------------------------------------------------------------------------------------------------


def _lanes(
    labels: Sequence[tuple[str, str, Tone]], layers: Sequence[dict[str, Any]], x: dict[str, Any]
) -> dict[str, Any]:
    """A chart of lanes: above each its label on the left and a figure, with its tone, on the right."""
    count = len(labels)
    heads = [
        {"lane": lane - 0.37, "label": label, "said": said, "colour": _colour(tone)}
        for lane, (label, said, tone) in enumerate(labels)
    ]
    y = {
        "field": "lane",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [-0.5, count - 0.35], "reverse": True, "nice": False, "zero": False},
    }
    room = max((len(said) for _, said, _ in labels), default=0) * _WIDE_SIGN
    text = [
        {
            "data": {"values": heads},
            "mark": {"type": "text", "align": "left", "fontWeight": 600, "limit": 0.87 * (WIDTH - room)},
            "encoding": {"x": {"value": 0}, "y": y, "text": {"field": "label"}},
        },
        {
            "data": {"values": heads},
            "mark": {"type": "text", "align": "right"},
            "encoding": {
                "x": {"value": WIDTH},
                "y": y,
                "text": {"field": "said"},
                "color": {"field": "colour", "type": "nominal", "scale": None},
            },
        },
    ]
    positioned = [
        {**layer, "encoding": {"y": y, "x": {**x, "field": "x", "type": "quantitative"}, **layer["encoding"]}}
        for layer in layers
    ]
    return {"width": WIDTH, "height": _LANE * count + 6, "layer": [*positioned, *text]}


def _colour(tone: Tone) -> str:
    return {
        Tone.FASTER: "var(--faster)",
        Tone.SLOWER: "var(--slower)",
        Tone.SAME: "var(--same)",
        Tone.UNCLEAR: "var(--unclear)",
        Tone.SOFT: "var(--soft)",
    }.get(tone, "var(--ink)")


_BY_COLOUR = {"field": "colour", "type": "nominal", "scale": None}


def _rect(values: list[dict[str, Any]], *, opacity: float, radius: int = 0) -> dict[str, Any]:
    """Rectangles from `x` to `x2` and from `lane` to `lane2`."""
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "opacity": opacity, "cornerRadius": radius},
        "encoding": {"x2": {"field": "x2"}, "y2": {"field": "lane2"}, "color": _BY_COLOUR},
    }


def _rule(values: list[dict[str, Any]], width: float = 1.0) -> dict[str, Any]:
    """Upright lines at `x` from `lane` to `lane2`."""
    return {
        "data": {"values": values},
        "mark": {"type": "rule", "strokeWidth": width},
        "encoding": {"y2": {"field": "lane2"}, "color": _BY_COLOUR},
    }


def _dots(values: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "data": {"values": values},
        "mark": {"type": "circle", "size": 22, "opacity": 0.7},
        "encoding": {"color": _BY_COLOUR},
    }


def _jitter(number: int) -> float:
    return (number % 5 - 2) * 0.05 + 0.13


# --- each kind ----------------------------------------------------------------------------------------------


def _ratios(drawing: Ratios) -> dict[str, Any]:
    shown = [value for row in drawing.rows for _, value in row.blocks]
    shown += [end for row in drawing.rows for end in row.interval or (row.ratio,)]
    low, high = min([*shown, 0.98]) / 1.005, max([*shown, 1.02]) * 1.005
    last = len(drawing.rows) - 0.35
    layers = []
    if drawing.noise_floor is not None:
        band = 1 + drawing.noise_floor
        ends = {"x": max(1 / band, low), "x2": min(band, high), "lane": -0.5, "lane2": last}
        layers.append(_rect([{**ends, "colour": "var(--band)"}], opacity=1))
    layers.append(_rule([{"x": 1, "lane": -0.5, "lane2": last, "colour": "var(--soft)"}]))
    bars, dots, ticks_ = [], [], []
    for lane, row in enumerate(drawing.rows):
        colour = _colour(row.tone)
        if row.interval is not None:
            ends = {"x": max(row.interval[0], low), "x2": min(row.interval[1], high)}
            bars.append({**ends, "lane": lane - 0.1, "lane2": lane + 0.36, "colour": colour})
        ticks_.append({"x": row.ratio, "lane": lane - 0.1, "lane2": lane + 0.36, "colour": colour})
        dots += [{"x": value, "lane": lane + _jitter(block), "colour": colour} for block, value in row.blocks]
    layers += [_rect(bars, opacity=0.28, radius=2), _dots(dots), _rule(ticks_, 2)]
    labels = [(row.label, row.said, row.tone) for row in drawing.rows]
    axis = {
        "values": ticks(low, high),
        "labelExpr": "'×' + format(datum.value, '~g')",
        "labelFlush": _EDGE,
        "title": drawing.axis,
    }
    x = {"axis": axis, "scale": {"type": "log", "domain": [low, high], "nice": False}}
    return _lanes(labels, layers, x)


def _spread(drawing: Spread) -> dict[str, Any]:
    values = [value for row in drawing.rows for value in row.values]
    low, high = min(values), max(values)
    boxes, medians, dots, labels = [], [], [], []
    for lane, row in enumerate(drawing.rows):
        first, median, third = _quartiles(row.values)
        at = {"lane": lane - 0.1, "lane2": lane + 0.36, "colour": "var(--accent)"}
        boxes.append({**at, "x": first, "x2": third})
        medians.append({**at, "x": median})
        dots += [
            {"x": value, "lane": lane + _jitter(number), "colour": "var(--accent)"}
            for number, value in enumerate(row.values)
        ]
        labels.append((row.label, row.said, Tone.SOFT))
    x: dict[str, Any] = {"axis": {"title": drawing.axis, "tickCount": 5}}
    if low > 0 and high / low > _LOG_FROM:
        x["scale"] = {"type": "log", "domain": [low / 1.05, high * 1.05], "nice": False}
        x["axis"] = {"title": drawing.axis, "values": ticks(low / 1.05, high * 1.05), "format": "~g"}
    else:
        edge = (high - low) * 0.03 or abs(high) * 0.01 or 1.0
        x["scale"] = {"domain": [low - edge, high + edge], "nice": False, "zero": False}
    return _lanes(labels, [_rect(boxes, opacity=0.22, radius=2), _dots(dots), _rule(medians, 2)], x)


def _series(drawing: Series) -> dict[str, Any]:
    most = max((abs(value - 1) for row in drawing.rows for _, value in row.points), default=0.0) or 0.01
    blocks = [block for row in drawing.rows for block, _ in row.points]
    first, last = min(blocks), max(blocks)
    bottom = len(drawing.rows) - 0.35
    bands = [
        {"x": block - 0.5, "x2": block + 0.5, "lane": -0.5, "lane2": bottom, "colour": "var(--band)"}
        for block in drawing.disturbed
    ]
    middles, labels, layers = [], [], []
    for lane, row in enumerate(drawing.rows):
        middles.append({"x": first - 0.5, "x2": last + 0.5, "lane": lane + 0.13})
        labels.append((row.label, row.said, Tone.SOFT))
        points = [
            {"x": block, "lane": lane + 0.13 - (value - 1) / most * 0.23} for block, value in row.points
        ]
        few = len(points) <= 60
        layers.append(
            {
                "data": {"values": points},
                "mark": {
                    "type": "line",
                    "strokeWidth": 1.5,
                    "color": "var(--accent)",
                    "point": {"size": 14, "color": "var(--accent)"} if few else False,
                },
                "encoding": {},
            }
        )
    rules = {
        "data": {"values": middles},
        "mark": {"type": "rule", "strokeWidth": 1, "color": "var(--line)"},
        "encoding": {"x2": {"field": "x2"}},
    }
    step = max(1, math.ceil((last - first) / 8))
    axis = {"title": "block", "values": list(range(first, last + 1, step)), "format": "d", "grid": False}
    x = {"axis": axis, "scale": {"domain": [first - 0.5, last + 0.5], "nice": False, "zero": False}}
    return _lanes(labels, [*([_rect(bands, opacity=1)] if bands else []), rules, *layers], x)


def _stack(drawing: Stack) -> dict[str, Any]:
    largest = max(sum(row.parts) for row in drawing.rows)
    bars, letters = [], []
    for lane, row in enumerate(drawing.rows):
        at = 0.0
        for number, length in enumerate(row.parts):
            ends = {"x": at, "x2": at + length, "lane": lane - 0.12, "lane2": lane + 0.36}
            if length > 0:
                bars.append({**ends, "colour": f"var(--part-{number})"})
            if length >= _LETTERED * largest:
                letters.append({"x": at + length / 2, "lane": lane + 0.12, "letter": drawing.letters[number]})
            at += length
    text = {
        "data": {"values": letters},
        "mark": {"type": "text", "fill": "var(--on-part)", "fontWeight": 600},
        "encoding": {"text": {"field": "letter"}},
    }
    labels = [(row.label, row.total, Tone.SOFT) for row in drawing.rows]
    x = {"axis": {"title": drawing.axis, "tickCount": 5}, "scale": {"domain": [0, largest], "nice": False}}
    return _lanes(labels, [_rect(bars, opacity=1), text], x)


def _quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    import numpy as np

    first, median, third = np.quantile(values, (0.25, 0.5, 0.75))
    return float(first), float(median), float(third)


def ticks(low: float, high: float) -> list[float]:
    """Round ratios from `low` to `high`, 1 among them if it is inside, no more than eight."""
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        if (high - low) / step <= 7:
            return [
                round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1) if n > 0
            ]
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1,)):
        found = [m * 10.0**d for d in decades for m in multiples if low <= m * 10.0**d <= high]
        if len(found) <= 8:
            return found
    return found[:: math.ceil(len(found) / 8)]

"""Numbers for display: a suitable unit, and no more digits than the interval supports. All prefixes
are powers of ten.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.metric import Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "bit/s": ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")),
}
_NAME_SUFFIXES = {"s": "_s", "ns": "_ns", "B": "_bytes"}
MAX_DECIMALS = 9
_TIMES = (WALL, GUEST_WALL, USER, SYSTEM)
_FAR = 10  # a limit this many times off is no more than that
_SKEWED = 1.8  # from this quotient of its ends on, an interval is given by its ends
_WIDE = 0.3  # half-width of a log ratio: from here on, per cent up and down are no longer the same
UNKNOWN = math.log(10)  # half-width of a log ratio: from here on, nothing is known


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit to show values in: shown value = value / `size`."""

    size: float
    name: str


class TimeUnit(StrEnum):
    """What somebody wants all times to be shown in; the names are hyperfine's."""

    SECOND = "second"
    MILLISECOND = "millisecond"
    MICROSECOND = "microsecond"

    @property
    def unit(self) -> Unit:
        """The unit itself."""
        return _WANTED[self]


_WANTED = {
    TimeUnit.SECOND: Unit(1.0, "s"),
    TimeUnit.MILLISECOND: Unit(1e-3, "ms"),
    TimeUnit.MICROSECOND: Unit(1e-6, "µs"),
}
_times_in: ContextVar[TimeUnit | None] = ContextVar("_times_in", default=None)


@contextmanager
def show_times_in(unit: TimeUnit | None) -> Iterator[None]:
    """Inside, tables show times in this unit; None: in one that fits."""
    token = _times_in.set(unit)
    try:
        yield
    finally:
        _times_in.reset(token)


def wanted_time_unit() -> TimeUnit | None:
    """The unit of `show_times_in`."""
    return _times_in.get()


def choose_unit(unit: str, values: Iterable[float]) -> Unit:
    """The unit in which all `values` (in `unit`) read best side by side: the smallest is at least 1, if it
    can be.

    If they are more than four decades apart, the largest decides, so that none gets too many digits; it stays below a
    million.
    """
    scale = _SCALES.get(unit)
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if scale is None:
        return Unit(1.0, unit)
    if not sizes:
        return Unit(1.0, unit)
    target = max(min(sizes), max(sizes) / 1e4)
    for size, name in scale:
        # What rounds to 1000 of the smaller unit is 1 of the larger.
        if target >= size * 0.9995 or max(sizes) >= size * 1e3:
            return Unit(size, name)
    return Unit(*scale[-1])


def choose_table_unit(unit: str, values: Iterable[float]) -> Unit:
    """Like `choose_unit`, but throughputs are in MB/s (10^6 bytes per second) wherever that reads well.

    People compare disks in MB/s, and so do publications.
    """
    if unit == "s" and (wanted := wanted_time_unit()) is not None:
        return wanted.unit
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if unit == "B/s" and sizes and min(sizes) >= 1e4 and max(sizes) < 1e11:
        return Unit(1e6, "MB/s")
    return choose_unit(unit, sizes)


def count_decimals(half_width: float | None, value: float) -> int:
    """Decimals that an interval of this half-width supports.

    The Particle Data Group's rule: two digits of the half-width when they are below 36, else one (95 to 99
    round up to 100). Without a half-width, three significant digits of `value`.
    """
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        if not value or not math.isfinite(value):
            return 0 if value else 1
        return _clamp_decimals(2 - math.floor(math.log10(abs(value))))
    exponent = math.floor(math.log10(half_width))
    lead = half_width / 10**exponent
    return _clamp_decimals(-exponent + (lead < 3.55))


def format_number(value: float, places: int) -> str:
    """`value` with this many decimals; thousands separated from 10 000 up."""
    rounded = round(value, places) + 0.0  # no minus zero
    text = f"{rounded:.{places}f}"
    return f"{rounded:,.{places}f}".replace(",", " ") if abs(rounded) >= 10_000 else text


def format_estimate(mean: float, ci: tuple[float, float] | None, unit: Unit) -> tuple[str, str]:
    """A mean and its half-width in `unit`, e.g. `("1.234", "0.012")`; the second is empty without an
    interval.
    """
    half = None if ci is None else (ci[1] - ci[0]) / 2 / unit.size
    places = count_decimals(half, mean / unit.size)
    shown = format_number(mean / unit.size, places)
    return shown, format_number(half, places) if half else ""


def estimate_pieces(mean: float, ci: tuple[float, float] | None, unit: Unit) -> tuple[str, ...]:
    """The pieces of a mean with its interval: `1.24 ± 0.04`, or `13 000 [2200, 79 000]` where that is not symmetric."""
    shown, half = format_estimate(mean, ci, unit)
    if ci is None or not half:
        return (shown,)
    if ci[0] > 0 and ci[1] / ci[0] > _SKEWED:
        low, high, middle = (end / unit.size for end in (*ci, mean))
        rough = [float(f"{each:.2g}") for each in (middle, low, high)]
        digits = [format_number(each, max(0, 1 - math.floor(math.log10(each)))) for each in rough]
        return digits[0], f"[{digits[1]}, {digits[2]}]"
    return shown, "±", half


def format_ratio(value: float, ci: tuple[float, float] | None) -> str:
    """A ratio with its interval: `×1.23 [1.20, 1.27]`. No limit is rounded to zero: `×0.3 [0.006, 12]`.

    Two blocks can leave intervals of many powers of ten, whose digits say nothing: `×4 [<0.4, >40]`.
    """
    shown = f"×{format_number(value, count_ratio_decimals(value, ci))}"
    if ci is None:
        return shown
    places = _supported_decimals(value, ci)
    low, high = ci
    least, most = value / _FAR, value * _FAR
    shown_low = (
        f"<{_round_to_one_digit(least)}"
        if 0 < low < least
        else format_number(low, max(places, _leading_decimals(low)))
    )
    shown_high = (
        f">{_round_to_one_digit(most)}"
        if most < high < math.inf
        else format_number(high, max(places, _leading_decimals(high)))
    )
    return f"{shown} [{shown_low}, {shown_high}]"


def ratio_pieces(value: float, ci: tuple[float, float] | None) -> tuple[str, ...]:
    """Return `format_ratio` in pieces for a table's cell, `("×1.23", "[1.20, 1.27]")`; the second only with an interval."""
    shown, _, interval = format_ratio(value, ci).partition(" ")
    return (shown, interval) if interval else (shown,)


def ratio_above_one(value: float, ci: tuple[float, float] | None) -> tuple[float, tuple[float, float] | None]:
    """Return the ratio the way round that gives a value of at least 1; without an interval that reaches zero."""
    if value >= 1:
        return value, ci
    return 1 / value, None if ci is None or ci[0] <= 0 else (1 / ci[1], 1 / ci[0])


def format_short_ratio(value: float) -> str:
    """Return `×1.23`: two decimals, none for large ratios, two significant digits for small ones."""
    if value >= 99.5:
        return f"×{format_number(value, 0)}"
    return f"×{format_number(value, 2 if value >= 0.095 or value <= 0 else count_decimals(None, value) - 1)}"


def format_change(value: float) -> str:
    """Return a ratio as a change: `+6 %` for 1.06; no more digits than published figures warrant."""
    change = (value - 1) * 100
    places = 1 if 0.05 <= abs(change) < 9.95 else 0
    # Close to -100 % what is left counts: -99.6 %, not -100 %.
    if -100 < change <= -99:
        places = -math.floor(math.log10(100 + change))
    text = format_number(abs(change), places)
    sign = "" if float(text.replace(" ", "")) == 0 else "+" if change > 0 else "−"
    return f"{sign}{text} %"


def count_published_decimals(value: float) -> int:
    """Return as many decimals as a publication gave, at most six."""
    return len(f"{value:.6f}".rstrip("0").partition(".")[2])


def format_two_digits(value: float) -> str:
    """Return a value with two significant digits, no decimals from ten up, and one digit below one."""
    if value >= 9.95:
        digits = 2 if value < 995 else 3
        return format_number(round(value, digits - len(str(int(value)))), 0)
    return f"{value:.2g}" if value >= 1 else f"{value:.1g}" if value >= 0.1 else f"{value:.2f}"


def format_three_digits(value: float) -> str:
    """Return a value with three significant digits."""
    return format_number(value, count_decimals(None, value))


def format_limit(near: float, value: float) -> str:
    """A ratio, as exactly as it takes to tell it from another one: `×1.084` beside 1.05, `×12.6` beside 12."""
    digits = 1 - math.floor(math.log10(max(abs(value / near - 1) * value, 1e-9)))
    return f"×{format_number(value, max(min(digits, 4), 0))}"


def _round_to_one_digit(value: float) -> str:
    """With one significant digit."""
    return format_number(float(f"{value:.0e}"), _leading_decimals(value))


def count_ratio_decimals(value: float, ci: tuple[float, float] | None) -> int:
    """Decimals of a ratio: as `count_decimals`, but at most four, because nobody measures better than that, and as many as
    its first digit takes, because a ratio is never zero.
    """
    return max(_supported_decimals(value, ci), _leading_decimals(value))


def _supported_decimals(value: float, ci: tuple[float, float] | None) -> int:
    return min(count_decimals(None if ci is None else (ci[1] - ci[0]) / 2, value), 4)


def _leading_decimals(value: float) -> int:
    """Decimals of the first digit of a number, at most five."""
    return min(max(0, -math.floor(math.log10(value))), 5) if 0 < value < math.inf else 0


def format_percent(share: float) -> str:
    """A share of one as a percentage with two significant digits, `0.8 %`, `12 %`."""
    value = share * 100
    places = 0 if value >= 9.95 or value == 0 else 1 if value >= 0.95 else 2
    return f"{value:.{places}f} %"


def describe_precision(half_width: float, about: str = "") -> str:
    """How well a ratio is known to this half-width of its log: in per cent, or by the factor on either side."""
    if half_width > UNKNOWN:
        return "a factor of over 10"
    if half_width < _WIDE:
        return f"{about}±{format_percent(half_width)}"
    return f"{about}a factor of {format_number(math.exp(half_width), 1)}"


def column_heading(metric: Metric, unit: Unit) -> str:
    """A column heading: `wall, ms` for `wall_s`, so that the unit is named only once."""
    name = _strip_unit(metric)
    return f"{name}, {unit.name}" if unit.name else name


def name_metric(metric: Metric) -> str:
    """Its name in a sentence: `wall time` for `wall_s`."""
    name = _strip_unit(metric).replace("_", " ")
    return f"{name} time" if metric in _TIMES else name


def _strip_unit(metric: Metric) -> str:
    suffix = _NAME_SUFFIXES.get(metric.unit, "")
    return metric.name.removesuffix(suffix) or metric.name


def align_points(numbers: Sequence[str]) -> list[str]:
    """The numbers padded on both sides so that their decimal points line up."""
    split = [text.partition(".") for text in numbers]
    whole = max((len(left) for left, _, _ in split), default=0)
    fraction = max((len(point + right) for _, point, right in split), default=0)
    return [f"{left:>{whole}}{point + right:<{fraction}}" for left, point, right in split]


def draw_bar(value: float, largest: float, width: int) -> str:
    """A bar of up to `width` characters; something is always drawn for a value above zero."""
    if not largest > 0 or not value > 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


_TICKS = "▁▂▃▄▅▆▇█"
_MOST_TICKS = 40


def values_per_tick(count: int) -> int:
    """Return how many neighbours each sign of a sparkline of so many values stands for."""
    return -(-count // _MOST_TICKS)


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Return a sign for each value, from the lowest to the highest of them; `·` where there is none.

    More than 40 values are drawn as the means of neighbours.
    """
    step = values_per_tick(len(values))
    means: list[float | None] = []
    for start in range(0, len(values), step):
        near = [value for value in values[start : start + step] if value is not None]
        means.append(sum(near) / len(near) if near else None)
    known = [mean for mean in means if mean is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    constant = not span > 1e-12 * max(abs(low), abs(high))
    signs = []
    for mean in means:
        if mean is None:
            signs.append("·")
        elif constant:
            signs.append(_TICKS[3])
        else:
            signs.append(_TICKS[min(int((mean - low) / span * 8), 7)])
    return "".join(signs)


def split_bar(lengths: Sequence[float], largest: float, width: int) -> list[int]:
    """How many of `width` characters each part of a bar gets, where a bar of `largest` takes all of them.

    Ends are rounded rather than lengths, so that the bars have the right total length.
    """
    ends, at = [0], 0.0
    for length in lengths:
        at += length
        ends.append(round(at / largest * width) if largest > 0 else 0)
    return [end - start for start, end in itertools.pairwise(ends)]


def _clamp_decimals(places: int) -> int:
    return max(0, min(places, MAX_DECIMALS))

"""Numbers for display: a suitable unit, and no more digits than the interval supports.

All prefixes are powers of ten.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from guestmark.core.metric import Metric
from guestmark.core.metric_spec import GUEST_WALL, SYSTEM, USER, WALL

SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "bit/s": ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz"), (1.0, "Hz")),
}
_NAME_SUFFIXES = {"s": "_s", "ns": "_ns", "B": "_bytes"}
_TIMES = (WALL, GUEST_WALL, USER, SYSTEM)
MAX_DECIMALS = 9
# Decimals of ratios: no measurement is more precise than this.
_RATIO_DECIMALS = 4
# An end of an interval that is this many times off is shown as `<` or `>`: its digits would mean nothing.
_FAR = 10
# If the quotient of its ends is larger, an interval is shown by its ends, because ± would hide that it is skewed.
_SKEWED = 1.8
# Half-widths of a log ratio: above the first, per cent up and down differ visibly; above the second, nothing is known.
_WIDE, UNKNOWN = 0.3, math.log(10)
_TICKS = "▁▂▃▄▅▆▇█"
_MOST_TICKS = 40
_Interval = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit to show values in: shown value = value / `size`."""

    size: float
    name: str


class TimeUnit(StrEnum):
    """The unit that a user chose for all times, with hyperfine's names."""

    SECOND = "second"
    MILLISECOND = "millisecond"
    MICROSECOND = "microsecond"

    @property
    def unit(self) -> Unit:
        """The unit itself."""
        return _TIME_UNITS[self]


_TIME_UNITS = {
    TimeUnit.SECOND: Unit(1.0, "s"),
    TimeUnit.MILLISECOND: Unit(1e-3, "ms"),
    TimeUnit.MICROSECOND: Unit(1e-6, "µs"),
}
_wanted_time_unit: ContextVar[TimeUnit | None] = ContextVar("_wanted_time_unit", default=None)


# --- units --------------------------------------------------------------------------------------------------


@contextmanager
def show_times_in(unit: TimeUnit | None) -> Iterator[None]:
    """Show times in this unit inside the context; with None in a unit that fits the values."""
    token = _wanted_time_unit.set(unit)
    try:
        yield
    finally:
        _wanted_time_unit.reset(token)


def read_wanted_time_unit() -> TimeUnit | None:
    """Return the unit of `show_times_in`."""
    return _wanted_time_unit.get()


def choose_unit(unit: str, values: Iterable[float | None]) -> Unit:
    """Return the unit in which all `values` (in `unit`) read best side by side: the smallest is at least 1 if possible.

    If they are more than four decades apart, the largest decides, so that none gets too many digits; it stays below a
    million. Values that are 0, infinite or not known do not count.
    """
    scale = SCALES.get(unit)
    sizes = _list_sizes(values)
    if scale is None or not sizes:
        return Unit(1.0, unit)
    target = max(min(sizes), max(sizes) / 1e4)
    for size, name in scale:
        # A value that rounds to 1000 of the smaller unit is 1 of the larger.
        if target >= size * 0.9995 or max(sizes) >= size * 1e3:
            return Unit(size, name)
    return Unit(*scale[-1])


def choose_table_unit(unit: str, values: Iterable[float | None]) -> Unit:
    """Return `choose_unit`, but MB/s (10^6 bytes per second) for throughputs wherever that reads well.

    Users and publications compare disks in MB/s.
    """
    if unit == "s" and (wanted := read_wanted_time_unit()) is not None:
        return wanted.unit
    sizes = _list_sizes(values)
    if unit == "B/s" and sizes and min(sizes) >= 1e4 and max(sizes) < 1e11:
        return Unit(1e6, "MB/s")
    return choose_unit(unit, sizes)


def _list_sizes(values: Iterable[float | None]) -> list[float]:
    return [abs(value) for value in values if value and math.isfinite(value)]


# --- decimals -----------------------------------------------------------------------------------------------


def count_decimals(half_width: float | None, value: float) -> int:
    """Return the number of decimals that an interval of this half-width supports.

    The Particle Data Group's rule: two digits of the half-width when they are below 36, else one (95 to 99 round up to
    100). Without a half-width, three significant digits of `value`.
    """
    if half_width is None or not math.isfinite(half_width) or half_width <= 0:
        if not value or not math.isfinite(value):
            return 0 if value else 1
        return _clamp_decimals(2 - math.floor(math.log10(abs(value))))
    exponent = math.floor(math.log10(half_width))
    lead = half_width / 10**exponent
    return _clamp_decimals(-exponent + (lead < 3.55))


def count_ratio_decimals(value: float, ci: _Interval) -> int:
    """Return the decimals of a ratio: at most four, but enough for its first digit, as no ratio is zero."""
    return max(_count_supported_decimals(value, ci), _count_leading_decimals(value))


def count_published_decimals(value: float) -> int:
    """Return the number of decimals that a publication gave, at most six."""
    return len(f"{value:.6f}".rstrip("0").partition(".")[2])


def compute_half_width(ci: _Interval) -> float | None:
    """Return half of an interval's width; None without an interval."""
    return None if ci is None else (ci[1] - ci[0]) / 2


def _count_supported_decimals(value: float, ci: _Interval) -> int:
    return min(count_decimals(compute_half_width(ci), value), _RATIO_DECIMALS)


def _count_leading_decimals(value: float) -> int:
    """Return the decimals of a number's first digit, at most five."""
    if not 0 < value < math.inf:
        return 0
    return min(max(0, -math.floor(math.log10(value))), 5)


def _clamp_decimals(places: int) -> int:
    return max(0, min(places, MAX_DECIMALS))


# --- numbers ------------------------------------------------------------------------------------------------


def format_number(value: float, places: int) -> str:
    """Return `value` with this many decimals; with separated thousands if it is 10 000 or more."""
    # Adding zero turns minus zero into zero.
    rounded = round(value, places) + 0.0
    if abs(rounded) >= 10_000:
        return f"{rounded:,.{places}f}".replace(",", " ")
    return f"{rounded:.{places}f}"


def format_three_digits(value: float) -> str:
    """Return a value with three significant digits."""
    return format_number(value, count_decimals(None, value))


def format_two_digits(value: float) -> str:
    """Return a value with two significant digits, without decimals from ten upwards, and one digit below one."""
    if value >= 9.95:
        digits = 2 if value < 995 else 3
        return format_number(round(value, digits - len(str(int(value)))), 0)
    if value >= 1:
        return f"{value:.2g}"
    return f"{value:.1g}" if value >= 0.1 else f"{value:.2f}"


def format_estimate(mean: float, ci: _Interval, unit: Unit) -> tuple[str, str]:
    """Return a mean and its half-width in `unit`, as `("1.234", "0.012")`; the second is empty without an interval."""
    half = compute_half_width(ci)
    if half is not None:
        half /= unit.size
    places = count_decimals(half, mean / unit.size)
    shown = format_number(mean / unit.size, places)
    if not half:
        return shown, ""
    return shown, format_number(half, places)


def format_estimate_pieces(mean: float, ci: _Interval, unit: Unit) -> tuple[str, ...]:
    """Return the pieces of a mean with its interval: `1.24 ± 0.04`, or `13 000 [2200, 79 000]` if that is skewed."""
    shown, half = format_estimate(mean, ci, unit)
    if ci is None or not half:
        return (shown,)
    if ci[0] > 0 and ci[1] / ci[0] > _SKEWED:
        middle, low, high = (_format_two_rounded(end / unit.size) for end in (mean, *ci))
        return middle, f"[{low}, {high}]"
    return shown, "±", half


def _format_two_rounded(value: float) -> str:
    rounded = float(f"{value:.2g}")
    return format_number(rounded, max(0, 1 - math.floor(math.log10(rounded))))


# --- ratios and shares --------------------------------------------------------------------------------------


def format_ratio(value: float, ci: _Interval) -> str:
    """Return a ratio with its interval: `×1.23 [1.20, 1.27]`. No end is rounded to zero: `×0.3 [0.006, 12]`.

    No end is rounded to 1 either, if a few digits more show on which side of 1 it lies: `×2.0 [1.002, 4.1]`. Two blocks
    can leave intervals of many powers of ten, whose digits mean nothing: `×4 [<0.4, >40]`.
    """
    shown = f"×{format_number(value, count_ratio_decimals(value, ci))}"
    if ci is None:
        return shown
    places = _count_supported_decimals(value, ci)
    low, high = (format_number(end, _count_end_decimals(end, places)) for end in ci)
    least, most = value / _FAR, value * _FAR
    if 0 < ci[0] < least:
        low = f"<{_format_one_digit(least)}"
    if most < ci[1] < math.inf:
        high = f">{_format_one_digit(most)}"
    return f"{shown} [{low}, {high}]"


def _count_end_decimals(end: float, places: int) -> int:
    """Return the decimals of an interval's end: `places`, or up to four to tell it from 1, or five from zero."""
    places = max(places, _count_leading_decimals(end))
    for more in range(places, 5):
        if round(end, more) != 1:
            return more
    return places


def format_ratio_pieces(value: float, ci: _Interval) -> tuple[str, ...]:
    """Return `format_ratio` in pieces for a table: `("×1.23", "[1.20, 1.27]")`; the second only with an interval."""
    shown, _, interval = format_ratio(value, ci).partition(" ")
    return (shown, interval) if interval else (shown,)


def turn_ratio_above_one(value: float, ci: _Interval) -> tuple[float, _Interval]:
    """Return the ratio, inverted if it is below 1, with its interval; None for an inverted interval that reaches 0."""
    if value >= 1:
        return value, ci
    if ci is None or ci[0] <= 0:
        return 1 / value, None
    return 1 / value, (1 / ci[1], 1 / ci[0])


def format_short_ratio(value: float) -> str:
    """Return `×1.23`: two decimals, none for large ratios, two significant digits for small ones."""
    if value >= 99.5:
        return f"×{format_number(value, 0)}"
    if value >= 0.095 or value <= 0:
        return f"×{format_number(value, 2)}"
    return f"×{format_number(value, count_decimals(None, value) - 1)}"


def format_change(ratio: float) -> str:
    """Return a ratio as a change: `+6 %` for 1.06; no more digits than published figures warrant."""
    change = (ratio - 1) * 100
    places = 1 if 0.05 <= abs(change) < 9.95 else 0
    # Close to -100 %, decimals are needed to show what is left: -99.6 %, not -100 %.
    if -100 < change <= -99:
        places = -math.floor(math.log10(100 + change))
    text = format_number(abs(change), places)
    if float(text.replace(" ", "")) == 0:
        return f"{text} %"
    sign = "+" if change > 0 else "−"
    return f"{sign}{text} %"


def format_limit(near: float, value: float) -> str:
    """Return a ratio with enough digits to tell it from `near`: `×1.084` beside 1.05, `×12.6` beside 12."""
    digits = 1 - math.floor(math.log10(max(abs(value / near - 1) * value, 1e-9)))
    return f"×{format_number(value, max(min(digits, 4), 0))}"


def format_percent(share: float) -> str:
    """Return a fraction as a percentage with two significant digits, `0.8 %`, `12 %`."""
    value = share * 100
    places = 2
    if value >= 9.95 or value == 0:
        places = 0
    elif value >= 0.95:
        places = 1
    return f"{value:.{places}f} %"


def describe_precision(half_width: float, about: str = "") -> str:
    """Return how precise a ratio is, given the half-width of its log: `±4 %`, or a factor on either side."""
    if half_width > UNKNOWN:
        return "a factor of over 10"
    if half_width < _WIDE:
        return f"{about}±{format_percent(half_width)}"
    return f"{about}a factor of {format_number(math.exp(half_width), 1)}"


def _format_one_digit(value: float) -> str:
    return format_number(float(f"{value:.0e}"), _count_leading_decimals(value))


# --- metrics ------------------------------------------------------------------------------------------------


def format_column_heading(metric: Metric, unit: Unit) -> str:
    """Return a column heading: `wall, ms` for `wall_s`, so that the unit is named only once."""
    name = _strip_unit(metric)
    return f"{name}, {unit.name}" if unit.name else name


def name_metric(metric: Metric) -> str:
    """Return a metric's name in a sentence: `wall time` for `wall_s`."""
    name = _strip_unit(metric).replace("_", " ")
    return f"{name} time" if metric in _TIMES else name


def name_most_frequent_metric(metrics: Iterable[Metric]) -> str:
    """Return the name that most of the metrics have, the first of several. Raises IndexError without metrics."""
    return Counter(map(name_metric, metrics)).most_common(1)[0][0]


def _strip_unit(metric: Metric) -> str:
    suffix = _NAME_SUFFIXES.get(metric.unit, "")
    return metric.name.removesuffix(suffix) or metric.name


# --- figures made of characters -----------------------------------------------------------------------------


def align_points(numbers: Sequence[str]) -> list[str]:
    """Return the numbers padded on both sides so that their decimal points line up."""
    wholes, fractions = [], []
    for text in numbers:
        whole, point, digits = text.partition(".")
        wholes.append(whole)
        fractions.append(point + digits)
    left = max(map(len, wholes), default=0)
    right = max(map(len, fractions), default=0)
    return [f"{whole:>{left}}{fraction:<{right}}" for whole, fraction in zip(wholes, fractions, strict=True)]


def draw_bar(value: float, largest: float, width: int) -> str:
    """Return a bar of up to `width` characters; a value above zero is never invisible."""
    if not largest > 0 or not value > 0:
        return ""
    eighths = max(1, round(value / largest * width * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def split_bar(lengths: Sequence[float], largest: float, width: int) -> list[int]:
    """Return how many of `width` characters each part of a bar gets, where a bar of `largest` takes all of them."""
    if not largest > 0:
        return [0] * len(lengths)
    # Ends are rounded rather than lengths, so that bars have the right total length.
    ends, at = [0], 0.0
    for length in lengths:
        at += length
        ends.append(round(at / largest * width))
    return [end - start for start, end in itertools.pairwise(ends)]


def count_values_per_tick(count: int) -> int:
    """Return how many neighbouring values each sign of a sparkline of `count` values stands for."""
    return -(-count // _MOST_TICKS)


def draw_sparkline(values: Sequence[float | None]) -> str:
    """Return a sign for each value, from the lowest to the highest of them; `·` if there is none.

    More than 40 values are drawn as the means of neighbours.
    """
    step = count_values_per_tick(len(values))
    means: list[float | None] = []
    known: list[float] = []
    for start in range(0, len(values), step):
        mean = _average_known_values(values[start : start + step])
        means.append(mean)
        if mean is not None:
            known.append(mean)
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


def _average_known_values(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) / len(known)

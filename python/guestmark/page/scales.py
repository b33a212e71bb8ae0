"""Axes of charts: positions of values along a width, and the round values to mark."""

import math
from dataclasses import dataclass

_MOST_TICKS = 8
# An axis is logarithmic if the largest value is this many times the smallest, or small ones would be one dot.
_LOG_FROM = 8
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` along `width`; a tick's label is `sign` and its value.

    A `log` axis is logarithmic; on a `whole` one only whole numbers are marked.
    """

    low: float
    high: float
    width: float
    title: str
    log: bool = False
    sign: str = ""
    whole: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value; values beyond an end of the axis are placed at that end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return self.width * math.log(value / self.low) / math.log(self.high / self.low)
        return self.width * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return the round values to mark."""
        if self.log:
            return log_ticks(self.low, self.high)
        step = _round_up_step((self.high - self.low) / 5)
        if self.whole:
            step = max(1.0, math.ceil(step))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def make_ratio_axis(low: float, high: float, width: float, title: str) -> Axis:
    """Return a logarithmic axis for ratios, at least 2 % to either side of 1."""
    return Axis(min(low, 0.98) / 1.005, max(high, 1.02) * 1.005, width, title, log=True, sign="×")


def make_value_axis(low: float, high: float, width: float, title: str) -> Axis:
    """Return an axis with some space at its ends; logarithmic if values differ by much."""
    if low > 0 and high / low > _LOG_FROM:
        return Axis(low / 1.05, high * 1.05, width, title, log=True)
    edge = (high - low) * 0.03 or abs(high) * 0.01 or 1.0
    return Axis(low - edge, high + edge, width, title)


def log_ticks(low: float, high: float) -> list[float]:
    """Return round values from `low` to `high` of a logarithmic axis, at most eight, with 1 if it is inside."""
    for step in _STEPS:
        if (high - low) / step > _MOST_TICKS:
            continue
        multiples = range(math.ceil(low / step), math.floor(high / step) + 1)
        ticks = [round(multiple * step, 2) for multiple in multiples if multiple > 0]
        if 0 < len(ticks) <= _MOST_TICKS:
            return ticks
    # Over several decades, only 1, 2 and 5 of each are marked; over more, only 1; over even more, only some decades.
    for mantissas in ((1, 2, 5), (1,)):
        ticks = _list_decade_ticks(low, high, mantissas)
        if 0 < len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)] or [low]


def _list_decade_ticks(low: float, high: float, mantissas: tuple[int, ...]) -> list[float]:
    ticks = []
    for decade in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for mantissa in mantissas:
            tick = mantissa * 10.0**decade
            if low <= tick <= high:
                ticks.append(tick)
    return ticks


def _round_up_step(rough: float) -> float:
    decade = 10.0 ** math.floor(math.log10(rough))
    return next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)

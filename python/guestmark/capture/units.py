"""Formats durations, sizes and shares with three significant digits."""

from __future__ import annotations


def format_seconds(seconds: float | None) -> str:
    """Return text such as `256 µs`, `13.2 ms` or `19.5 s`."""
    if seconds is None:
        return "–"
    for factor, unit in ((1e9, "ns"), (1e6, "µs"), (1e3, "ms")):
        if abs(seconds) * factor < 999.5:
            return f"{_format_three_digits(seconds * factor)} {unit}"
    return f"{_format_three_digits(seconds)} s"


def format_size(count: float | None, unit: str = "B") -> str:
    """Return text such as `105 MB`, in powers of 1000."""
    if count is None:
        return "–"
    for prefix in ("", "k", "M", "G"):
        if count < 999.5:
            return f"{_format_three_digits(count)} {prefix}{unit}"
        count /= 1000
    return f"{_format_three_digits(count)} T{unit}"


def format_percent(share: float | None) -> str:
    """Return text such as `94 %`."""
    return "–" if share is None else f"{share * 100:.0f} %"


def _format_three_digits(value: float) -> str:
    if value == int(value) and value < 1000:
        return str(int(value))
    # The bounds are where rounding would add a digit.
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"

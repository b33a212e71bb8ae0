"""Parses and formats durations, percentages, sizes and numbers; every parser raises `ValueError` with one line."""

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction

from guestmark.core.errors import make_unknown_name_error

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)", re.ASCII)
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGTP]?)(I?)B?\s*", re.ASCII | re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_GROUPED_NUMBER = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Return seconds from `90`, `90s`, `1.5m`, `10min`, `1h30m`, `250ms`; a number without a unit is seconds."""
    rest = text.strip().lower()
    if not rest:
        raise ValueError("a duration is missing")
    total, position, parts = 0.0, 0, 0
    while position < len(rest):
        match = _DURATION_PART.match(rest, position)
        if match is None:
            raise ValueError(f"{text!r} is not a duration (write 90s, 10m or 1h30m)")
        number, unit = match.groups()
        if unit == "" and (parts or match.end() != len(rest)):
            raise ValueError(f"{text!r} is not a duration (a unit is missing; write 90s, 10m or 1h30m)")
        if unit and unit not in _DURATION_UNITS:
            raise ValueError(f"{text!r} has an unknown unit {unit!r} (known: {', '.join(_DURATION_UNITS)})")
        total += float(number) * _DURATION_UNITS[unit or "s"]
        position, parts = match.end(), parts + 1
    if not math.isfinite(total):
        raise ValueError(f"{text!r} is too long a duration")
    return total


def parse_positive_duration(text: str) -> float:
    """Return seconds as `parse_duration` does, but only above 0."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ValueError(f"{text!r} must be above 0 (write 90s, 10m or 1h30m)")
    return seconds


def parse_fraction(text: str) -> float:
    """Return a fraction from `2%` or `0.02`; `2` is refused because it is ambiguous."""
    stripped = text.strip()
    is_percent = stripped.endswith("%")
    number = stripped.removesuffix("%").strip()
    if not _PLAIN_NUMBER.fullmatch(number):
        raise ValueError(f"{text!r} is not a percentage (write 2% or 0.02)")
    value = float(number) / (100.0 if is_percent else 1.0)
    if not 0.0 < value < 1.0:
        hint = ""
        if not is_percent and value >= 1.0:
            hint = f"; did you mean {number}%?"
        raise ValueError(f"{text!r} must be above 0 and below 100%{hint}")
    return value


def parse_size(text: str) -> int:
    """Return bytes from `512M`, `1GiB`, `0.5g`, `268435456`: units are powers of 1024 in every usual spelling.

    Hypervisors and qemu-img read `M` and `MB` in this way; only whole bytes are accepted.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size (write 512M or 1GiB)")
    number, prefix, binary = match.groups()
    if binary and not prefix:
        raise ValueError(f"{text!r} is not a size (write 512M or 1GiB)")
    value = Fraction(number) * 1024 ** " KMGTP".index(prefix.upper() or " ")
    if value <= 0 or value.denominator != 1:
        raise ValueError(f"{text!r} is not a whole, positive number of bytes")
    return int(value)


def format_size(size: int) -> str:
    """Return the shortest exact spelling, e.g. 536870912 → `512M`; `parse_size` reads it back."""
    for power, prefix in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{prefix}"
    return str(size)


def parse_number(text: str) -> float:
    """Return a finite number as programs print it: `12`, `-0.5`, `1e3`, `1,234.5` (commas only for thousands)."""
    stripped = text.strip()
    if _GROUPED_NUMBER.fullmatch(stripped):
        stripped = stripped.replace(",", "")
    if not _PLAIN_NUMBER.fullmatch(stripped):
        raise ValueError(f"{text!r} is not a number")
    value = float(stripped)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite number")
    return value


def format_duration(seconds: float) -> str:
    """Return a duration for display: `0.42 s`, `12 s`, `3 min 20 s`, `10 min`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s".removesuffix(" 0 s")
    return f"{whole // 3600} h {whole % 3600 // 60} min".removesuffix(" 0 min")


def join_names(names: Iterable[str]) -> str:
    """Join each distinct name once, by commas, or by middle dots if the names themselves contain commas."""
    once = list(dict.fromkeys(names))
    separator = " · " if any("," in name for name in once) else ", "
    return separator.join(once)


def format_share(share: float, places: int = 0, *, signed: bool = False) -> str:
    """Return a fraction as a percentage with that many decimals: `12 %`, or `+1.3 %` if it is `signed`."""
    sign = "+" if signed else ""
    return f"{100 * share:{sign}.{places}f} %"


def format_count(count: int, noun: str) -> str:
    """Return the number with its noun, such as `1 block` or `2 blocks`; the plural takes an s."""
    plural = "" if count == 1 else "s"
    return f"{count} {noun}{plural}"


# Characters of names in a remark: about a line and a half of a terminal.
_MOST_NAMES = 100


def list_first_names(names: Sequence[str], noun: str) -> str:
    """Return as many of the first names as a remark has room for, at least one, and how many more there are."""
    shown = list(names[:1])
    for name in names[1:]:
        if len(", ".join((*shown, name))) > _MOST_NAMES:
            break
        shown.append(name)
    text = ", ".join(shown)
    if left := len(names) - len(shown):
        text += f" and {format_count(left, f'more {noun}')}"
    return text


# Unit: (guestmark's own unit, how many of them it is). MB/s is 10^6 bytes a second.
_UNITS = {
    "s": ("s", 1.0),
    "ms": ("s", 1e-3),
    "µs": ("s", 1e-6),
    "us": ("s", 1e-6),
    "ns": ("s", 1e-9),
    "min": ("s", 60.0),
    "B": ("B", 1.0),
    "kB": ("B", 1e3),
    "MB": ("B", 1e6),
    "GB": ("B", 1e9),
    "B/s": ("B/s", 1.0),
    "kB/s": ("B/s", 1e3),
    "MB/s": ("B/s", 1e6),
    "MiB/s": ("B/s", 2.0**20),
    "GB/s": ("B/s", 1e9),
    "bit/s": ("bit/s", 1.0),
    "Mbit/s": ("bit/s", 1e6),
    "Gbit/s": ("bit/s", 1e9),
}


def compute_unit_size(unit: str, measured: str) -> float:
    """Return how many `measured` units make one `unit`; 1.0 if they are the same. Raises `KeyError`."""
    if unit == measured:
        return 1.0
    own, size = _UNITS[unit]
    if own != measured:
        raise KeyError(unit)
    return size


def check_unit(unit: str, measured: str) -> None:
    """Raises `UsageError` for a unit that cannot be compared with figures in `measured`."""
    try:
        compute_unit_size(unit, measured)
    except KeyError:
        fitting = [name for name, (own, _) in _UNITS.items() if own == measured]
        raise make_unknown_name_error(
            f"unit for figures in {measured or 'no unit'}", unit, fitting or [measured]
        ) from None

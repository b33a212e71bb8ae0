"""Parsers of parameters that several workloads share."""

from collections.abc import Collection, Sequence

from guestmark.core.errors import make_unknown_name_error
from guestmark.core.units import parse_duration, parse_size


def convert_number_to_text(value: object) -> object:
    """Returns a number as its text, and everything else as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def parse_positive_size(text: str) -> int:
    """Returns a size in bytes. Raises `ValueError` unless it is above 0."""
    size = parse_size(text)
    if size <= 0:
        raise ValueError(f"{text!r} is not above 0")
    return size


def parse_positive_duration(text: str) -> float:
    """Returns a duration in seconds. Raises `ValueError` unless it is above 0."""
    seconds = parse_duration(text)
    if not seconds > 0:
        raise ValueError(f"{text!r} is not above 0")
    return seconds


def check_duration(text: str, shortest_s: float, longest_s: float) -> str:
    """Returns `text`, a duration. Raises `ValueError` if it is shorter or longer than the limits."""
    if not shortest_s <= parse_duration(text) <= longest_s:
        raise ValueError(f"{text!r} is not between {shortest_s * 1e3:.0f} ms and {longest_s:.0f} s")
    return text


def order_names(kind: str, wanted: Collection[str], known: Sequence[str]) -> list[str]:
    """Returns the wanted names in the order of `known`. Raises `ValueError` if one is unknown, or if there are none."""
    for name in wanted:
        if name not in known:
            raise ValueError(make_unknown_name_error(kind, name, known).message)
    if not wanted:
        raise ValueError(f"no {kind} is named; choose from {', '.join(known)}")
    return [name for name in known if name in wanted]

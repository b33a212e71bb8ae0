"""Parsers of parameters that several workloads have: from a plan's spelling to what the code reads."""

from guestmark.core.units import parse_duration, parse_size


def number_as_text(value: object) -> object:
    """Returns a number as its text, and everything else as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def parse_positive_size(text: str) -> int:
    """Returns the bytes of a size. Raises `ValueError` unless there are any."""
    size = parse_size(text)
    if size <= 0:
        raise ValueError(f"{text!r} is not above 0")
    return size


def parse_positive_duration(text: str) -> float:
    """Returns the seconds of a duration. Raises `ValueError` for one that is not above 0."""
    seconds = parse_duration(text)
    if not seconds > 0:
        raise ValueError(f"{text!r} is not above 0")
    return seconds

"""Parsers of parameters that several workloads share."""

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

"""Narrows the type of values that a test requires to exist."""

from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def known(value: T | None) -> T:
    """Return the value. Fails the test if it is None."""
    assert value is not None
    return value


def a(kind: type[U], value: object) -> U:
    """Return the value as an instance of `kind`. Fails the test if it is none."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value

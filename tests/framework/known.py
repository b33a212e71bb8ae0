"""Values that may be absent where they are made, and must not be where a test looks at them."""

from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def known(value: T | None) -> T:
    """The value; the test fails when there is none."""
    assert value is not None
    return value


def a(kind: type[U], value: object) -> U:
    """The value, which is of that kind; the test fails when it is of another."""
    assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"
    return value

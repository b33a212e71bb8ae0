"""Marks that tests share."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def long(*values: Any, name: str | None = None) -> Any:
    """Build a parameter set that only `./test --long` tries; `name` is what the test's id calls it."""
    return pytest.param(*values, id=name, marks=pytest.mark.long)


def long_but(short: Collection[object], values: Iterable[object]) -> list[Any]:
    """Build a parameter set for each value; those that are not in `short` are long."""
    return [value if value in short else long(value) for value in values]

"""Marks that tests share, and how many generated cases they try."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# For changes to the code that generated cases test: THOROUGH=5 ./test --long FILE tries five times as many.
_THOROUGH = int(os.environ.get("THOROUGH", "1"))


def count_cases(usual: int) -> int:
    """Return how many generated cases to try where `./test --long` tries `usual` ones."""
    return usual * _THOROUGH


def long(*values: Any, name: str | None = None) -> Any:
    """Build a parameter set that only `./test --long` tries; `name` is what the test's id calls it."""
    return pytest.param(*values, id=name, marks=pytest.mark.long)


def long_but(short: Collection[object], values: Iterable[object]) -> list[Any]:
    """Build a parameter set for each value; those that are not in `short` are long."""
    return [value if value in short else long(value) for value in values]

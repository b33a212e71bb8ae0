"""Marks that tests share, and how many generated cases they try."""

import os
from collections.abc import Collection, Iterable
from typing import Any

import pytest

# THOROUGH=1 ./test --long also tries the variants marked `thorough`, as the check of every week does. For changes to
# the code that generated cases test, THOROUGH=5 ./test --long FILE tries five times as many of them.
_THOROUGH = os.environ.get("THOROUGH", "")
IS_THOROUGH = bool(_THOROUGH)


def count_cases(usual: int) -> int:
    """Return how many generated cases to try where `./test --long` tries `usual` ones."""
    return usual * int(_THOROUGH or "1")


def long(*values: Any, name: str | None = None) -> Any:
    """Build a parameter set that only `./test --long` tries; `name` is what the test's id calls it."""
    return pytest.param(*values, id=name, marks=pytest.mark.long)


def thorough(*values: Any, name: str | None = None) -> Any:
    """Build a parameter set that is only tried with THOROUGH: a variant whose parts other long cases try, too."""
    return pytest.param(*values, id=name, marks=(pytest.mark.long, pytest.mark.thorough))


def long_but(short: Collection[object], values: Iterable[object]) -> list[Any]:
    """Build a parameter set for each value; those that are not in `short` are long."""
    return [value if value in short else long(value) for value in values]

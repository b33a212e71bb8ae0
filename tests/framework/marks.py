"""Marks that tests share."""

from typing import Any

import pytest


def long(*values: Any) -> Any:
    """A set of parameters that only `./test --long` tries."""
    return pytest.param(*values, marks=pytest.mark.long)

"""A plan without its malformed keys, so that the rest of it can be checked, too."""

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guestmark.plan import schema

if TYPE_CHECKING:
    from pydantic import ValidationError

_PRUNINGS = 3
_STAND_INS: Mapping[str, Any] = {"name": "plan", "title": "plan", "platforms": ["host"]}


def without_mistakes(data: dict[str, Any], error: "ValidationError") -> schema.Plan | None:
    """The plan without malformed keys, so that the others can be checked; None if that fails."""
    from pydantic import ValidationError

    rest = copy.deepcopy(data)
    for _ in range(_PRUNINGS):
        for mistake in error.errors():
            _remove(rest, tuple(mistake["loc"]), missing=mistake["type"] == "missing")
        for name, value in _STAND_INS.items():
            rest.setdefault(name, value)
        try:
            return schema.Plan.model_validate(rest)
        except ValidationError as another:
            error = another
    return None


def _remove(data: dict[str, Any], path: Sequence[int | str], *, missing: bool) -> None:
    """Takes away what is at `path`: of a list the whole list, as its elements are known by number.

    Of a table in which a key is `missing`, the table.
    """
    where: Any = data
    steps = list(path[:-1]) if missing and len(path) > 1 else list(path)
    lists = [at for at, part in enumerate(steps) if isinstance(part, int)]
    steps = steps[: lists[0]] if lists else steps
    for part in steps[:-1]:
        if not isinstance(where, dict) or part not in where:
            return
        where = where[part]
    if isinstance(where, dict) and steps:
        where.pop(steps[-1], None)

"""Collects every mistake in a plan with its place, and reports them all at once."""

import copy
import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

from guestmark.core.errors import UsageError
from guestmark.plan import schema, toml_lines

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Problems:
    """The mistakes found so far in one plan, whose text is `text` and which users know as `where`."""

    where: str
    text: str
    found: list[tuple[Path, str]] = field(default_factory=list)

    def add(self, path: Sequence[str | int], message: str, hint: str = "") -> None:
        """One more mistake at this path."""
        self.found.append((tuple(path), f"{message} ({hint})" if hint else message))

    @contextmanager
    def at(self, *path: str | int) -> Iterator[None]:
        """Records a `UsageError` or `ValueError` raised in the block, and continues after it."""
        try:
            yield
        except UsageError as error:
            self.add(path, error.message, error.hint)
        except ValueError as error:
            self.add(path, str(error))

    def add_invalid(
        self, error: "ValidationError", model: "type[BaseModel]", path: Sequence[str | int] = ()
    ) -> None:
        """All of pydantic's errors, the common ones in our own words."""
        for mistake in error.errors():
            loc = tuple(mistake["loc"])
            if mistake["type"] == "extra_forbidden":
                known = _fields(model, loc[:-1])
                self.add((*path, *loc), f"unknown key {str(loc[-1])!r}", _nearest(str(loc[-1]), known))
            elif mistake["type"] == "missing":
                self.add((*path, *loc), f"the key {str(loc[-1])!r} is missing")
            else:
                said = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
                shown = repr(mistake["input"])
                what = f", not {shown}" if len(shown) <= 60 else ""
                self.add((*path, *loc), f"{said}{what}")

    def raise_if_any(self) -> None:
        """Raises one `UsageError` with every mistake on a line of its own, in the order of the text."""
        if not self.found:
            return
        known = toml_lines.lines(self.text)
        placed = sorted(
            ((toml_lines.line_of(known, path) or 0, path, problem) for path, problem in self.found),
            key=lambda place: place[0],
        )
        count = len(placed)
        raise UsageError(
            f"{self.where} has {count} mistake{'s' if count != 1 else ''}",
            hint="\n".join(
                f"{f'line {line}: ' if line else ''}{_dotted(path)}{problem}"
                for line, path, problem in placed
            ),
        )


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return f"{text}: " if text else ""


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    names = f"known: {', '.join(known)}" if known else ""
    return f"did you mean {close[0]!r}? {names}" if close else names


def _fields(model: "type[BaseModel]", path: Sequence[str | int]) -> list[str]:
    """Names of the keys that the table at `path` inside `model` can have."""
    kind: Any = model
    for part in path:
        fields: Mapping[str, Any] = getattr(kind, "model_fields", {})
        by_alias = {field.alias or name: field for name, field in fields.items()}
        if isinstance(part, str) and part in by_alias:
            kind = _model_in(by_alias[part].annotation) or kind
    return [field.alias or name for name, field in getattr(kind, "model_fields", {}).items()]


def _model_in(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields"):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)


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

"""Collects every mistake in a plan with its place, and reports all of them in one error."""

import bisect
import copy
import difflib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from guestmark.core.errors import UsageError
from guestmark.plan import schema

Path = tuple[str | int, ...]
# The largest number of mistakes shown, because finding the nearest name for each takes time.
_MOST_SHOWN = 100


@dataclass(slots=True)
class Problems:
    """The mistakes found so far in one plan, whose text is `text` and which users know as `where`."""

    where: str
    text: str
    found: list[tuple[Path, str]] = field(default_factory=list)

    def add_mistake(self, path: Sequence[str | int], message: str, hint: str = "") -> None:
        """Record a mistake at this path."""
        if hint:
            message = f"{message} ({hint})"
        self.found.append((tuple(path), message))

    @contextmanager
    def collect_at(self, *path: str | int) -> Iterator[None]:
        """Record a `UsageError` or `ValueError` raised in the block, and continue after it."""
        try:
            yield
        except UsageError as error:
            self.add_mistake(path, error.message, error.hint)
        except ValueError as error:
            self.add_mistake(path, str(error))

    def add_invalid(
        self, error: "ValidationError", model: "type[BaseModel]", path: Sequence[str | int] = ()
    ) -> None:
        """Record all errors of pydantic, the common ones in our own words."""
        # A plan with thousands of mistakes is not a plan; suggesting a name for each would take minutes.
        for mistake in error.errors(include_url=False)[:_MOST_SHOWN]:
            loc = tuple(mistake["loc"])
            if mistake["type"] == "extra_forbidden":
                known = _list_fields(model, loc[:-1])
                self.add_mistake(
                    (*path, *loc), f"unknown key {str(loc[-1])!r}", _suggest_name(str(loc[-1]), known)
                )
            elif mistake["type"] == "missing":
                self.add_mistake((*path, *loc), f"the key {str(loc[-1])!r} is missing")
            else:
                said = mistake["msg"].removeprefix("Value error, ").removeprefix("Input ")
                shown = repr(mistake["input"])
                # A long value would bury what is wrong with it, and a check of ours may have named it.
                if len(shown) <= 60 and said.find(shown) < 0:
                    said = f"{said}, not {shown}"
                self.add_mistake((*path, *loc), said)

    def raise_if_any(self) -> None:
        """Raise one `UsageError` with every mistake on its own line, in the order of the text."""
        if not self.found:
            return
        known = index_lines(self.text)
        placed = []
        for path, problem in self.found:
            placed.append((find_line(known, path) or 0, path, problem))
        placed.sort(key=lambda place: place[0])
        count = len(placed)
        more = " or more" if count >= _MOST_SHOWN else ""
        rows = []
        for line, path, problem in placed[:_MOST_SHOWN]:
            # A key that is missing, or that an extended plan has, is on no line of this text.
            row = f"{_format_path(path)}{problem}"
            if line:
                row = f"line {line}: {row}"
            rows.append(row)
        noun = "mistake" if count == 1 else "mistakes"
        raise UsageError(f"{self.where} has {count}{more} {noun}", hint="\n".join(rows))


def _format_path(path: Path) -> str:
    text = ""
    for part in path:
        # Users count from 1.
        if isinstance(part, int):
            text += f"[{part + 1}]"
        else:
            text += f".{part}" if text else part
    return f"{text}: " if text else ""


def _suggest_name(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    names = ""
    if known:
        names = f"known: {', '.join(known)}"
    if close:
        return f"did you mean {close[0]!r}? {names}"
    return names


def _list_fields(model: "type[BaseModel]", path: Sequence[str | int]) -> list[str]:
    """Return the names of the keys that the table at `path` inside `model` can have."""
    kind: Any = model
    for part in path:
        by_alias = _index_by_alias(kind)
        if isinstance(part, str) and part in by_alias:
            kind = _find_model(by_alias[part].annotation) or kind
    return list(_index_by_alias(kind))


def _index_by_alias(model: Any) -> dict[str, Any]:
    """Return the fields of a model by the names that they have in a plan; none for another type."""
    fields: Mapping[str, Any] = getattr(model, "model_fields", {})
    return {field.alias or name: field for name, field in fields.items()}


def _find_model(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields"):
        return annotation
    for part in get_args(annotation):
        found = _find_model(part)
        if found is not None:
            return found
    return None


_PRUNINGS = 3
_STAND_INS: Mapping[str, Any] = {"name": "plan", "title": "plan", "platforms": ["host"]}


def drop_malformed(data: dict[str, Any], error: "ValidationError") -> schema.Plan | None:
    """Return the plan without malformed keys, so that the others can be checked; None if that fails."""
    rest = copy.deepcopy(data)
    # Removing a malformed key may make its table incomplete, which is another mistake.
    for _ in range(_PRUNINGS):
        for mistake in error.errors():
            _remove_at(rest, tuple(mistake["loc"]), missing=mistake["type"] == "missing")
        for name, value in _STAND_INS.items():
            rest.setdefault(name, value)
        try:
            return schema.Plan.model_validate(rest)
        except ValidationError as another:
            error = another
    return None


def _remove_at(data: dict[str, Any], path: Sequence[int | str], *, missing: bool) -> None:
    """Remove what is at `path`; if that is an element of a list, the whole list, because elements are known by number.

    If a key is `missing` from a table, remove that table.
    """
    where: Any = data
    steps = list(path)
    if missing and len(path) > 1:
        steps.pop()
    for at, part in enumerate(steps):
        if isinstance(part, int):
            steps = steps[:at]
            break
    for part in steps[:-1]:
        if not isinstance(where, dict) or part not in where:
            return
        where = where[part]
    if isinstance(where, dict) and steps:
        where.pop(steps[-1], None)


_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SCALAR = re.compile(r"[^\s,\]}#][^,\]}#\n]*")
_STRINGS = (
    re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL),
    re.compile(r"'''.*?'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def index_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of every table header, key and element by its path. `text` must be valid TOML."""
    # TOML allows LF and CRLF; with LF alone, the newlines before an offset give its line.
    return _TomlWalker(text.replace("\r\n", "\n")).walk_document()


def find_line(found: dict[Path, int], path: Sequence[str | int]) -> int | None:
    """Return the line of the longest known beginning of `path`."""
    for length in range(len(path), 0, -1):
        if (line := found.get(tuple(path[:length]))) is not None:
            return line
    return None


class _TomlWalker:
    """One pass over the text that knows just enough grammar to tell keys from values."""

    def __init__(self, text: str) -> None:
        self._text = text
        # tomllib reports no positions, so the line of an offset is found among the line ends.
        self._ends = [at for at, character in enumerate(text) if character == "\n"]
        self._at = 0
        self._found: dict[Path, int] = {}
        # How many elements of each array of tables, `[[…]]`, were seen.
        self._tables: dict[Path, int] = {}

    def walk_document(self) -> dict[Path, int]:
        """Return every path found. An unreadable rest, which valid TOML never has, ends the walk."""
        prefix: Path = ()
        self._skip_match(_BLANK)
        while self._at < len(self._text):
            before = self._at
            if self._text[self._at] == "[":
                prefix = self._walk_header()
            else:
                self._walk_pair(prefix)
            self._skip_match(_BLANK)
            if self._at == before:
                break
        return self._found

    def _walk_header(self) -> Path:
        begin = self._at
        double = self._text.startswith("[[", self._at)
        self._at += 2 if double else 1
        parts = self._read_key()
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end
        path: Path = ()
        for part in parts:
            path = (*path, part)
            if path in self._tables and not (
                double and len(path) == self._measure_element_depth(path, parts)
            ):
                path = (*path, self._tables[path] - 1)
        if double:
            number = self._tables.get(path, 0)
            self._tables[path] = number + 1
            self._record_line(path, begin)
            path = (*path, number)
        self._record_line(path, begin)
        return path

    @staticmethod
    def _measure_element_depth(path: Path, parts: list[str]) -> int:
        """Return the length of `path` if it stands for all of `parts`, and so for a new element; else -1."""
        names = [part for part in path if isinstance(part, str)]
        return len(path) if names == parts else -1

    def _walk_pair(self, prefix: Path) -> None:
        begin = self._at
        path = prefix
        for part in self._read_key():
            path = (*path, part)
            self._record_line(path, begin)
        self._skip_match(_SPACE)
        if self._text[self._at : self._at + 1] == "=":
            self._at += 1
            self._skip_match(_SPACE)
            self._walk_value(path)

    def _walk_value(self, path: Path) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._walk_array(path)
        elif first == "{":
            self._walk_table(path)
        elif first in {'"', "'"}:
            self._read_string()
        else:
            self._skip_match(_SCALAR)

    def _walk_array(self, path: Path) -> None:
        for number in self._walk_items("]"):
            self._record_line((*path, number), self._at)
            self._walk_value((*path, number))

    def _walk_table(self, path: Path) -> None:
        for _ in self._walk_items("}"):
            self._walk_pair(path)

    def _walk_items(self, end: str) -> Iterator[int]:
        """Yield the number of each item between commas, up to `end`, when it is its turn to be read."""
        self._at += 1
        self._skip_match(_BLANK)
        for number in itertools.count():
            before = self._at
            if before >= len(self._text) or self._text[before] == end:
                break
            yield number
            self._skip_match(_BLANK)
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
                self._skip_match(_BLANK)
            if self._at == before:
                return
        self._at += 1

    def _read_key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip_match(_SPACE)
            match = _BARE.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                parts.append(match.group())
            else:
                quoted = self._read_string()
                if not quoted:
                    return parts
                parts.append(quoted[1:-1])
            self._skip_match(_SPACE)
            if self._text[self._at : self._at + 1] != ".":
                return parts
            self._at += 1

    def _read_string(self) -> str:
        for form in _STRINGS:
            match = form.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return match.group()
        return ""

    def _skip_match(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _record_line(self, path: Path, at: int) -> None:
        self._found.setdefault(path, bisect.bisect_left(self._ends, at) + 1)

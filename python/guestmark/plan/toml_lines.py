"""The line of each key and array element in a TOML text, which `tomllib` does not report."""

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]

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


def lines(text: str) -> dict[Path, int]:
    """The line, from 1, of every table header, key and element by its path. `text` must be valid TOML."""
    return _Walker(text.replace("\r\n", "\n")).document()


def line_of(found: dict[Path, int], path: Sequence[str | int]) -> int | None:
    """The line of the longest part of `path` that is known."""
    for length in range(len(path), 0, -1):
        if (line := found.get(tuple(path[:length]))) is not None:
            return line
    return None


class _Walker:
    """One pass over the text that knows just enough grammar to tell keys from values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}  # how many `[[…]]` there were of each

    def document(self) -> dict[Path, int]:
        """Everything found. An unreadable rest (which valid TOML does not have) ends the walk."""
        prefix: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            before = self._at
            if self._text[self._at] == "[":
                prefix = self._header()
            else:
                self._pair(prefix)
            self._skip(_BLANK)
            if self._at == before:
                break
        return self._found

    def _header(self) -> Path:
        begin = self._at
        double = self._text.startswith("[[", self._at)
        self._at += 2 if double else 1
        parts = self._key()
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end
        path: Path = ()
        for part in parts:
            path = (*path, part)
            if path in self._tables and not (double and len(path) == self._depth(path, parts)):
                path = (*path, self._tables[path] - 1)
        if double:
            number = self._tables.get(path, 0)
            self._tables[path] = number + 1
            self._note(path, begin)
            path = (*path, number)
        self._note(path, begin)
        return path

    @staticmethod
    def _depth(path: Path, parts: list[str]) -> int:
        """The length `path` has when it stands for all of `parts`; only then it is a new element itself."""
        names = [part for part in path if isinstance(part, str)]
        return len(path) if names == parts else -1

    def _pair(self, prefix: Path) -> None:
        begin = self._at
        path = prefix
        for part in self._key():
            path = (*path, part)
            self._note(path, begin)
        self._skip(_SPACE)
        if self._text[self._at : self._at + 1] == "=":
            self._at += 1
            self._skip(_SPACE)
            self._value(path)

    def _value(self, path: Path) -> None:
        first = self._text[self._at : self._at + 1]
        if first == "[":
            self._array(path)
        elif first == "{":
            self._table(path)
        elif first in {'"', "'"}:
            self._string()
        else:
            self._skip(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        number = 0
        self._skip(_BLANK)
        while self._at < len(self._text) and self._text[self._at] != "]":
            before = self._at
            self._note((*path, number), self._at)
            self._value((*path, number))
            number += 1
            self._skip(_BLANK)
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
                self._skip(_BLANK)
            if self._at == before:
                return
        self._at += 1

    def _table(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK)
        while self._at < len(self._text) and self._text[self._at] != "}":
            before = self._at
            self._pair(path)
            self._skip(_BLANK)
            if self._text[self._at : self._at + 1] == ",":
                self._at += 1
                self._skip(_BLANK)
            if self._at == before:
                return
        self._at += 1

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_SPACE)
            match = _BARE.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                parts.append(match.group())
            else:
                quoted = self._string()
                if not quoted:
                    return parts
                parts.append(quoted[1:-1])
            self._skip(_SPACE)
            if self._text[self._at : self._at + 1] != ".":
                return parts
            self._at += 1

    def _string(self) -> str:
        for form in _STRINGS:
            match = form.match(self._text, self._at)
            if match is not None:
                self._at = match.end()
                return match.group()
        return ""

    def _skip(self, what: re.Pattern[str]) -> None:
        match = what.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _note(self, path: Path, at: int) -> None:
        self._found.setdefault(path, self._text.count("\n", 0, at) + 1)

"""Parses users' TOML within limits of size, depth, values and digits, and thus of time.

Python's parser takes time quadratic in the parts of a key, and later steps recurse: a plan of 2 kB could exhaust the
stack, one of 40 kB take a minute. So one pass checks the depth before anything is parsed.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from guestmark.core.errors import UsageError

# Bytes; no real plan is larger.
LARGEST = 1 << 20
# Tables in tables and lists in lists, and parts of a key.
_DEEPEST = 32
_MOST = 50_000  # values and tables
# TOML's integers have 64 bits.
_LARGEST_INTEGER = 1 << 63
_HINT = "see docs/reference/plan-files.md for the format of a plan"

# Three quotes without an end are not a string; the rest is searched only once.
_STRING = "|".join(
    (
        r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}',
        r"'''(?:[^']|'(?!''))*'{3,5}",
        r'"(?:[^"\\\n]|\\.)+"|""(?!")',
        r"'[^'\n]+'|''(?!')",
    )
)
_TOKEN = re.compile(
    rf"(?P<skip>#[^\n]*|[ \t\r]+)|(?P<word>{_STRING}|[A-Za-z0-9_+:-]+)|(?P<sign>.)", re.DOTALL
)


def read_toml(text: str, where: str, hint: str = _HINT) -> dict[str, Any]:
    """Return the tables of a text that users know as `where`. Raises `UsageError`, also for excessive content."""
    problem = _find_excess(text)
    if not problem:
        try:
            found = tomllib.loads(text)
        except (
            ValueError,
            RecursionError,
            # Raised by tomllib, and by Python's limit of digits.
        ) as error:
            raise UsageError(f"{where} is not TOML: {_shorten_text(str(error))}", hint=hint) from error
        problem = _find_out_of_range(found)
    if problem:
        raise UsageError(f"{where} {problem}", hint=hint)
    return found


def read_toml_text(path: Path, hint: str = _HINT, *, only_regular: bool = False) -> str:
    """Return the text of a TOML file, read within its budget. Raises `UsageError` for a file that cannot be read.

    A file that is read again later has to be a regular one (`only_regular`): a pipe would have nothing more.
    """
    # Opening a pipe without a writer would block.
    flags = os.O_RDONLY | os.O_CLOEXEC
    if only_regular:
        flags |= os.O_NONBLOCK
    try:
        with open(os.open(path, flags), "rb") as stream:
            if only_regular and not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise UsageError(f"{path} is not a file", hint=hint)
            data = stream.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid path"
        raise UsageError(f"{path} cannot be read: {reason}", hint=hint) from error
    if len(data) > LARGEST:
        raise UsageError(f"{path} is larger than 1 MiB", hint=hint)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", hint=hint) from error


def _shorten_text(said: str) -> str:
    return said if len(said) <= 200 else f"{said[:200]}…"


def _find_excess(text: str) -> str:
    """Return which limit the text exceeds, as in "is larger than 1 MiB"; empty if none. Takes linear time."""
    if len(text) > LARGEST:
        return "is larger than 1 MiB"
    depth = parts = values = 0
    dotted = False
    for token in _TOKEN.finditer(text):
        if token["skip"] is not None:
            continue
        if token["word"] is not None:
            parts = parts + 1 if dotted else 1
            dotted = False
        else:
            sign = token["sign"]
            # An unterminated string, which tomllib reports better.
            if sign in "\"'":
                return ""
            dotted = sign == "."
            depth += (sign in "[{") - (sign in "]}")
            values += sign in "=,[{"
        if max(depth, parts) > _DEEPEST:
            return f"has tables or lists nested more than {_DEEPEST} deep"
        if values > _MOST:
            return f"has more than {_MOST:,} values"
    return ""


def _find_out_of_range(found: dict[str, Any]) -> str:
    """Return which limit the parsed values exceed: headers with keys, and numbers."""
    level: list[Any] = [found]
    for _ in range(_DEEPEST + 1):
        inner: list[Any] = []
        for table in level:
            inner += table.values() if isinstance(table, dict) else table
        level = []
        for value in inner:
            if isinstance(value, int) and not -_LARGEST_INTEGER <= value < _LARGEST_INTEGER:
                return "has an integer that exceeds 64 bits"
            if isinstance(value, dict | list):
                level.append(value)
        if not level:
            return ""
    return f"has tables or lists nested more than {_DEEPEST} deep"

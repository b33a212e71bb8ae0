"""Recognises text that has to be run by a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_SIGNS = re.compile(r"[|&;<>$`*?~#()\[\n]")
# Escaped characters, and texts between quotes, except what a shell changes in them.
_QUOTED = re.compile(r"""\\[^\n$`]|'[^']*'|"(?:[^"$`\\]|\\[^$`\n])*\"""")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
# From POSIX: reserved words, and builtins that no program needs to provide.
_OWN = frozenset({
    "!", "{", "case", "for", "if", "until", "while",
    ".", ":", "alias", "bg", "break", "cd", "command", "continue", "eval", "exec", "exit", "export", "fc", "fg",
    "getopts", "hash", "jobs", "read", "readonly", "return", "set", "shift", "times", "trap", "type", "ulimit",
    "umask", "unalias", "unset", "wait",
})  # fmt: skip


def needs_shell(text: str) -> bool:
    """Return whether the text has a special character that is not quoted, or begins with a word of the shell itself."""
    return has_special_characters(text) or is_shell_word((text.split() or [""])[0])


def has_special_characters(text: str) -> bool:
    """Return whether the text has a special character that is not quoted."""
    return _SIGNS.search(_QUOTED.sub("", text)) is not None


def is_shell_word(word: str) -> bool:
    """Return whether a first word belongs to the shell: an assignment, a reserved word, or a builtin."""
    return word in _OWN or _ASSIGNMENT.match(word) is not None


def join_for_shell(words: Sequence[str]) -> str:
    """Join the words into a text for a shell; the first one belongs to the shell."""
    name, equals, value = words[0].partition("=")
    first = f"{name}={shlex.quote(value)}" if equals else words[0]
    return " ".join([first, *map(shlex.quote, words[1:])])

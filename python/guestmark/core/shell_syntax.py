"""What in a text only a shell understands, so that it gets one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_SIGNS = re.compile(r"[|&;<>$`*?~#()\[\n]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"$`]*\"")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
# Of POSIX: reserved words and what a shell does itself, where no program need have the name.
_OWN = frozenset({
    "!", "{", "case", "for", "if", "until", "while",
    ".", ":", "alias", "bg", "break", "cd", "command", "continue", "eval", "exec", "exit", "export", "fc", "fg",
    "getopts", "hash", "jobs", "read", "readonly", "return", "set", "shift", "times", "trap", "type", "ulimit",
    "umask", "unalias", "unset", "wait",
})  # fmt: skip


def needs_shell(text: str) -> bool:
    """Whether something in the text means something to a shell: a sign outside of quotes, or its first word."""
    return _SIGNS.search(_QUOTED.sub("", text)) is not None or is_of_shell((text.split() or [""])[0])


def is_of_shell(word: str) -> bool:
    """Whether a first word is one for a shell: an assignment, a reserved word, or what it does itself."""
    return word in _OWN or _ASSIGNMENT.match(word) is not None


def join_for_shell(words: Sequence[str]) -> str:
    """The words as a text for a shell, of which the first is one for it."""
    name, equals, value = words[0].partition("=")
    first = f"{name}={shlex.quote(value)}" if equals else words[0]
    return " ".join([first, *map(shlex.quote, words[1:])])

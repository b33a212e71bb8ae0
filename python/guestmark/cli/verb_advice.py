"""Advises what to type if the first word is not a verb but a plan, a file, a run or a command."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from guestmark.cli import hyperfine
from guestmark.cli.verbs import SYNONYMS, VERBS
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.plan.library import list_plan_names

# Files are recognized by their suffixes, each with the verb for it.
_FILES = (
    (re.compile(r"\.toml$"), "run"),
    (re.compile(r"\.(pcap|pcapng|cap)(\.(gz|zst|xz|bz2))?$"), "capture"),
    (re.compile(r"\.gmk(\.html)?$"), "import"),
)
_RUN = re.compile(r"last|\d{8}-\d{6}-[0-9a-z]{3}")


def refuse_verb(words: Sequence[str]) -> None:
    """Raises `UsageError` for `words`, whose first word is not a verb; names the line to type, or similar verbs."""
    word = words[0]
    mistake = f"unknown verb {word!r}"
    if word in SYNONYMS:
        raise UsageError(mistake, hint=f"type: guestmark {SYNONYMS[word]}")
    options_follow = all(each.startswith("-") for each in words[1:2])
    if word in list_plan_names() and options_follow:
        raise UsageError(mistake, hint=f"to run the plan of this name: {_join_line('run', words)}")
    if _RUN.fullmatch(word):
        raise UsageError(mistake, hint=f"to see the run: {_join_line('show', words)}")
    for name, verb in _FILES:
        if name.search(word) and os.path.isfile(word):
            raise UsageError(mistake, hint=f"type: {_join_line(verb, words)}")
    line = None
    if hyperfine.find_command_texts([word]):
        line = _join_line("exec", words)
    elif hyperfine.is_program(word):
        line = _join_line("exec", ["--", *words])
    if line is not None:
        raise UsageError(mistake, hint=f"to measure it: {line}")
    raise make_unknown_name_error("verb", word, VERBS)


def _join_line(verb: str, words: Sequence[str]) -> str:
    return shlex.join(["guestmark", verb, *words])

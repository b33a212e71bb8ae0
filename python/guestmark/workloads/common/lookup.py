"""Whether a command can be run at all, found out on the host before anything is started."""

from __future__ import annotations

import json
import os
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.errors import UsageError

_SHELL = set("|&;<>()$`*?[]~#\n\"'\\")  # what a shell would act upon
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # the agent's, without PATH


def check_command(argv: Sequence[str], *, env: Mapping[str, str], cwd: str, typed: bool) -> None:
    """Raises `UsageError` when the host has no such program, where `execvp` would look from within `cwd`.

    `typed` says that the command was given on the command line rather than in a plan; the hint is written that way.
    """
    name = argv[0]
    path = env.get("PATH", _DEFAULT_PATH)
    files = [os.path.join(cwd, file) for file in _candidates(name, path)]
    reasons = {file: _why_not(file) for file in files}
    if None in reasons.values():
        return
    # As execvp has it: a file that is there but may not be executed says more than the directories without one.
    for file, told in reasons.items():
        if told and told[0]:
            shown = name if "/" in name else os.path.normpath(file)
            raise UsageError(f"{shown!r} {told[0]}", hint=told[1])
    words = _words(name)
    if len(words) > 1:
        raise UsageError(f"command not found: {name!r} as one word", hint=_meant(argv, words, typed))
    raise UsageError(f"command not found: {name!r}", hint=_nearest(name, path, cwd))


def _candidates(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [f"{directory or '.'}/{name}" for directory in path.split(os.pathsep)]


def _why_not(file: str) -> tuple[str, str] | None:
    """Why a file cannot be run, and what to do about it; None when it can. The reason is empty when it is not there."""
    try:
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except (OSError, ValueError) as error:
        return (
            f"cannot be looked at: {getattr(error, 'strerror', None) or error}",
            "give the path of a program",
        )
    if stat.S_ISDIR(mode):
        return "is a directory, not a program", "name a program in it"
    if not stat.S_ISREG(mode):
        return "is not a regular file, so not a program", "give the path of a program"
    if not os.access(file, os.X_OK):
        return (
            "is not executable",
            f"chmod +x {shlex.quote(os.path.normpath(file))}, or name its interpreter before it",
        )
    return None


def _words(name: str) -> list[str]:
    """The words that a shell would see in a name."""
    try:
        return shlex.split(name)
    except ValueError:  # an open quotation
        return [name]


def _meant(argv: Sequence[str], words: list[str], typed: bool) -> str:
    if _SHELL & set(argv[0]):
        words = ["sh", "-c", argv[0]]
    words = [*words, *argv[1:]]
    if typed:
        return f"did you mean: -- {shlex.join(words)}"
    return f"did you mean: command = {json.dumps(words, ensure_ascii=False)}"


def _nearest(name: str, path: str, cwd: str) -> str:
    """The hint for a name that is nowhere."""
    if "/" in name:
        return f"there is no such file (seen from {cwd})"
    if _why_not(os.path.join(cwd, name)) is None:
        return f"a program in the current directory is called ./{name}"
    from difflib import get_close_matches

    close = get_close_matches(name, set(_programs(path, cwd)), n=1, cutoff=0.8)
    return f"did you mean {close[0]!r}?" if close else "is it installed, and in a directory of PATH?"


def _programs(path: str, cwd: str) -> Iterable[str]:
    for directory in dict.fromkeys(path.split(os.pathsep)):
        try:
            yield from os.listdir(os.path.join(cwd, directory or "."))
        except OSError:
            continue

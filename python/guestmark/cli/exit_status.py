"""The exit status of a command with gates that could not be judged, as build servers and `git bisect run` read it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from guestmark.core.errors import ExitStatus, GateStatus


def derive_unjudged_status(status: int) -> int:
    """Returns the exit status of a command with gates that ended with `status` before they could be judged."""
    # 128 and more stops `git bisect run`; a smaller status would blame a commit, or skip it.
    if status >= GateStatus.FAILED or (status == ExitStatus.USAGE and not _is_in_bisection()):
        return status
    return GateStatus.FAILED + status if status else ExitStatus.ALL_MEASURED


def _is_in_bisection() -> bool:
    """Returns whether `git bisect` is running here, which takes status 2 of a wrong command line for a bad commit."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        git = folder / ".git"
        try:
            # In a linked worktree .git is a file that names the directory.
            if git.is_file():
                git = folder / git.read_text().partition("gitdir: ")[2].strip()
            if git.is_dir():
                return (git / "BISECT_START").exists()
        except OSError:
            # A status that git refuses is better than a commit blamed for a typing mistake.
            return True
    return False


def has_gate_on_command_line(arguments: Sequence[str] | None = None) -> bool:
    """Returns whether the command line of this process has a gate; what follows `--` is the measured command's."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own_words = words[: words.index("--")] if "--" in words else words
    return (
        own_words[:1] in (["gate"], ["bisect"])
        or own_words[:2] == ["changes", "bisect"]
        or any(word.split("=")[0] in {"--fail-if", "--fail-above"} for word in own_words)
    )

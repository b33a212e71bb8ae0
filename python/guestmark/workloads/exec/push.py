"""`--push`: files that a command needs on another machine, brought there for every trial and removed after it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from guestmark.core.errors import WorkloadError
from guestmark.workloads.exec.command import File

if TYPE_CHECKING:
    from guestmark.platforms.base import LoggedIn, Machine

_PIECE = 1 << 20
_FILE_S = 600.0
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def pushed(
    machine: Machine, argv: Sequence[str], files: Sequence[File], cwd: str
) -> tuple[list[str], dict[str, Any]]:
    """The command as it is called on that machine, and what it runs with, once the files are there.

    Without files it runs in the home directory of the user there, else in the directory that holds them, which also is
    the first that commands are looked for in. Words of the command that name such a file, seen from `cwd`, name it
    there. Raises `WorkloadError` for a file that has changed since the plan was made.
    """
    login: LoggedIn = machine  # type: ignore[assignment]
    user = login.caller()
    if not files:
        return list(argv), {"env": dict(user.env), "cwd": user.cwd}
    for file in files:
        _bring(machine, file, f"{login.scratch}/{os.path.basename(file.path)}")
    names = {file.path: f"./{os.path.basename(file.path)}" for file in files}
    command = [names.get(os.path.normpath(os.path.join(cwd, word)), word) for word in argv]
    path = f"{login.scratch}:{user.env.get('PATH', _DEFAULT_PATH)}"
    return command, {"env": {**user.env, "PATH": path}, "cwd": login.scratch}


def _bring(machine: Machine, file: File, target: str) -> None:
    machine.agent.write_file(target, _pieces(file.path), mode=file.mode | 0o600, timeout_s=_FILE_S)
    if machine.agent.sha256(target, timeout_s=_FILE_S).sha256 != file.sha256:
        raise WorkloadError(f"{file.path} has changed since the run began, or did not arrive whole")


def _pieces(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror or error}") from error

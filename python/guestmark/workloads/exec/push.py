"""`--push`: files that a command needs on another machine, brought there for every trial and removed after it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.workloads.common.program import sha256_here

if TYPE_CHECKING:
    from guestmark.platforms.base import LoggedIn, Machine

_PIECE = 1 << 20
_FILE_S = 600.0
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def described(paths: Sequence[str]) -> list[dict[str, Any]]:
    """The files as a plan holds them, with their digests. Raises `UsageError` for one that cannot be brought."""
    files: dict[str, dict[str, Any]] = {}
    for path in paths:
        whole = os.path.abspath(path)
        name = os.path.basename(whole)
        try:
            status = os.stat(whole)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(
                    f"--push {path}: not a regular file", hint="name each file; directories cannot be brought"
                )
            digest = sha256_here(whole)
        except OSError as error:
            raise UsageError(
                f"--push {path}: {error.strerror or error}", hint="give a readable file"
            ) from error
        if files.setdefault(name, {"path": whole})["path"] != whole:
            raise UsageError(
                f"--push: two files are called {name}",
                hint="all are put into one directory there: rename one",
            )
        files[name] |= {
            "sha256": digest,
            "size": status.st_size,
            "mode": stat.S_IMODE(status.st_mode) & 0o755,
        }
    return list(files.values())


def pushed(
    machine: Machine, argv: Sequence[str], files: Sequence[Mapping[str, Any]], cwd: str
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
        _bring(machine, file, f"{login.scratch}/{os.path.basename(file['path'])}")
    names = {file["path"]: f"./{os.path.basename(file['path'])}" for file in files}
    command = [names.get(os.path.normpath(os.path.join(cwd, word)), word) for word in argv]
    path = f"{login.scratch}:{user.env.get('PATH', _DEFAULT_PATH)}"
    return command, {"env": {**user.env, "PATH": path}, "cwd": login.scratch}


def _bring(machine: Machine, file: Mapping[str, Any], target: str) -> None:
    machine.agent.write_file(target, _pieces(file["path"]), mode=file["mode"] | 0o600, timeout_s=_FILE_S)
    if machine.agent.sha256(target, timeout_s=_FILE_S).sha256 != file["sha256"]:
        raise WorkloadError(f"{file['path']} has changed since the run began, or did not arrive whole")


def _pieces(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except OSError as error:
        raise WorkloadError(f"{path} cannot be read: {error.strerror or error}") from error

"""Files that a command needs: its standard input, and files that are copied to other machines."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence

import msgspec

from guestmark.core.errors import UsageError
from guestmark.workloads.common.program import compute_sha256

# Bytes; the input is kept in memory and sent to every machine.
STDIN_LIMIT = 64 * 1024 * 1024


class Input(msgspec.Struct, frozen=True):
    """The file of `--input`; size and digest identify its content."""

    path: str
    size: int
    sha256: str


class File(msgspec.Struct, frozen=True):
    """A file that is copied to other machines."""

    path: str
    sha256: str
    size: int
    mode: int


def describe_files(paths: Sequence[str]) -> list[File]:
    """Describes files with their digests, as a plan holds them. Raises `UsageError` for one that cannot be copied."""
    files: dict[str, File] = {}
    for path in paths:
        whole = os.path.abspath(path)
        name = os.path.basename(whole)
        try:
            status = os.stat(whole)
            if not stat.S_ISREG(status.st_mode):
                raise UsageError(
                    f"--push {path}: not a regular file", hint="name each file; directories cannot be copied"
                )
            file = File(whole, compute_sha256(whole), status.st_size, stat.S_IMODE(status.st_mode) & 0o755)
        except OSError as error:
            raise UsageError(
                f"--push {path}: {error.strerror or error}", hint="give a readable file"
            ) from error
        if files.setdefault(name, file).path != whole:
            raise UsageError(
                f"--push: two files have the name {name}",
                hint="all files are copied into the same directory: rename one of them",
            )
    return list(files.values())


def describe_input(path: str | None) -> Input | None:
    """Describes the file of `--input`. Raises `UsageError` if it cannot be read."""
    if path is None:
        return None
    data = read_stdin(path)
    return Input(os.path.abspath(path), len(data), hashlib.sha256(data).hexdigest())


def read_stdin(path: str) -> bytes:
    """Reads the bytes of `--input FILE`. Raises `UsageError` if it cannot be read or exceeds `STDIN_LIMIT`."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(STDIN_LIMIT + 1)
    except OSError as error:
        raise UsageError(f"--input {path}: {error.strerror or error}", hint="give a readable file") from error
    if len(data) > STDIN_LIMIT:
        raise UsageError(
            f"--input {path} is larger than {STDIN_LIMIT // 1024**2} MiB",
            hint="let the command open the file itself, since guests see the host's files",
        )
    return data

"""Where temporary files and directories are made, and nowhere else: each is named to the keeper before it exists.

So a SIGKILL at any moment leaves none of them, wherever it was to be. What is made here is called `guestmark-…`, by
which `guestmark clean` knows it if the machine itself goes down.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from guestmark.core.keeper import keeper


def default_parent() -> Path:
    """`$TMPDIR`, or where temporary files are otherwise."""
    # Not what every command line waits for.
    import tempfile

    return Path(tempfile.gettempdir()).absolute()


@contextlib.contextmanager
def scratch_directory(name: str, parent: Path | None = None, mode: int = 0o700) -> Iterator[Path]:
    """A directory, by default in the usual place, which is removed at the end. Raises `OSError`."""
    path = keeper().directory(name, (parent or default_parent()).absolute(), mode)
    try:
        yield path
    finally:
        keeper().remove(path)


@contextlib.contextmanager
def replace_file(target: Path, mode: int = 0o600) -> Iterator[Path]:
    """A path beside `target`, at which something is to be made that takes its place when the block has ended.

    If the block fails, or the process is killed in it, nothing of it is left and `target` is as it was. An empty file
    with that mode is there; the block fills it, or replaces it. Raises `OSError`.
    """
    part = keeper().free_path("part", target.parent.absolute())
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield part
        part.replace(target)
        keeper().forget(part)
    finally:
        keeper().remove(part)


@contextlib.contextmanager
def open_unnamed_file() -> Iterator[IO[bytes]]:
    """A file that nobody else can open, as it has no name: it is gone with whoever has it."""
    import tempfile

    with (
        tempfile.TemporaryFile() as file
        # By O_TMPFILE; where that is not known, it has a name for some microseconds.
    ):
        assert stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        yield file

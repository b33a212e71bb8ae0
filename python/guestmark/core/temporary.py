"""The only module that creates temporary files and directories: each is announced to the keeper before it exists.

So none of them remains after a SIGKILL at any moment, wherever it is. Their names begin with `guestmark-`, by which
`guestmark clean` finds them after a power failure.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from guestmark.core.keeper import keeper


def find_default_parent() -> Path:
    """Return `$TMPDIR`, or the system's directory for temporary files."""
    # Imported here, so that other commands need not wait for it.
    import tempfile

    return Path(tempfile.gettempdir()).absolute()


@contextlib.contextmanager
def scratch_directory(name: str, parent: Path | None = None, mode: int = 0o700) -> Iterator[Path]:
    """Yield a directory, by default in `find_default_parent()`, that is removed at the end. Raises `OSError`."""
    path = keeper().directory(name, (parent or find_default_parent()).absolute(), mode)
    try:
        yield path
    finally:
        keeper().remove(path)


@contextlib.contextmanager
def replace_file(target: Path, mode: int = 0o600) -> Iterator[Path]:
    """Yield a path next to `target`; the file at that path replaces `target` when the block has ended.

    If the block fails, or the process is killed in it, nothing of it remains and `target` is unchanged. An empty file
    with `mode` exists at the path; the block fills or replaces it. Raises `OSError`.
    """
    part = keeper().reserve_path("part", target.parent.absolute())
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield part
        part.replace(target)
        keeper().forget(part)
    finally:
        keeper().remove(part)


@contextlib.contextmanager
def open_unnamed_file() -> Iterator[IO[bytes]]:
    """Open a file without a name, which no other process can open and which disappears with its last user."""
    import tempfile

    with (
        tempfile.TemporaryFile() as file
        # By O_TMPFILE; if that is not supported, it has a name for some microseconds.
    ):
        assert stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        yield file

"""An image whose writes and flushes are logged as the host's kernel sees them, whichever hypervisor makes them.

guestmark's agent serves the image through FUSE as a plain file (`crates/agent/src/logwrites`): every hypervisor opens
that file as any other. The server ends with this process; whoever removes the directory unmounts the file (the keeper
too, when this process was killed).

The FUSE export of `qemu-storage-daemon` 7.2 with its driver `blklogwrites` does not serve: it reads a request into the
buffer of another one whose write still goes on, so that parallel writes get each other's bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import mounts
from guestmark.core.own_program import agent_binary
from guestmark.disks.daemon import serve_image

SERVER = "log-writes"  # the agent's word for it
# A flush takes that long: who acknowledges it before it is done goes on meanwhile, and is seen to.
_FLUSH_MS = 10
_MARK = 1 << 30 | 8 << 16 | ord("g") << 8 | 1  # _IOW('g', 1, u64)
_HINT = "it needs /dev/fuse, and for users other than root fusermount3 (package fuse3)"


@dataclass(frozen=True, slots=True)
class LoggedFiles:
    """The files of a logged image: what it was at first, what has been written to it since, and the image below.

    `under` is the one on top of which they lie. `at` is the file that a hypervisor opens. `kill` ends the server while
    it serves the image: what hangs in it gets an error then.
    """

    base: Path
    log: Path
    image: Path
    under: Path | None = None
    at: Path | None = None
    kill: Callable[[], None] | None = field(default=None, compare=False)


def explain_no_log() -> str:
    """Why no image can be logged on this host, as far as can be seen without trying; empty when nothing is missing."""
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is not there"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    return ""


@contextlib.contextmanager
def serve_logged(files: LoggedFiles, at: Path) -> Iterator[Callable[[], None]]:
    """Serves the image as the file `at` while the context lasts, and yields how to end that before.

    Raises `MachineError` when that is not to be had.
    """
    for path in (files.log, at):
        path.touch()
    try:
        with serve_image(
            _server_command(files, at), lambda: _is_mounted(at), "the image cannot be logged", _HINT
        ) as kill:
            yield kill
    finally:
        unmount(at)


@contextlib.contextmanager
def open_marker(files: LoggedFiles) -> Iterator[Callable[[int], None]]:
    """Yields what marks a moment in the log with a number: what was acknowledged by then.

    Marks do not wait for writes or flushes that go on. Raises `MachineError` when the server has gone.
    """
    assert files.at is not None
    with files.at.open("rb", buffering=0) as file:

        def mark(number: int) -> None:
            try:
                fcntl.ioctl(file, _MARK, struct.pack("=Q", number))
            except OSError as error:
                raise MachineError(
                    f"the log of writes has ended: {error.strerror}", hint="see the console"
                ) from error

        yield mark


def unmount(at: Path) -> None:
    """Detaches what is mounted at a file, if anything is."""
    if not _is_mounted(at):
        return
    for command in (["umount", "-l", "--", str(at)], ["fusermount3", "-u", "-z", "--", str(at)]):
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return


def unmount_below(directory: Path) -> None:
    """Detaches what is mounted below a directory: what a killed daemon has left."""
    for mount in reversed(mounts()):
        if directory in Path(mount.where).parents:
            unmount(Path(mount.where))


def _server_command(files: LoggedFiles, at: Path) -> list[str]:
    return [
        str(agent_binary()), SERVER, "--image", str(files.image), "--log", str(files.log), "--at", str(at),
        "--delay", str(_FLUSH_MS),
    ]  # fmt: skip


def _is_mounted(at: Path) -> bool:
    """Asks the table of mounts: a mount whose daemon has gone answers nothing else."""
    return any(mount.where == str(at) for mount in mounts())

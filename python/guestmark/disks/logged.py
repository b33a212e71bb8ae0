"""Logs the writes and flushes of an image as the host's kernel sees them, whichever hypervisor issues them.

guestmark's agent serves the image through FUSE as a plain file (`crates/agent/src/logwrites`), which every hypervisor
opens like any other file. The server ends with this process; whoever removes the directory unmounts the file, which
includes the keeper after this process was killed.

The FUSE export of `qemu-storage-daemon` 7.2 with its driver `blklogwrites` cannot be used: it reads a request into the
buffer of another request whose write is still in progress, so parallel writes get each other's bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import read_mounts
from guestmark.core.own_program import find_agent_binary
from guestmark.disks.daemon import serve_image

SERVER = "log-writes"  # the agent's subcommand
# Each flush takes this long, so that a program that acknowledges before its flush is done is caught doing so.
_FLUSH_MS = 10
_MARK = 1 << 30 | 8 << 16 | ord("g") << 8 | 1  # _IOW('g', 1, u64)
_HINT = "this needs /dev/fuse and, for users other than root, fusermount3 (package fuse3)"


@dataclass(frozen=True, slots=True)
class LoggedFiles:
    """The files of a logged image: the initial content, the log of later writes, and the image itself.

    `under` is the backing image, if there is one. `at` is the file that a hypervisor opens. `kill` ends the server
    while it serves the image; operations that hang in it then fail with an error.
    """

    base: Path
    log: Path
    image: Path
    under: Path | None = None
    at: Path | None = None
    kill: Callable[[], None] | None = field(default=None, compare=False)


def explain_no_log() -> str:
    """Return why this host cannot log an image, as far as can be seen without trying; empty if nothing is missing."""
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse does not exist"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "this user may not open /dev/fuse"
    return ""


@contextlib.contextmanager
def serve_logged(files: LoggedFiles, at: Path) -> Iterator[Callable[[], None]]:
    """Serve the image as the file `at` while the context lasts; yield a function that ends the server earlier.

    Raises `MachineError` when the image cannot be served.
    """
    # The server mounts over an existing file, and appends to an existing log.
    for path in (files.log, at):
        path.touch()
    try:
        with serve_image(
            _build_server_command(files, at),
            lambda: _is_mounted(at),
            "the writes to the image cannot be logged",
            _HINT,
        ) as kill:
            yield kill
    finally:
        unmount(at)


class LogHangsError(MachineError):
    """The server of a log did not answer in time and was killed."""


@contextlib.contextmanager
def open_marker(files: LoggedFiles, limit_s: float) -> Iterator[Callable[[int], None]]:
    """Yield a function that marks a moment in the log with a number, such as the count of acknowledgements so far.

    Marks do not wait for writes or flushes in progress. Raises `MachineError` when the server has ended, and
    `LogHangsError` when it takes longer than `limit_s`.
    """
    assert files.at is not None
    file = files.at.open("rb", buffering=0)
    watch = _Watch(limit_s, files.kill)

    def mark(number: int) -> None:
        try:
            with watch.limit_call():
                fcntl.ioctl(file, _MARK, struct.pack("=Q", number))
        except OSError as error:
            if watch.has_killed:
                raise LogHangsError(
                    f"the server that logs writes hangs: it did not accept a mark within {limit_s:g} s",
                    hint="see the machine's console output",
                ) from error
            raise MachineError(
                f"the server that logs writes has ended: {error.strerror}",
                hint="see the machine's console output",
            ) from error

    try:
        with watch:
            yield mark
    finally:
        # A file whose server has ended cannot be closed without an error, which would hide why it ended.
        with contextlib.suppress(OSError):
            file.close()


class _Watch:
    """Kills the server of a log when an answer takes too long.

    A call to a file in FUSE waits uninterruptibly for its server: not even SIGKILL ends it.
    """

    def __init__(self, limit_s: float, kill: Callable[[], None] | None) -> None:
        self._limit_s = limit_s
        self._kill = kill
        self._called_at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill_if_late, name="log-watch", daemon=True)
        self.has_killed = False

    def __enter__(self) -> None:
        if self._kill is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    @contextlib.contextmanager
    def limit_call(self) -> Iterator[None]:
        """Kill the log's server if a call made in this context exceeds the time limit."""
        self._called_at = time.monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def _kill_if_late(self) -> None:
        while not self._over.wait(min(1.0, self._limit_s)):
            called_at = self._called_at
            if called_at is not None and time.monotonic() - called_at > self._limit_s:
                assert self._kill is not None
                self.has_killed = True
                self._kill()
                return


def unmount(at: Path) -> None:
    """Detach whatever is mounted at a file."""
    if not _is_mounted(at):
        return
    # Root may unmount directly; other users need FUSE's own helper, which is setuid.
    for command in (["umount", "-l", "--", str(at)], ["fusermount3", "-u", "-z", "--", str(at)]):
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                return


def unmount_below(directory: Path) -> None:
    """Detach whatever is mounted below a directory, such as the mounts of a killed daemon."""
    for mount in reversed(read_mounts()):
        if directory in Path(mount.where).parents:
            unmount(Path(mount.where))


def _build_server_command(files: LoggedFiles, at: Path) -> list[str]:
    return [
        str(find_agent_binary()), SERVER, "--image", str(files.image), "--log", str(files.log), "--at", str(at),
        "--delay", str(_FLUSH_MS),
    ]  # fmt: skip


def _is_mounted(at: Path) -> bool:
    """Return whether something is mounted at the path, according to the table of mounts.

    Other ways of asking fail for a mount whose daemon has ended.
    """
    return any(mount.where == str(at) for mount in read_mounts())

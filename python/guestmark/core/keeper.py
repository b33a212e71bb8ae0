"""Removes leftovers however this process ends: each is announced to a keeper process before it is created.

The keeper (`guestmark-agent keep`) is started before the first thing it may have to remove, and reads names from a pipe
whose write end only this process and its supervisors have. So even after a SIGKILL at any moment every name is in the
pipe, and the keeper removes the named paths when the last supervisor has ended what it supervised.

The names are also in a file that supervisors hold: if both processes of the keeper are killed together with this one,
the supervisors remove what it names. Without a supervisor, the next keeper of this user does. It finds the file in the
cache, locked as long as any process has it open. If the cache cannot be written, the file has no name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import subprocess
import threading
import time
from pathlib import Path

from guestmark.core.home import find_cache_home
from guestmark.core.own_program import find_agent_binary

PREFIX = "guestmark-"
_ATTEMPTS = 100
# A directory in the cache, divided by host, because hosts may share a cache.
_RECORDS = "keepers"
_MEMBERS = "cgroup.procs"  # of a control group
_EMPTY_S = 1.0


class Keeper:
    """The keeper of this process; see the module. It consists of two processes and is replaced when both have ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[
            Path, int
            # The descriptor whose lock marks the path as in use; -1 without one.
        ] = {}
        self._lifeline = -1
        # The file with every record that was ever written.
        self._names = -1
        self._record: Path | None = None  # the path of that file
        self._process: subprocess.Popen[bytes] | None = None

    def directory(self, name: str, parent: Path | str, mode: int = 0o700) -> Path:
        """Create the directory `guestmark-NAME-…` in `parent`, which must be absolute. Raises `OSError`."""
        for _ in range(_ATTEMPTS):
            path = self.reserve_path(name, parent)
            try:
                path.mkdir(mode)
                with self._lock:
                    self._kept[path] = _hold_lock(path)
            except FileExistsError:
                # It belongs to another process, which removes it.
                self.forget(path)
            except OSError:
                self.forget(path)
                raise
            else:
                return path
        raise FileExistsError(f"no unused name was found in {parent}")

    def reserve_path(self, name: str, parent: Path | str) -> Path:
        """Return a free path `guestmark-NAME-…` in `parent` (absolute); the keeper removes what is created there.

        Raises `OSError`.
        """
        while True:
            path = Path(parent) / f"{PREFIX}{name}-{secrets.token_hex(6)}"
            if not os.path.lexists(path):
                self._keep(path)
                return path

    def remove(self, path: Path) -> None:
        """Remove the path with everything in it. May be called twice."""
        if (path / _MEMBERS).exists():
            _remove_control_group(path)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
        # Otherwise the keeper tries again later.
        if not path.exists():
            self.forget(path)

    def forget(self, path: Path) -> None:
        """Leave the path to its new owner: the keeper no longer removes it."""
        with self._lock:
            descriptor = self._kept.pop(path, None)
            if descriptor is None:
                return
            if descriptor >= 0:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                self._write(b"-", path)

    @property
    def handles(self) -> tuple[int, int]:
        """Descriptors for supervisors: nothing is removed while they hold them. Starts the keeper if there is none."""
        with self._lock:
            self._ensure_running()
            return self._lifeline, self._names

    def _write(self, sign: bytes, path: Path) -> None:
        record = _encode_announcement(sign, path)
        os.write(self._names, record)
        os.write(self._lifeline, record)

    def _keep(self, path: Path) -> None:
        with self._lock:
            self._ensure_running()
            self._kept[path] = -1
            try:
                self._write(b"+", path)
            except BrokenPipeError:
                # The keeper was killed at this very moment.
                self._ensure_running()

    def _ensure_running(self) -> None:
        if self._lifeline >= 0 and not _has_no_reader(self._lifeline):
            return
        first = self._names < 0
        myself = _open_handle()
        handles = (myself,) if myself >= 0 else ()
        try:
            self._process, ours = _start_keeper(*handles)
        finally:
            for descriptor in handles:
                os.close(descriptor)
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._lifeline = ours
        if first:
            self._begin_record()
        elif self._record is not None:
            os.write(self._lifeline, _encode_announcement(b"+", self._record))
        for path in self._kept:
            os.write(self._lifeline, _encode_announcement(b"+", path))
        if first and self._record is not None:
            _remove_unkept(self._record)

    def _begin_record(self) -> None:
        """Create the file of announced names: locked, in the cache.

        If that is impossible, it is an anonymous file in memory.
        """
        with contextlib.suppress(OSError):
            folder = find_cache_home() / _RECORDS / os.uname().nodename
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record = folder / f"{PREFIX}names-{secrets.token_hex(6)}"
            os.write(self._lifeline, _encode_announcement(b"+", record))
            self._names = _create_locked(record)
            self._record = record
            os.write(self._names, _encode_announcement(b"+", record))
        if self._names < 0:
            self._names = os.memfd_create("names", os.MFD_CLOEXEC)
            fcntl.fcntl(self._names, fcntl.F_SETFL, os.O_APPEND)


def _start_keeper(*handles: int) -> tuple[subprocess.Popen[bytes], int]:
    """Start a keeper; return it with the write end of its lifeline. `handles` report the end of its controller."""
    lifeline, ours = os.pipe()
    words = [str(find_agent_binary()), "keep", "--lifeline", str(lifeline)]
    try:
        process = subprocess.Popen(
            [*words, *(f"--controller={handle}" for handle in handles)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(lifeline, *handles),
            cwd="/",
            start_new_session=True,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(lifeline)
    return process, ours


def _encode_announcement(sign: bytes, path: Path) -> bytes:
    return sign + os.fsencode(path) + b"\0"


def _create_locked(record: Path) -> int:
    """Create a locked file. Raises `OSError`, also on filesystems without locks."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(record, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_unkept(own: Path) -> None:
    """Remove, through keepers, the paths that other processes recorded next to `own` and no longer hold."""
    for record in own.parent.glob(f"{PREFIX}names-*"):
        if record == own:
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(record, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove_named(record, file.read())


def _remove_named(record: Path, said: bytes) -> None:
    """Remove through a keeper what a record still names, then the record. Raises `OSError`."""
    kept = {os.fsencode(record): True}
    for one in said.split(b"\0")[:-1]:
        kept[one[1:]] = one[:1] == b"+"
    process, lifeline = _start_keeper()
    with os.fdopen(lifeline, "wb") as names:
        names.write(b"".join(b"+" + path + b"\0" for path, named in kept.items() if named))
    process.wait()


def _open_handle() -> int:
    """Return a descriptor that tells its holder when this process has ended; -1 if there is none."""
    with contextlib.suppress(OSError):  # kernels before 5.3
        return os.pidfd_open(os.getpid())
    return -1


def _has_no_reader(pipe: int) -> bool:
    """Return whether a pipe has no reader any more."""
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _remove_control_group(path: Path) -> None:
    """Remove a control group whose processes have ended, waiting while the kernel still uses it."""
    deadline = time.monotonic() + _EMPTY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            path.rmdir()
            return
        time.sleep(0.002)


def is_in_use(path: Path) -> bool:
    """Return whether the process that created the directory is still running. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _hold_lock(path: Path) -> int:
    """Return a descriptor whose lock marks the directory as in use, until it is closed or this process ends.

    -1 if the directory cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return -1
    # Some filesystems have no locks.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


_keeper = Keeper()


def keeper() -> Keeper:
    """Return the keeper of this process."""
    return _keeper

"""Exclusive use of machines: two guestmarks never measure on one machine at the same time, whoever runs them.

Each machine has one lock file, which the measuring process locks with `flock`, so that the kernel releases the lock
however that process ends. This host's lock is held for a whole run; that of another machine (`ssh:DEST`) for each
trial, by the agent there (`crates/agent/src/lock.rs` has the same rules).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from guestmark.agent.client import Agent
from guestmark.core.errors import GuestmarkError
from guestmark.page.text import make_inert

LOCK_VARIABLE = "GUESTMARK_LOCK"
NO_LOCK = "none"
# The lock file is in the first world-writable one of these directories, so that all users choose the same.
_SHARED_DIRECTORIES = ("/run/lock", "/dev/shm", "/tmp")
_NAME = "guestmark.lock"
_EVERYBODY = 0o666
_MAX_HOLDER = 4096
_PAUSE_S = 0.2
# Seconds between two lines about the same long wait.
_ANNOUNCE_EVERY_S = 60.0
# Longest description of a measurement that other processes show, in characters.
_MAX_WHAT = 120


class LockHolder(msgspec.Struct, frozen=True):
    """The description of a lock's holder in the lock file; it is shown to users, and never trusted."""

    pid: int = 0
    user: str = ""
    host: str = ""
    # Unix time.
    since: float = 0.0
    what: str = ""
    token: str = ""

    @classmethod
    def describe_this_process(cls, what: str) -> LockHolder:
        """Returns a description of this process, which measures `what`."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            # The user id has no passwd entry, as is common in containers.
            user = f"user {os.getuid()}"
        return cls(os.getpid(), user, socket.gethostname(), time.time(), what[:_MAX_WHAT], _make_token())

    @classmethod
    def read(cls, text: bytes) -> LockHolder:
        """Parses the content of a lock file; the fields are empty if it is malformed."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return cls()

    @property
    def is_us(self) -> bool:
        """True if the holder is this process, or a process that measures this one."""
        if not self.token:
            return False
        return self.token == _make_token() or (
            self.host == socket.gethostname() and self.pid in _list_ancestors()
        )

    def __str__(self) -> str:
        if not self.pid:
            return "another guestmark"
        at = ""
        if self.host != socket.gethostname():
            at = f" on {self.host}"
        day = "%H:%M"
        if time.time() - self.since >= 12 * 3600:
            day = "%Y-%m-%d %H:%M"
        since = time.strftime(day, time.localtime(max(0.0, min(self.since, 1e11))))
        return make_inert(f"process {self.pid} of {self.user}{at}, since {since}: {self.what}")


_RANDOM = secrets.token_hex(8)


def _make_token() -> str:
    """Returns a string that identifies this process, and differs from that of the process it was forked from."""
    return f"{_RANDOM}-{os.getpid()}"


@dataclass(slots=True)
class LockPolicy:
    """What to do if a machine is in use, and how this process is described to others."""

    what: str = ""
    wait: bool = True
    tell: Callable[[str], None] = lambda _: None


class InUseError(GuestmarkError):
    """Another guestmark uses the machine, and the policy is not to wait."""


@dataclass(slots=True)
class _LockState:
    """The locks of this process, and how it waits for other processes' locks."""

    policy: LockPolicy | None = None
    depth: int = 0
    file: int = -1
    ends: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    told: dict[str, float] = field(default_factory=dict)


_state = _LockState()


@contextlib.contextmanager
def lock_machines(policy: LockPolicy, *, here: bool) -> Iterator[None]:
    """Lock each machine before it is first measured; with `here`, lock this host on entering the context.

    Contexts may be nested; the outermost one sets the policy. Raises `InUseError` if a machine is in use and the policy
    is not to wait, `GuestmarkError` if it cannot be locked.
    """
    outermost = _state.depth == 0
    if outermost:
        _state.policy = policy
    _state.depth += 1
    taken = -1
    try:
        if here and _state.file < 0:
            taken = _state.file = _acquire_lock(policy)
        yield
    finally:
        _state.depth -= 1
        if outermost:
            _state.policy = None
            _state.ends.close()
        if taken >= 0:
            os.close(taken)
            _state.file = -1


@contextlib.contextmanager
def announce_waits(tell: Callable[[str], None]) -> Iterator[None]:
    """Calls `tell`, inside the context, with messages about the process that this one waits for."""
    if _state.policy is None:
        yield
        return
    before, _state.policy.tell = _state.policy.tell, tell
    try:
        yield
    finally:
        if _state.policy is not None:
            _state.policy.tell = before


def call_at_end(end: Callable[[], object]) -> bool:
    """Registers a function to call when the outermost `lock_machines` is left; returns False outside of it."""
    if _state.policy is None:
        return False
    _state.ends.callback(end)
    return True


def encode_own_holder() -> bytes | None:
    """Returns the description of this process for other machines' locks; None outside of `lock_machines`."""
    if _state.policy is None:
        return None
    return msgspec.json.encode(LockHolder.describe_this_process(_state.policy.what))


def lock_remote(agent: Agent, name: str, ours: bytes | None) -> None:
    """Waits for a machine's lock, which its agent then holds for `ours`; does nothing outside of `lock_machines`."""
    policy = _state.policy
    if policy is None or ours is None:
        return
    begin = time.monotonic()
    while True:
        found = agent.lock(ours)
        other = LockHolder.read(found.holder[:_MAX_HOLDER])
        if found.held or other.is_us:
            return
        _wait_for_holder(policy, name, make_inert(os.fsdecode(found.path)), other, begin)


def find_lock_file() -> Path | None:
    """Returns the path of this machine's lock file; None if the user has disabled locking."""
    chosen = os.environ.get(LOCK_VARIABLE, "")
    if chosen == NO_LOCK:
        return None
    if chosen:
        return Path(chosen)
    shared = (place for place in map(Path, _SHARED_DIRECTORIES) if _is_world_writable(place))
    return next(shared, Path("/tmp")) / _NAME


def _acquire_lock(policy: LockPolicy) -> int:
    """Locks this machine, waiting if necessary; returns the lock's descriptor, -1 if no lock is needed."""
    path = find_lock_file()
    if path is None:
        return -1
    begin = time.monotonic()
    while True:
        try:
            file = _open_lock_file(path)
        except OSError as error:
            raise GuestmarkError(
                f"the lock of this machine, {path}, cannot be opened: {error.strerror}",
                hint=f"set {LOCK_VARIABLE} to another file; everyone who measures here must use the same one",
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            other = LockHolder.read(os.pread(file, _MAX_HOLDER, 0))
            os.close(file)
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise GuestmarkError(f"{path} cannot be locked: {error.strerror}") from error
            if other.is_us:
                return -1
            _wait_for_holder(policy, "this machine", str(path), other, begin)
            continue
        if _is_still_at(file, path):
            # On a full filesystem only the description is missing; the lock is still effective.
            with contextlib.suppress(OSError):
                os.ftruncate(file, 0)
                os.pwrite(file, msgspec.json.encode(LockHolder.describe_this_process(policy.what)), 0)
            return file
        # The file was removed after it was opened, so a lock on it would have no effect.
        os.close(file)


def _wait_for_holder(policy: LockPolicy, name: str, path: str, other: LockHolder, begin: float) -> None:
    """Reports the holder, at most once a minute, and pauses. Raises `InUseError` if the policy is not to wait."""
    if not policy.wait:
        raise InUseError(
            f"{name} is in use by {other}",
            hint="omit --no-wait to wait for it: simultaneous measurements would disturb each other",
        )
    message, now = f"waiting for {name}, which is in use by {other}", time.monotonic()
    if now - _state.told.get(message, -_ANNOUNCE_EVERY_S) >= _ANNOUNCE_EVERY_S:
        waited = ""
        if now - begin > 1:
            waited = f" ({now - begin:.0f} s so far)"
        policy.tell(f"{message}{waited}\n  {path} is its lock")
        _state.told[message] = now
    time.sleep(_PAUSE_S)


def _open_lock_file(path: Path) -> int:
    """Opens the lock file, or creates it if there is none; never follows a link."""
    while True:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        # Without O_CREAT first, because in a sticky world-writable directory the kernel refuses it for another user's
        # file (fs.protected_regular).
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, _EVERYBODY)
            os.fchmod(file, _EVERYBODY)
            return file


def _is_still_at(file: int, path: Path) -> bool:
    try:
        current = path.lstat()
    except FileNotFoundError:
        return False
    ours = os.fstat(file)
    return (ours.st_dev, ours.st_ino) == (current.st_dev, current.st_ino)


def _is_world_writable(place: Path) -> bool:
    try:
        mode = place.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH)


def _list_ancestors() -> set[int]:
    """Returns the ids of the processes that this one descends from."""
    found: set[int] = set()
    pid = os.getppid()
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            break
        pid = int(status.rpartition(")")[2].split()[1])
    return found

"""Block devices of this host that are disks themselves: whole disks, partitions, loop devices. They are overwritten.

So they are named with `overwrite:` before them, and still only taken when nobody uses them and they have no signature
of a filesystem, a partition table or a volume, as `wipefs` knows them. A run wipes what it has put on one when it ends.

What a run that was killed has left there is known by its UUID: filesystems are made on devices with one that only
guestmark makes (`mark`), and where nothing else has a signature the next run takes the device again. Filesystems whose
maker takes no UUID are the user's to wipe.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import os
import secrets
import socket
import uuid
from pathlib import Path

from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.disks import daemon
from guestmark.setting.location import device_number, device_size

_HALF = 8  # bytes of a UUID
_taken: dict[str, socket.socket] = {}  # what is on them is this process's own; with what says so to others


def check_device(path: str) -> None:
    """Raises `UsageError` for a device that is in use, has something on it, or cannot be written."""
    device_size(path)
    try:  # the kernel's own answer to "is it used?"
        os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise UsageError(
                f"{path} is in use: mounted, or part of a volume, an array or swap space",
                hint="name a device that nothing uses",
            ) from error
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="start guestmark as a user who may, or name another",
        ) from error
    if path in _taken:
        return
    foreign = [kind for kind, name in list_signatures(path) if not is_mark(name)]
    if foreign:
        raise UsageError(
            f"{path} has something on it: {', '.join(dict.fromkeys(foreign))}",
            hint=f"if nothing of it is needed any more: wipefs --all {path}",
        )


def list_signatures(path: str) -> list[tuple[str, str]]:
    """What `wipefs` finds there: `ext4`, `dos`, `LVM2_member`, each with its UUID, empty where it has none."""
    found = daemon.run_program("wipefs", "--no-act", "--noheadings", "--output=TYPE,UUID", path)
    rows = [line.split() for line in found.splitlines() if line.strip()]
    return [(row[0], row[1] if len(row) > 1 else "") for row in rows]


def make_mark() -> str:
    """A new UUID that says that guestmark made the filesystem: the second half follows from the first.

    It is one of version 8, which leaves the other bits to whoever makes it (RFC 9562, section 5.8).
    """
    return _is_marked(secrets.token_bytes(_HALF))


def is_mark(text: str) -> bool:
    """Whether a UUID is one of `mark`'s."""
    try:
        return _is_marked(uuid.UUID(text).bytes[:_HALF]) == text.lower()
    except ValueError:
        return False


def _is_marked(first: bytes) -> str:
    start = bytearray(first)
    start[6] = start[6] & 0x0F | 0x80
    end = bytearray(
        hashlib.blake2b(start, digest_size=_HALF, key=b"guestmark: a device's filesystem").digest()
    )
    end[0] = end[0] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(start + end)))


def take_device(path: str) -> None:
    """Checks the device; from now on what is on it is this process's own, and it is wiped at its end."""
    check_device(path)
    if path in _taken:
        return
    claim = _claim_device(path)
    if not _taken:
        atexit.register(give_back_device)
    _taken[path] = claim
    if list_signatures(path):
        _wipe_signatures(path)  # of a run that was killed


def _claim_device(path: str) -> socket.socket:
    """A name that one process of this host can have, whatever it may write to; it ends with the process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0guestmark-device-{device_number(path)}")
    except OSError as error:
        claim.close()
        raise UsageError(
            f"{path} is in use by another guestmark", hint="wait for its end, or name another"
        ) from error
    return claim


def give_back_device() -> None:
    """Removes what trials have put on devices, so that the next run finds them empty."""
    while _taken:
        path, claim = _taken.popitem()
        with claim, contextlib.suppress(GuestmarkError):  # it may be gone, or in use by somebody else by now
            _wipe_signatures(path)


def _wipe_signatures(path: str) -> None:
    daemon.run_program("wipefs", "--all", "--quiet", path, writable=[Path(path)])

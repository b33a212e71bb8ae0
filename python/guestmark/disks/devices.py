"""Block devices of this host that serve as disks and are overwritten: whole disks, partitions, loop devices.

The user consents by writing `overwrite:` in front of the name. Even then a device is taken only if nothing uses it and
`wipefs` finds no signature of a filesystem, a partition table or a volume on it. At its end a run wipes what it has
written.

What a killed run left behind is recognised by its UUID: filesystems are created with a UUID that only guestmark
generates (`make_mark`), and if nothing else has a signature, the next run takes the device again. Filesystems whose
maker takes no UUID have to be wiped by the user.
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
from guestmark.setting.location import read_device_number, read_device_size

_HALF = 8  # bytes of a UUID
# The devices that this process has taken, each with the socket that shows this to other processes.
_taken: dict[str, socket.socket] = {}


def check_device(path: str) -> None:
    """Raises `UsageError` for a device that is in use, has a signature on it, or cannot be written."""
    read_device_size(path)
    # O_EXCL fails for a block device that the kernel itself has in use: mounted, or part of a volume or an array.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise UsageError(
                f"{path} is in use: it is mounted, or part of a volume, an array or swap space",
                hint="use a device that nothing else uses",
            ) from error
        raise UsageError(
            f"{path} cannot be opened for writing: {error.strerror}",
            hint="run guestmark as a user who may write to it, or use another device",
        ) from error
    if path in _taken:
        return
    foreign = [kind for kind, name in list_signatures(path) if not is_mark(name)]
    if foreign:
        raise UsageError(
            f"{path} has signatures on it: {', '.join(dict.fromkeys(foreign))}",
            hint=f"if its contents are no longer needed: wipefs --all {path}",
        )


def list_signatures(path: str) -> list[tuple[str, str]]:
    """Return the signatures that `wipefs` finds, such as `ext4`, `dos` or `LVM2_member`, each with its UUID or ""."""
    found = daemon.run_program("wipefs", "--no-act", "--noheadings", "--output=TYPE,UUID", path)
    signatures = []
    for line in found.splitlines():
        match line.split():
            case [kind]:
                signatures.append((kind, ""))
            case [kind, mark, *_]:
                signatures.append((kind, mark))
    return signatures


def make_mark() -> str:
    """Return a new UUID that marks a filesystem as guestmark's: its second half is derived from the first.

    It is a UUID of version 8, whose other bits are free to choose (RFC 9562, section 5.8).
    """
    return _complete_mark(secrets.token_bytes(_HALF))


def is_mark(text: str) -> bool:
    """Return whether a UUID comes from `make_mark`."""
    try:
        return _complete_mark(uuid.UUID(text).bytes[:_HALF]) == text.lower()
    except ValueError:
        return False


def _complete_mark(first: bytes) -> str:
    start = bytearray(first)
    start[6] = start[6] & 0x0F | 0x80
    end = bytearray(
        hashlib.blake2b(start, digest_size=_HALF, key=b"guestmark: a device's filesystem").digest()
    )
    end[0] = end[0] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(start + end)))


def take_device(path: str) -> None:
    """Check the device and claim it for this process, which wipes it at its end."""
    check_device(path)
    if path in _taken:
        return
    claim = _claim_device(path)
    if not _taken:
        atexit.register(wipe_taken_devices)
    _taken[path] = claim
    if list_signatures(path):
        # A killed run left them: `check_device` has refused everything else.
        _wipe_signatures(path)


def _claim_device(path: str) -> socket.socket:
    """Bind a name that only one process of this host can hold, until that process ends."""
    # An abstract socket needs no file and vanishes with its process; a lock file would need a directory that
    # every user may write.
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0guestmark-device-{read_device_number(path)}")
    except OSError as error:
        claim.close()
        raise UsageError(
            f"{path} is in use by another guestmark", hint="wait until that has ended, or use another device"
        ) from error
    return claim


def wipe_taken_devices() -> None:
    """Wipe what trials have written to devices, so that the next run finds them empty."""
    while _taken:
        path, claim = _taken.popitem()
        # The device may have been removed, or taken by another process, in the meantime.
        with claim, contextlib.suppress(GuestmarkError):
            _wipe_signatures(path)


def _wipe_signatures(path: str) -> None:
    daemon.run_program("wipefs", "--all", "--quiet", path, writable=[Path(path)])

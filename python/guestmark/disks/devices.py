"""Block devices of this host that are disks themselves: whole disks, partitions, loop devices. They are overwritten.

So they are named with `overwrite:` before them, and still only taken when nobody uses them and they have no signature
of a filesystem, a partition table or a volume, as `wipefs` knows them. A run wipes what it has put on one when it ends;
after a run that was killed its user has to.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import stat
from pathlib import Path

from guestmark.core.errors import GuestmarkError, UsageError
from guestmark.disks import programs

PREFIX = "overwrite:"
_SECTOR = 512
_SYS = Path("/sys/dev/block")
_taken: set[str] = set()  # what is on them is this process's own
BESIDE = "/var/tmp"  # where sources lie when the target is a device


def level_of(text: str) -> str:
    """The level of `location` for a device, from what was typed; empty for a directory.

    Raises `ValueError` for a device without consent, and for what is none.
    """
    named = text.strip().removeprefix(PREFIX)
    path = os.path.realpath(os.path.expanduser(named))
    is_device = os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)
    if text.strip().startswith(PREFIX):
        if not is_device:
            raise ValueError(f"{named!r} is no block device")
        return f"{PREFIX}{path}"
    if is_device:
        raise ValueError(
            f"{text!r} is a block device, and all that is on it would be lost: write {PREFIX}{path} if that is meant"
        )
    return ""


def path_of(level: str) -> str:
    """The device that a level of `location` names; empty for a directory."""
    return level.removeprefix(PREFIX) if level.startswith(PREFIX) else ""


def directory_of(level: str) -> str:
    """The directory in which other images lie: the location itself, or one beside a device."""
    return BESIDE if path_of(level) else level


def number_of(path: str) -> str:
    """`major:minor`; empty for what is no block device."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISBLK(found.st_mode):
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def size_of(path: str) -> int:
    """Bytes. Raises `UsageError` when there is no such device."""
    try:
        return int((_SYS / number_of(path) / "size").read_text()) * _SECTOR
    except (OSError, ValueError):
        raise UsageError(
            f"there is no block device {path}", hint="choose a directory, or another device, for location"
        ) from None


def check(path: str) -> None:
    """Raises `UsageError` for a device that is in use, has something on it, or cannot be written."""
    size_of(path)
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
    if path not in _taken and (found := signatures(path)):
        raise UsageError(
            f"{path} has something on it: {', '.join(found)}",
            hint=f"if nothing of it is needed any more: wipefs --all {path}",
        )


def signatures(path: str) -> list[str]:
    """What `wipefs` finds there: `ext4`, `dos`, `LVM2_member`."""
    found = programs.run("wipefs", "--no-act", "--noheadings", "--output=TYPE", path)
    return list(dict.fromkeys(found.split()))


def take(path: str) -> None:
    """Checks the device; from now on what is on it is this process's own, and it is wiped at its end."""
    check(path)
    if not _taken:
        atexit.register(give_back)
    _taken.add(path)


def give_back() -> None:
    """Removes what trials have put on devices, so that the next run finds them empty."""
    while _taken:
        path = _taken.pop()
        with contextlib.suppress(GuestmarkError):  # it may be gone, or in use by somebody else by now
            programs.run("wipefs", "--all", "--quiet", path, writable=[Path(path)])

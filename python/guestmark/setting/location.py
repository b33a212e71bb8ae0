"""The location of images: a directory of this host, or `overwrite:DEVICE`, a block device in place of an image.

This module names devices and reads their sizes; `disks.devices` claims and wipes them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.core.factor import Machine
from guestmark.setting.base import DiskKind, DiskSetting

OVERWRITE_PREFIX = "overwrite:"
SHARED_MEMORY = "/dev/shm"
# The directory of source images if the target is a block device.
DIRECTORY_BESIDE_DEVICE = "/var/tmp"
_SECTOR = 512
_SYS = Path("/sys/dev/block")


def parse_device_path(level: str) -> str:
    """Return the device that a level of `location` names; empty for a directory."""
    if not level.startswith(OVERWRITE_PREFIX):
        return ""
    return level.removeprefix(OVERWRITE_PREFIX)


def parse_image_directory(level: str) -> str:
    """Return the directory for further images: the location itself, or /var/tmp if that is a device."""
    return DIRECTORY_BESIDE_DEVICE if parse_device_path(level) else level


def read_device_number(path: str) -> str:
    """Return `major:minor` of a block device; empty for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISBLK(found.st_mode):
        return ""
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def read_device_size(path: str) -> int:
    """Return the size of a block device in bytes. Raises `UsageError` when there is no such device."""
    try:
        return int((_SYS / read_device_number(path) / "size").read_text()) * _SECTOR
    except (OSError, ValueError):
        raise UsageError(
            f"there is no block device {path}", hint="set location to a directory, or to another device"
        ) from None


def _parse_device(text: str) -> str:
    """Return the level for a device in canonical spelling; empty for a directory.

    Raises `ValueError` for a device without the prefix `overwrite:`, and for one that does not exist.
    """
    named = text.strip().removeprefix(OVERWRITE_PREFIX)
    path = os.path.realpath(os.path.expanduser(named))
    is_device = os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)
    if text.strip().startswith(OVERWRITE_PREFIX):
        if not is_device:
            raise ValueError(f"{named!r} is not a block device")
        return f"{OVERWRITE_PREFIX}{path}"
    # A bare device name is more often a mistake than consent to losing its content.
    if is_device:
        raise ValueError(
            f"{text!r} is a block device, and everything on it would be lost: "
            f"write {OVERWRITE_PREFIX}{path} to allow that"
        )
    return ""


def _parse_location(text: str) -> str:
    if device := _parse_device(text):
        return device
    path = os.path.abspath(os.path.expanduser(text.strip()))
    if not text.strip() or not os.path.isdir(path):
        raise ValueError(f"there is no directory {text!r}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"files cannot be created in {path}")
    return path


LOCATION = DiskSetting(
    "location",
    "directory of the images (default: TMPDIR if that is on a disk, else /var/tmp; never memory if there is a "
    "disk), or overwrite:DEVICE, a block device in place of an image",
    _parse_location,
    ("/var/tmp", "/dev/shm"),
    read=str,
    machines=Machine.GUEST,
    default=SHARED_MEMORY,
    on=DiskKind.TARGET | DiskKind.SOURCE,
)

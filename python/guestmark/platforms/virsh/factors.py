"""The factors of a libvirt domain: how it is made fresh, and its ssh destination."""

import re

from guestmark.core.factor import Factor
from guestmark.platforms.ssh.destination import explain_bad_destination
from guestmark.platforms.ssh.freshness import READY

THROW_AWAY, NONE = "throw-away", "none"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*", re.ASCII)


def _parse_snapshot(text: str) -> str:
    name = text.strip()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is not a snapshot name, {THROW_AWAY} or {NONE}")
    return name


def _parse_destination(text: str) -> str:
    dest = text.strip()
    if wrong := explain_bad_destination(dest):
        raise ValueError(f"{text!r} is not an ssh destination: {wrong}")
    return dest


SNAPSHOT = Factor(
    "snapshot",
    f"state of a libvirt domain before each trial: one of its snapshots, {THROW_AWAY} (started from disks that "
    f"discard all writes, the default) or {NONE} (as it runs)",
    _parse_snapshot,
    (THROW_AWAY, NONE),
)
SSH = Factor("ssh", "ssh destination of a libvirt domain; by default the domain's name", _parse_destination)
FACTORS = (SNAPSHOT, SSH, READY)

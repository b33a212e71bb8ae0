"""The session of `guestfs-api`: guestfish's commands, one line per call, and the output they must have.

Like the tests of libguestfs's own API it creates partitions and filesystems, and then uses small files in many ways.
This loads the guest's kernel and the path to it, and hardly any disk.
"""

from collections.abc import Sequence
from typing import Annotated

from guestmark.core.metric import Better, Metric
from guestmark.core.params import Params, param
from guestmark.workloads.common.metrics import LAUNCH

# Duration of the session between launch and shutdown.
WALL = Metric("wall_s", "s")
CALLS = Metric("rate", "calls/s", Better.HIGHER)
SESSION = (WALL, CALLS, LAUNCH)


class GuestfsApiParams(Params, frozen=True, kw_only=True):
    """A session creates a filesystem and then, `rounds` times, a directory with files that it uses and removes."""

    rounds: Annotated[int, param("directories to fill and remove", ge=1, le=10_000)] = 16


_TEXT = "the quick brown fox jumps over the lazy dog"
_SUM = "05c6e08f1d9fdafa03147fcb8f82f124c76d2f70e3d989dc8aadb5e7d7450bec"  # sha256 of _TEXT
_DISK = "256M"
_SETTING_UP = (
    "list-devices", "part-disk /dev/sda mbr", "list-partitions", "part-get-parttype /dev/sda",
    "mkfs ext4 /dev/sda1", "vfs-type /dev/sda1", "vfs-uuid /dev/sda1", "blockdev-getsize64 /dev/sda1",
    "mount /dev/sda1 /", "mountpoints", "statvfs /", "df", "ls /",
)  # fmt: skip
_ROUND = (
    "mkdir /d", "chmod 0700 /d", "chown 1 1 /d", "is-dir /d",
    f'write /d/text "{_TEXT}"', "checksum sha256 /d/text", "filesize /d/text", "cat /d/text",
    f'write-append /d/text "{_TEXT}"', "head-n 1 /d/text", "wc-c /d/text", "file /d/text",
    "fill 1 65536 /d/block", "du /d", "stat /d/block", "truncate-size /d/block 4096",
    "cp /d/text /d/copy", "equal /d/text /d/copy", "mv /d/copy /d/moved", "exists /d/copy",
    "ln-s text /d/link", "readlink /d/link", "lstat /d/link", "touch /d/empty",
    "setxattr user.a b 1 /d/text", "getxattrs /d/text", "readdir /d", "find /d",
    "rm /d/moved", "rm-rf /d",
)  # fmt: skip
_ENDING = ("sync", "umount-all", "fsck ext4 /dev/sda1")


def build_drive_command() -> str:
    """Returns the command that adds the session's disk, which libguestfs itself creates and removes."""
    return f"scratch {_DISK}"


def build_session_commands(rounds: int) -> list[str]:
    """Returns the calls of a session, in order."""
    return [*_SETTING_UP, *(_ROUND * rounds), *_ENDING]


def count_calls(rounds: int) -> int:
    """Returns the number of calls in a session."""
    return len(build_session_commands(rounds))


def find_missing_output(printed: str, rounds: int) -> str:
    """Returns a sentence about output that is missing for this many rounds; empty if no output is missing."""
    lines = printed.splitlines()
    expected: Sequence[tuple[str, int]] = ((_SUM, rounds), (_TEXT, rounds), ("ext4", 1), ("false", rounds))
    for line, times in expected:
        if (found := sum(heard.startswith(line) for heard in lines)) < times:
            return f"guestfish printed {line!r} {found} times, not {times}"
    return ""

"""An image whose writes and flushes are logged as the host's kernel sees them, whichever hypervisor makes them.

`qemu-storage-daemon` exports the image through FUSE as a plain file, on top of its block driver `blklogwrites`: every
hypervisor opens that file as any other. The daemon ends with this process; whoever removes the directory unmounts the
file (the keeper too, when this process was killed).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.disks import programs
from guestmark.disks.daemon import DAEMON, quoted, serving

SECTOR = 512  # the unit in which the log counts
_OCTAL = re.compile(r"\\([0-7]{3})")
_HINT = "it needs /dev/fuse, and for users other than root fusermount3 (package fuse3)"


@dataclass(frozen=True, slots=True)
class Logged:
    """The files of a logged image: what it was at first, what has been written to it since, and the image below.

    `under` is the one on top of which they lie. `kill` ends the daemon while it serves the image: what hangs in it gets
    an error then.
    """

    base: Path
    log: Path
    image: Path
    under: Path | None = None
    kill: Callable[[], None] | None = field(default=None, compare=False)


def why_not() -> str:
    """Why no image can be logged on this host, as far as can be seen without trying; empty when nothing is missing."""
    try:
        programs.find(DAEMON)
    except PlatformUnusableError as error:
        return f"{error.message} ({error.hint})"
    if not os.path.exists("/dev/fuse"):
        return "/dev/fuse is not there"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    return ""


@contextlib.contextmanager
def exported(files: Logged, at: Path) -> Iterator[Callable[[], None]]:
    """Serves the image as the file `at` while the context lasts, and says how to end that before.

    Raises `MachineError` when that is not to be had.
    """
    for path in (files.log, at):
        path.touch()
    try:
        with serving(
            _options(files, at), lambda: _is_mounted(at), "the image cannot be logged", _HINT
        ) as kill:
            yield kill
    finally:
        unmount(at)


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
    for line in reversed(Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()):
        where = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split(" ", 5)[4]))
        if directory in where.parents:
            unmount(where)


def _options(files: Logged, at: Path) -> list[str]:
    return [
        "--blockdev", f"driver=file,node-name=image,filename={quoted(files.image)}",
        "--blockdev", f"driver=file,node-name=log,filename={quoted(files.log)}",
        "--blockdev", f"driver=blklogwrites,node-name=logged,file=image,log=log,log-sector-size={SECTOR}",
        "--export", f"type=fuse,id=file,node-name=logged,mountpoint={quoted(at)},writable=on,growable=on",
    ]  # fmt: skip


def _is_mounted(at: Path) -> bool:
    """Asks the table of mounts: a mount whose daemon has gone answers nothing else."""
    shown = str(at).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    return any(line.split(" ", 5)[4] == shown for line in lines)

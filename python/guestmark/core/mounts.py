"""What a kernel says of the mounts that a process sees: `/proc/PID/mountinfo` (proc(5))."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")  # how it spells white space and the backslash itself


@dataclass(frozen=True, slots=True)
class Mount:
    """One of them."""

    number: int
    device: str  # major:minor
    root: str  # the directory of the filesystem that is mounted
    where: str
    kind: str
    source: str
    own: tuple[str, ...]  # options of the mount
    shared: tuple[str, ...]  # those of the filesystem

    @property
    def options(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.own, *self.shared)


def mounts(process: str | int = "self") -> list[Mount]:
    """Those of a process, the oldest first. Raises `OSError`."""
    return parsed(Path(f"/proc/{process}/mountinfo").read_text(errors="surrogateescape"))


def parsed(text: str) -> list[Mount]:
    """From the text of mountinfo; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, more = before.split(" "), after.split(" ")
        if len(fields) >= 6 and len(more) >= 2:
            shared = tuple(_plain(more[2]).split(",")) if len(more) > 2 else ()
            found.append(
                Mount(
                    int(fields[0]), fields[2], _plain(fields[3]), _plain(fields[4]), more[0], _plain(more[1]),
                    tuple(fields[5].split(",")), shared,
                )
            )  # fmt: skip
    return found


def _plain(escaped: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped)

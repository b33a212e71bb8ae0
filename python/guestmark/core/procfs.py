"""Reading `/proc`, `/sys` and folders of other processes, which may end while they are looked at.

What is gone, or not ours to see, is empty: no function here raises `OSError`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def read_text(file: Path) -> str:
    """A file's text; empty where it cannot be read. What is no UTF-8 is replaced."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def read_link(link: Path) -> str:
    """Where a symbolic link leads; empty where it cannot be read."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def list_entries(directory: Path) -> list[Path]:
    """A directory's entries; none where it cannot be read, or those seen until it went away."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found.extend(directory.iterdir())
    return found


def list_processes() -> list[int]:
    """The ids of all processes of this machine."""
    return [int(entry.name) for entry in list_entries(PROC) if entry.name.isdecimal()]


def list_threads(pid: int) -> list[int]:
    """The ids of a process's threads."""
    return [int(entry.name) for entry in list_entries(PROC / str(pid) / "task")]


def list_open_files(pid: int) -> Iterator[tuple[Path, str]]:
    """A process's descriptors that can be seen: the link in `/proc/PID/fd`, and where it leads."""
    for link in list_entries(PROC / str(pid) / "fd"):
        if target := read_link(link):
            yield link, target


def read_words(pid: int) -> list[str]:
    """A process's command line; empty for one that has ended, or is a kernel thread."""
    text = read_text(PROC / str(pid) / "cmdline").rstrip("\0")
    return text.split("\0") if text else []

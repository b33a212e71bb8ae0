"""Reads `/proc`, `/sys` and files of other processes, which may end meanwhile.

Files that no longer exist, or may not be read, count as empty: no function here raises `OSError`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")


def read_text(file: Path | str) -> str:
    """Return a file's text, empty if it cannot be read; bytes that are not UTF-8 are replaced.

    Callers that read many files pass names as text, because making a `Path` takes as long as reading the file.
    """
    try:
        with open(file, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def read_link(link: Path) -> str:
    """Return the target of a symbolic link; empty if it cannot be read."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def list_entries(directory: Path) -> list[Path]:
    """Return a directory's entries; empty if it cannot be read, or those seen until it disappeared."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        found.extend(directory.iterdir())
    return found


def list_processes() -> list[int]:
    """Return the ids of all processes of this machine."""
    return [int(entry.name) for entry in list_entries(PROC) if entry.name.isdecimal()]


def list_threads(pid: int) -> list[int]:
    """Return the ids of a process's threads."""
    return [int(entry.name) for entry in list_entries(PROC / str(pid) / "task")]


def list_open_files(pid: int) -> Iterator[tuple[Path, str]]:
    """Yield a process's visible descriptors: the link in `/proc/PID/fd`, and its target."""
    for link in list_entries(PROC / str(pid) / "fd"):
        if target := read_link(link):
            yield link, target


def read_words(pid: int) -> list[str]:
    """Return a process's command line; empty for one that has ended, and for a kernel thread."""
    text = read_text(PROC / str(pid) / "cmdline").rstrip("\0")
    return text.split("\0") if text else []

"""Inspects the processes of this machine, any of which may end at any moment, even while its files are read."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from guestmark.disks import processes


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait for `condition()` to become true; return whether it did in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and its threads; 0 if it does not exist."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def alive(pid: int) -> bool:
    """Return whether the process runs; one that has ended and is not reaped yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # the file is not there, or its process has ended since it was opened
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def called(pid: int) -> str:
    """Return the command line of a process; empty if it does not exist."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return ""


def gone(*pids: int, seconds: float = 5.0) -> bool:
    """Wait until all these processes have ended; return whether they did in time."""
    return wait_until(lambda: not any(alive(pid) for pid in pids), seconds)


def kill(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of these processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def children(pid: int) -> list[int]:
    """Return the children of a process, whichever of its threads started them, the oldest first."""
    found: dict[int, int] = {}
    for child in processes.list_children(pid):
        with contextlib.suppress(OSError):
            found[child] = started_at(child)
    return sorted(found, key=lambda child: found[child])


def started_at(pid: int) -> int:
    """Return when the process was started, in clock ticks since boot. Raises `OSError`.

    The time tells a process from a later one with the same id.
    """
    return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])


def processors(pid: int) -> set[str]:
    """Return the lists of processors on which the threads of a process may run, such as `{"0-1"}`."""
    found: set[str] = set()
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            text = status.read_text(errors="replace")
            found.add(text.partition("Cpus_allowed_list:")[2].split("\n")[0].strip())
    return found


def others() -> Iterator[tuple[Path, list[bytes]]]:
    """Yield the folder in /proc and the command line of every process but this one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                yield folder, (folder / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")

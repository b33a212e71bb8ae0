"""Finds the processes of a hypervisor, including those in a sandbox (`agent.confinement`) with its own process ids."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from guestmark.core import procfs


def list_children(pid: int) -> list[int]:
    """Return the ids of running processes that any thread of `pid` started; empty if `pid` has ended."""
    found: list[int] = []
    for task in procfs.list_entries(procfs.PROC / str(pid) / "task"):
        found += map(int, procfs.read_text(task / "children").split())
    return found


def list_descendants(pid: int) -> list[int]:
    """Return the ids of all running processes below `pid`; empty if `pid` has ended."""
    found: list[int] = []
    for child in list_children(pid):
        found += [child, *list_descendants(child)]
    return found


def read_status(pid: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` (proc(5)), beginning with the third, the state. Raises `OSError`."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def find_field(text: str, name: str) -> str:
    """Return the value of the first line `NAME: value` of a file in /proc; empty if it has none."""
    for line in text.splitlines():
        field, colon, value = line.partition(":")
        if colon and field == name:
            return value.strip()
    return ""


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process."""
    with contextlib.suppress(OSError):
        return read_status(pid)[:1] == ["T"]
    return False


def find_confined_program(pid: int) -> int | None:
    """Return the id of the program that `guestmark-agent confine` (`pid`) runs; None if it has not started yet."""
    # That process becomes its program by exec, or starts it as its child.
    while _is_confine_process(pid):
        found = list_children(pid)
        if not found:
            return None
        pid = found[0]
    return pid


def map_threads(pid: int) -> dict[int, int]:
    """Return the ids of a process's threads on this host, by the ids that the process itself sees."""
    found: dict[int, int] = {}
    for task in procfs.list_entries(procfs.PROC / str(pid) / "task"):
        for number in _read_process_numbers(task / "status")[-1:]:
            found[number] = int(task.name)
    return found


def find_sandboxed_processes(inner_pid: int, word: str) -> Iterator[int]:
    """Yield the processes whose id inside a sandbox is `inner_pid` and whose command line contains `word`."""
    for pid in procfs.list_processes():
        numbers = _read_process_numbers(procfs.PROC / str(pid) / "status")
        named = word in procfs.read_text(procfs.PROC / str(pid) / "cmdline")
        if numbers[-1:] == [inner_pid] and named and not _is_confine_process(pid):
            yield pid


def _is_confine_process(pid: int) -> bool:
    return procfs.read_words(pid)[1:2] == ["confine"]


def _read_process_numbers(status: Path) -> list[int]:
    """Return the id of a process or thread in this and in each nested namespace; empty once it has ended."""
    text = procfs.read_text(status)
    numbers = find_field(text, "NSpid") or find_field(text, "Pid")
    return [int(number) for number in numbers.split()]

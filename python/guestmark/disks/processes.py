"""The processes of a hypervisor on the host. A cage (`agent.confinement`) has numbers of its own for them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of what `pid` started and is still there, whichever of its threads did; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of everything that `pid` started and what that started; empty when it is gone."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def status(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` (proc(5)) from the third on: its state, its parent and so on. Raises `OSError`."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped it."""
    with contextlib.suppress(OSError):
        return status(pid)[0] == "T"
    return False


def program_of(pid: int) -> int | None:
    """The program that `guestmark-agent confine`, process `pid`, has become or started; None while there is none."""
    while _is_cage(pid):
        found = children(pid)
        if not found:
            return None
        pid = found[0]
    return pid


def threads(pid: int) -> dict[int, int]:
    """The threads of a process: their numbers here, by those that it knows itself."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found[_numbers(task / "status")[-1]] = int(task.name)
    return found


def named_inside(number: int, word: str) -> Iterator[int]:
    """Processes that know themselves by `number` in a cage, and have `word` on their command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                numbers = _numbers(folder / "status")
                named = word.encode() in (folder / "cmdline").read_bytes()
                if numbers[-1] == number and named and not _is_cage(int(folder.name)):
                    yield int(folder.name)


def _is_cage(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"confine"]
    return False


def _numbers(status: Path) -> list[int]:
    """Of a process or thread: its number here, and in every namespace that it is in below."""
    lines = status.read_text(errors="replace").splitlines()
    said = next((line for line in lines if line.startswith("NSpid:")), None) or next(
        line for line in lines if line.startswith("Pid:")
    )
    return [int(word) for word in said.split()[1:]]

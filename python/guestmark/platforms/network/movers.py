"""Finds the processes that move bytes between a machine and its peer, by what they hold and by their processor time."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from guestmark.core import procfs
from guestmark.core.machine_facts import Mover
from guestmark.core.platform_kind import read_version_line
from guestmark.disks import processes
from guestmark.platforms.network.builds import is_debug_build
from guestmark.platforms.network.namespaces import Namespaces

_TUN = "/dev/net/tun"
_VHOST = "/dev/vhost-net"


@dataclass(frozen=True, slots=True)
class Roots:
    """Processes that a network may have; whatever they have started belongs to them.

    `ends` are machine and peer themselves, `joiners` the processes that shall move the bytes, by what they are.
    """

    ends: tuple[int, ...]
    joiners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A process in a network, and what ties it to that."""

    pid: int
    ties: tuple[str, ...]
    # Whether it is one of the ends, or belongs to one.
    is_end: bool
    is_joiner: bool


def find_processes(namespaces: Namespaces, roots: Roots, tap: str) -> list[Found]:
    """Returns every process of this host that is in one of the namespaces or holds the tap of that name.

    `tap` is empty for a network without one.
    """
    inodes = {os.fstat(fd).st_ino for fd in (namespaces.peer, namespaces.machine) if fd is not None}
    ends, joiners = _with_descendants(roots.ends), _with_descendants(roots.joiners)
    found = []
    for pid in procfs.list_processes():
        ties = []
        if _network_inode(pid) in inodes:
            ties.append("namespace")
        if tap and _holds_tap(pid, tap):
            ties.append("tap")
        if pid in roots.joiners and not ties:
            ties.append("descriptors")
        if ties and pid != os.getpid():
            found.append(Found(pid, tuple(ties), pid in ends, pid in joiners))
    return found


def _with_descendants(pids: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for pid in pids:
        found |= {pid, *processes.list_descendants(pid)}
    return found


def _network_inode(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    return 0


def _holds_tap(pid: int, tap: str) -> bool:
    """Returns whether a process has a descriptor of the tap."""
    for link, target in procfs.list_open_files(pid):
        if target == _TUN:
            lines = procfs.read_text(procfs.PROC / str(pid) / "fdinfo" / link.name).splitlines()
            if any(line.split() == ["iff:", tap] for line in lines):
                return True
    return False


def has_vhost(pid: int) -> bool:
    """Returns whether the kernel moves bytes for a hypervisor: it holds the device, and has a thread for that."""
    if not any(target == _VHOST for _, target in procfs.list_open_files(pid)):
        return False
    name = f"vhost-{pid}"
    # Before Linux 6.4 a thread of the kernel, since then one of the hypervisor's own.
    tasks = [(pid, thread) for thread in procfs.list_threads(pid)]
    tasks += [(other, other) for other in procfs.list_processes()]
    return any(
        procfs.read_text(procfs.PROC / str(process) / "task" / str(thread) / "comm").strip() == name
        for process, thread in tasks
    )


def read_processor_time(pid: int) -> float:
    """Returns the processor seconds of a process's threads so far; 0 for one that has ended."""
    total = 0
    for thread in procfs.list_threads(pid):
        fields = procfs.read_text(procfs.PROC / str(pid) / "task" / str(thread) / "schedstat").split()
        total += int(fields[0]) if fields else 0
    return total / 1e9


def describe_movers(joiners: Iterable[Found], worked: Mapping[int, float]) -> list[Mover]:
    """Returns the programs that have worked while bytes were sent, by the seconds of each process.

    Processes of one executable are one program: User-Mode Linux is several. The version is the executable's own word.
    """
    found: dict[str, Mover] = {}
    for joiner in joiners:
        if not worked[joiner.pid]:
            continue
        program = procfs.read_link(procfs.PROC / str(joiner.pid) / "exe")
        if program in found:
            found[program].cpu_s += worked[joiner.pid]
            continue
        identity = _identity(program)
        found[program] = Mover(
            program=program,
            version=_ask_version(program, identity),
            debug=is_debug_build(program, identity),
            cpu_s=worked[joiner.pid],
            found_by=list(joiner.ties),
        )
    return list(found.values())


def _identity(path: str) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return 0, 0


@functools.cache
def _ask_version(path: str, _identity: tuple[int, int]) -> str:
    try:
        return read_version_line(path)
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""

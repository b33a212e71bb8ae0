"""Finds the processes that move bytes between a machine and its peer, by their descriptors and processor time."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from guestmark.agent.wire import NetworkProcess
from guestmark.core.machine_facts import Mover
from guestmark.core.platform_kind import read_version_line
from guestmark.platforms.network.builds import is_debug_build

# Runs a command of the agent's binary where the network is, and returns its output. Raises `MachineError`.
AskPlace: TypeAlias = Callable[[Sequence[str]], bytes]


@dataclass(frozen=True, slots=True)
class Roots:
    """Processes that, with their descendants, may be in a network.

    `ends` are the machine and the peer themselves, `joiners` the processes that should move the bytes.
    """

    ends: tuple[int, ...]
    joiners: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where a network is, and how the processes in it are recognized.

    `namespaces` are inode numbers; alternatively, `of` is a process in a namespace. `owner` is the process that holds
    the namespaces, 0 if it is the one that answers.
    """

    ask: AskPlace
    namespaces: tuple[int, ...] = ()
    of: int | None = None
    owner: int = 0

    def find_processes(self, roots: Roots, tap: str) -> list[NetworkProcess]:
        """Returns every process in one of the namespaces or with the tap, and those that should move the bytes.

        `tap` is empty for a network without one. Raises `MachineError`.
        """
        words = [f"--net={inode}" for inode in self.namespaces]
        words += [f"--end={pid}" for pid in roots.ends]
        words += [f"--joiner={pid}" for pid in roots.joiners]
        if self.of is not None:
            words.append(f"--of={self.of}")
        if tap:
            words.append(f"--tap={tap}")
        if self.owner:
            words.append(f"--except={self.owner}")
        answer = self.ask(["network", "processes", *words])
        return msgspec.msgpack.decode(answer, type=list[NetworkProcess])


def name_ties(process: NetworkProcess) -> list[str]:
    """Returns what ties a process to a network: its namespace, a tap, or else open descriptors."""
    ties = []
    if process.in_namespace:
        ties.append("namespace")
    if process.holds_tap:
        ties.append("tap")
    return ties or ["descriptors"]


def describe_movers(processes: Iterable[NetworkProcess], before: Mapping[int, int]) -> list[Mover]:
    """Returns the programs that have used processor time since `before`, which maps process ids to nanoseconds.

    Processes with the same executable count as one program, because User-Mode Linux has several. The version is the
    one that the executable prints.
    """
    found: dict[str, Mover] = {}
    for process in processes:
        worked_ns = process.worked_ns - before.get(process.pid, 0)
        if not (process.is_joiner and worked_ns):
            continue
        program = process.program
        if program in found:
            found[program].cpu_s += worked_ns / 1e9
            continue
        identity = _get_process_identity(program)
        found[program] = Mover(
            program=program,
            version=_ask_version(program, identity),
            debug=is_debug_build(program, identity),
            cpu_s=worked_ns / 1e9,
            found_by=name_ties(process),
        )
    return list(found.values())


def count_vhost_ns(processes: Iterable[NetworkProcess]) -> int | None:
    """Returns the processor time of the kernel's vhost threads that work for the joiners; None if there are none."""
    times = [process.vhost_ns for process in processes if process.is_joiner and process.vhost_ns is not None]
    return sum(times) if times else None


def _get_process_identity(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


@functools.cache
def _ask_version(path: str, _identity: tuple[int, int]) -> str:
    try:
        return read_version_line(path)
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""

"""Reads how a running hypervisor or helper is confined (see `agent.confinement`).

Creates control groups, which limit a machine's memory and processes, and end all of its processes together.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from guestmark.agent.confinement import MOST_PROCESSES
from guestmark.core.keeper import is_in_use, keeper
from guestmark.core.machine_facts import ConfinementFacts, MachineFacts, Mount, read_mounts
from guestmark.core.meminfo import compute_spare_memory
from guestmark.core.units import format_size
from guestmark.disks.location import read_filesystem_type
from guestmark.disks.processes import find_confined_program, find_field

_MEMBERS = "cgroup.procs"
_GROUP_NAME = re.compile(r"guestmark-machine-[0-9a-f]{12}")
# A younger group may have been created just now, and its first process may not have entered it yet.
_LEFTOVER_AGE_S = 2.0
# The host always keeps 1/_HOST_SHARE of its memory, and at least _HOST_LEAST bytes.
_HOST_SHARE = 16
_HOST_LEAST = 256 << 20


@dataclass(frozen=True, slots=True)
class _Parent:
    """A directory in which groups can be created, and the names of the files that set their limits."""

    directory: Path
    memory: str = ""
    processes: str = ""


def make_control_groups(name: str, memory: int | None = None) -> tuple[Path, ...]:
    """Creates control groups, which the keeper removes with the processes in them; empty if none can be created.

    `memory` limits the bytes of all processes in them together, including page cache of the files that they use. By
    default it is the memory that is available now, less a sixteenth of the host's.
    """
    groups = []
    _remove_leftover_groups()
    for parent in _find_parents():
        with contextlib.suppress(OSError):
            group = keeper().directory(name, parent.directory)
            groups.append(group)
            if parent.memory:
                (group / parent.memory).write_text(
                    str(memory or compute_spare_memory(_HOST_SHARE, _HOST_LEAST))
                )
            if parent.processes:
                (group / parent.processes).write_text(str(MOST_PROCESSES))
    return tuple(groups)


def can_make_groups() -> bool:
    """Returns whether this process can create control groups."""
    return bool(_find_parents())


def is_group(path: Path) -> bool:
    """Returns whether a directory is a control group."""
    return (path / _MEMBERS).exists()


def find_leftover_groups() -> list[Path]:
    """Returns machines' groups without processes and owners, in all mounted hierarchies of control groups."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        fields = line.split(" ")
        if fields[2] not in ("cgroup", "cgroup2"):
            continue
        for folder, names, _ in os.walk(fields[1]):
            for name in filter(_GROUP_NAME.fullmatch, names):
                if _is_empty(Path(folder, name)):
                    found.append(Path(folder, name))
    return found


def _is_empty(group: Path) -> bool:
    with contextlib.suppress(OSError):
        old = time.time() - group.stat().st_mtime > _LEFTOVER_AGE_S
        return old and not (group / _MEMBERS).read_text() and not is_in_use(group)
    return False


@functools.cache
def _remove_leftover_groups() -> None:
    """Removes groups left behind by runs that were killed with their keepers; does so once per process."""
    for parent in _find_parents():
        with contextlib.suppress(OSError):
            for group in parent.directory.iterdir():
                if _GROUP_NAME.fullmatch(group.name) and _is_empty(group):
                    group.rmdir()


def read_limits(groups: tuple[Path, ...]) -> tuple[int | None, int | None]:
    """Returns the kernel's limits for a machine in these groups: bytes of memory, and number of processes.

    None stands for no limit. Both versions of control groups are read.
    """
    return _find_limit(groups, "memory.max", "memory.limit_in_bytes"), _find_limit(groups, "pids.max")


def _find_limit(groups: tuple[Path, ...], *names: str) -> int | None:
    for group in groups:
        for name in names:
            if limit := _read_limit(group / name):
                return limit
    return None


def explain_exhaustion(groups: tuple[Path, ...]) -> str:
    """Returns the event if a machine in these groups has reached a limit; empty if it has not."""
    memory, processes = read_limits(groups)
    if memory and _count_event(groups, ("memory.events", "memory.oom_control"), "oom_kill"):
        return (
            "one of its processes was killed, because it used more memory than this host could spare "
            f"({format_size(memory)})"
        )
    if processes and _count_event(groups, ("pids.events",), "max"):
        return f"it reached its limit of {processes} processes"
    return ""


def _count_event(groups: tuple[Path, ...], names: tuple[str, ...], key: str) -> int:
    for group in groups:
        for name in names:
            with contextlib.suppress(OSError, ValueError, KeyError):
                events = dict(line.split() for line in (group / name).read_text().splitlines())
                if number := int(events[key]):
                    return number
    return 0


def _read_limit(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text())
    return None


@functools.cache
def _find_parents() -> tuple[_Parent, ...]:
    """Returns the directories in which groups can be created, so that this process's limits apply to machines, too."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    found = []
    for mount in read_mounts():
        root, where, kind = mount.root, mount.where, mount.kind
        for number, controllers, path in own:
            second = kind == "cgroup2" and number == "0" and not controllers
            first = kind == "cgroup" and controllers in mount.shared
            if (second or (first and controllers in ("memory", "pids"))) and path.startswith(
                root.rstrip("/")
            ):
                here = Path(where, path.removeprefix(root.rstrip("/")).lstrip("/"))
                # In version 2 a group with processes cannot limit child groups ("no internal processes", cgroups(7)),
                # so machines' groups are created beside this process's group if possible.
                candidates = [here]
                if second and path != root:
                    candidates.insert(0, here.parent)
                for directory in candidates:
                    if os.access(directory, os.W_OK) and os.access(directory / _MEMBERS, os.W_OK):
                        found.append(_read_parent(directory, controllers))
                        break
    return tuple(found)


def _read_parent(directory: Path, controllers: str) -> _Parent:
    # In version 1 each hierarchy has its own controllers; version 2 has one hierarchy, in which a group enables
    # controllers for its children.
    if controllers:
        limits = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
        enabled = [controllers]
    else:
        limits = {"memory": "memory.max", "pids": "pids.max"}
        enabled = (directory / "cgroup.subtree_control").read_text().split()
    files = {name: file for name, file in limits.items() if name in enabled}
    return _Parent(directory, files.get("memory", ""), files.get("pids", ""))


# The agent reports what it has set up in the environment of the program that it executes.
_REPORT_VARIABLE = "GUESTMARK_CONFINED="
# User-Mode Linux keeps its guest's memory in a file in this directory.
_MEMORY = "/dev/shm"
# Private mounts that the process may write to, by their word in the report.
_OWN_MOUNTS = {"temporary": "/tmp", "memory": _MEMORY}
# The name of the helper that serves the host's root.
SERVES_ROOT = "virtiofsd"
_FILTER, _NO_RINGS = "filter", "no-rings"
_NAMESPACES = ("pid", "net", "ipc", "uts", "mnt", "user")
# SECCOMP_MODE_FILTER in /proc/PID/status.
_FILTERED = "2"


def find_memory_directory() -> Path | None:
    """Returns a writable directory in memory; None if there is none."""
    with contextlib.suppress(OSError):
        if read_filesystem_type(_MEMORY) == "tmpfs" and os.access(_MEMORY, os.W_OK | os.X_OK):
            return Path(_MEMORY)
    return None


class ConfinedProcess(Protocol):
    """The members of a supervised process that this module uses."""

    @property
    def writable(self) -> tuple[Path, ...]:
        """The directories and files that it may write to."""

    @property
    def groups(self) -> tuple[Path, ...]:
        """Its control groups."""

    @property
    def helpers(self) -> Mapping[str, ConfinedProcess]:
        """The processes that end with it, by name."""

    def pid(self) -> int | None:
        """Returns its process id; None if it has ended."""


def attest_with_helpers(process: ConfinedProcess) -> ConfinementFacts | None:
    """Returns the result of `attest_process` with the process's limits and the confinement of its helpers."""
    found = attest_process(process.pid(), process.writable)
    if found is None:
        return None
    found.memory_bytes, found.processes = read_limits(process.groups)
    for name, helper in process.helpers.items():
        holds = attest_process(helper.pid(), helper.writable) or ConfinementFacts()
        if name == SERVES_ROOT:
            found.shares = holds
        else:
            found.helpers = {**(found.helpers or {}), name: holds}
    return found


def attest_process(pid: int | None, writable: Iterable[Path]) -> ConfinementFacts | None:
    """Returns how the kernel confines a process; None if it has ended or may not be inspected.

    `writable` are the directories and files that it may write to.
    """
    if pid is not None:
        pid = find_confined_program(pid)
    if pid is None:
        return None
    folder = Path(f"/proc/{pid}")
    try:
        status = (folder / "status").read_text(errors="replace")
        seen = read_mounts(pid)
        environment = (folder / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return None
    report = _find_report(environment)
    own = {where for word, where in _OWN_MOUNTS.items() if word in report}
    return ConfinementFacts(
        mounts=_has_read_only_mounts(seen, {os.path.realpath(path) for path in writable} | own),
        landlock="landlock" in report,
        seccomp=find_field(status, "Seccomp") == _FILTERED,
        no_new_privileges=find_field(status, "NoNewPrivs") == "1",
        capabilities=int(find_field(status, "CapEff") or "0", 16).bit_count(),
        namespaces=list_own_namespaces(folder),
        sockets=_list_socket_kinds(report),
        rings=_NO_RINGS not in report,
    )


def _find_report(environment: Sequence[str]) -> list[str]:
    """Returns the words in which `guestmark-agent confine` reports what it has done."""
    for variable in environment:
        if variable.startswith(_REPORT_VARIABLE):
            return variable.removeprefix(_REPORT_VARIABLE).split(",")
    return []


def list_own_namespaces(folder: Path, others: Path = Path("/proc/self")) -> list[str]:
    """Returns the kinds of namespaces that a process does not share with another one, by default this one."""
    found = []
    for name in _NAMESPACES:
        with contextlib.suppress(OSError):
            if (folder / "ns" / name).readlink() != (others / "ns" / name).readlink():
                found.append(name)
    return found


def _list_socket_kinds(report: list[str]) -> list[str] | None:
    if _FILTER not in report:
        return None
    kinds = []
    if "own-sockets" in report:
        kinds.append("own")
    elif "no-sockets" not in report:
        kinds.append("local")
    if "no-network" not in report:
        kinds.append("network")
    return kinds


def _has_read_only_mounts(seen: Sequence[Mount], writable: set[str]) -> bool:
    """Returns whether every mount is read-only, except those in `writable`."""
    return bool(seen) and all("ro" in mount.own or mount.where in writable for mount in seen)


def describe_confinement(confined: ConfinementFacts) -> str:
    """Returns a description of the confinement, such as `read-only mounts, Landlock, seccomp`."""
    own = confined.namespaces or ()
    parts = [
        ("pid" in own and "net" in own, "its own namespaces"),
        ("pid" in own and "net" not in own, "its own namespaces except for the network"),
        (confined.mounts, "read-only mounts"),
        (confined.landlock, "Landlock"),
        (confined.seccomp, "seccomp"),
    ]
    return ", ".join(name for holds, name in parts if holds) or "nothing"


def list_remarks(found: MachineFacts) -> list[str]:
    """Returns a warning if the guest's root user could change this host's files."""
    if found.confined is None or found.confined.protects_files:
        return []
    return [
        "nothing protects this host's files from a guest that takes over its hypervisor: neither read-only mounts "
        "nor Landlock are available here"
    ]

"""What keeps a hypervisor or a helper from this host (`agent.confinement`), as it can be seen while that runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from guestmark.core.machine_facts import Confined, MachineFacts
from guestmark.core.mounts import Mount, mounts
from guestmark.disks.location import filesystem_of
from guestmark.disks.processes import program_of
from guestmark.platforms import groups

_SAID = "GUESTMARK_CONFINED="
_MEMORY = "/dev/shm"  # where User-Mode Linux has its guest's memory
_OF_ITS_OWN = {"temporary": "/tmp", "memory": _MEMORY}  # by the word that says so
SERVES_ROOT = "virtiofsd"  # the helper that serves the host's root
_FILTER, _NO_RINGS = "filter", "no-rings"  # words of it
_NAMESPACES = ("pid", "net", "ipc", "uts", "mnt", "user")
_FILTERED = "2"  # of `Seccomp:` in /proc/PID/status


def memory_directory() -> Path | None:
    """A directory in memory that this process may write to; None where there is none."""
    with contextlib.suppress(OSError):
        if filesystem_of(_MEMORY) == "tmpfs" and os.access(_MEMORY, os.W_OK | os.X_OK):
            return Path(_MEMORY)
    return None


class Running(Protocol):
    """What of a supervised process is asked here."""

    @property
    def writable(self) -> tuple[Path, ...]:
        """The directories and files that it was given."""

    @property
    def groups(self) -> tuple[Path, ...]:
        """Its control groups."""

    @property
    def helpers(self) -> Mapping[str, Running]:
        """What it ends with."""

    def pid(self) -> int | None:
        """Its process id."""


def attested_with_helpers(process: Running) -> Confined | None:
    """As `attested`, with what holds for its helpers, one of which may be the daemon that serves the host's root."""
    found = attested(process.pid(), process.writable)
    if found is None:
        return None
    found.memory_bytes, found.processes = groups.limits(process.groups)
    for name, helper in process.helpers.items():
        holds = attested(helper.pid(), helper.writable) or Confined()
        if name == SERVES_ROOT:
            found.shares = holds
        else:
            found.helpers = {**(found.helpers or {}), name: holds}
    return found


def attested(pid: int | None, writable: Iterable[Path]) -> Confined | None:
    """What holds for a process, by what its kernel says; None when it is not there, or may not be looked at.

    `writable` are the directories and files that it was given.
    """
    pid = program_of(pid) if pid is not None else None
    if pid is None:
        return None
    folder = Path(f"/proc/{pid}")
    try:
        lines = (folder / "status").read_text(errors="replace").splitlines()
        seen = mounts(pid)
        environment = (folder / "environ").read_text(errors="replace").split("\0")
    except OSError:
        return None
    status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    said = next((word.removeprefix(_SAID) for word in environment if word.startswith(_SAID)), "").split(",")
    own = {where for word, where in _OF_ITS_OWN.items() if word in said}
    return Confined(
        mounts=_read_only(seen, {os.path.realpath(path) for path in writable} | own),
        landlock="landlock" in said,
        seccomp=status.get("Seccomp") == _FILTERED,
        no_new_privileges=status.get("NoNewPrivs") == "1",
        capabilities=int(status.get("CapEff", "0"), 16).bit_count(),
        namespaces=_own_namespaces(folder),
        sockets=_sockets(said),
        rings=_NO_RINGS not in said,
    )


def _own_namespaces(folder: Path) -> list[str]:
    """Those of a process that are not this process's, as the kernel calls them."""
    found = []
    for name in _NAMESPACES:
        with contextlib.suppress(OSError):
            if (folder / "ns" / name).readlink() != Path("/proc/self/ns", name).readlink():
                found.append(name)
    return found


def _sockets(said: list[str]) -> list[str] | None:
    if _FILTER not in said:
        return None
    kinds = {"local": "no-sockets", "network": "no-network"}
    return [kind for kind, word in kinds.items() if word not in said]


def _read_only(seen: Sequence[Mount], writable: set[str]) -> bool:
    """Whether every mount is read-only but for what may be written to."""
    return bool(seen) and all("ro" in mount.own or mount.where in writable for mount in seen)


def said(confined: Confined) -> str:
    """In words: `read-only mounts, Landlock, seccomp`."""
    own = confined.namespaces or ()
    parts = [
        ("pid" in own and "net" in own, "a cage of its own"),
        ("pid" in own and "net" not in own, "a cage with this host's networks"),
        (confined.mounts, "read-only mounts"),
        (confined.landlock, "Landlock"),
        (confined.seccomp, "seccomp"),
    ]
    return ", ".join(name for holds, name in parts if holds) or "nothing"


def remarks(found: MachineFacts) -> list[str]:
    """A warning about a guest whose root could change this host."""
    if found.confined is None or found.confined.protects_files:
        return []
    return [
        "nothing but the guest itself keeps it from changing this host's files: neither read-only mounts nor Landlock "
        "can be had here"
    ]

"""What a run can leave beside files of its own: processes, mounts, loop devices, groups, memory, queues."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.keeper import is_in_use
from tests.framework.processes import alive, started_at

_KEPT = re.compile(r"guestmark-[a-z][a-z0-9@_-]*-[0-9a-f]{12}")
_INTERFACE = re.compile(r"peer[0-9a-f]{6}|net0|nowhere[01]")
_NOBODY = 65534  # as whom some servers run that root starts
_GROUPS = Path("/sys/fs/cgroup")
_SHARED = (Path("/dev/shm"), Path("/var/tmp"))
# What other checks of this checkout make in the same places: no run leaves these.
_CHECKS = ("guestmark-test-", "guestmark-stack-", "guestmark-clean-root.", "guestmark-try-wheel.")


def processes(mark: bytes, known: dict[int, int]) -> Iterator[tuple[int, str]]:
    """Those with `mark` in their environment, and those of `known` (process ids, with the moments of their starts).

    A process that has ended is told by its state: one that runs may have no command line, if it has unmapped its own.
    """
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                pid = int(folder.name)
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
                if (marked or (pid in known and started_at(pid) == known[pid])) and alive(pid):
                    command = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")
                    yield pid, command[:150] or (folder / "comm").read_text().strip()


def nobodys(user: int = 0) -> list[Path]:
    """Directories, in memory too, and control groups that are nobody's: most other runs here have owners who live.

    Root may have made them for anybody; those of another `user` are this user's."""
    found = []
    # Groups come and go while they are looked through, which `Path.glob` does not bear.
    groups = [Path(at) for at, _, _ in os.walk(_GROUPS) if Path(at).name.startswith("guestmark-")]
    for path in [*(path for parent in _SHARED for path in parent.glob("guestmark-*")), *groups]:
        with contextlib.suppress(OSError):
            own = not user or path.stat().st_uid == user
            if own and not path.name.startswith(_CHECKS) and path.is_dir() and not is_in_use(path):
                found.append(path)
    return found


def is_group(path: Path) -> bool:
    """Whether it is a control group."""
    return _GROUPS in path.parents


def announced(folder: Path) -> set[Path]:
    """What runs that have their cache in `folder` have named to their keepers: so it is theirs, whoever lives.

    Control groups are where other jobs of the machine make theirs, whose makers may have been killed a moment ago.
    """
    found = set()
    for record in folder.glob("*/guestmark/keepers/*/guestmark-names-*"):
        with contextlib.suppress(OSError):
            said = record.read_bytes().split(b"\0")
            found |= {Path(os.fsdecode(one[1:])) for one in said if one.startswith(b"+")}
    return found


def parts(folder: Path) -> list[Path]:
    """What was to be removed or to take another's place, in a run's own cache, state and folder."""
    found = []
    for at, directories, files in os.walk(folder):  # which does not follow the links to what caches share
        for name in (*directories, *files):
            unfinished = name.startswith(("guestmark-part-", "pymp-")) or name.endswith((".part", ".tmp"))
            if unfinished or _KEPT.fullmatch(name):
                found.append(Path(at, name))
    return found


def machines(folder: Path) -> list[Path]:
    """Machines of one's own that a storm in `folder` has made, and records of such machines in its cache."""
    return [*(folder / "machines").glob("*"), *folder.glob("*/guestmark/machines/*/*")]


def semaphores() -> list[str]:
    """Python's semaphores that no process has: of a killed pool whose tracker could not remove them."""
    here = {path.name for path in _SHARED[0].glob("sem.mp-*")}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            text = maps.read_text(errors="replace") if here else ""
            here = {name for name in here if name not in text}
    return sorted(here)


def mounts(scratch: Path) -> list[str]:
    """Mounts below a directory."""
    lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    places = [Path(line.split(" ")[4]) for line in lines]
    return [f"a mount at {place}" for place in places if scratch in place.parents]


def interfaces() -> list[str]:
    """Interfaces of networks of machines in this host's own network, and namespaces of theirs that have a name.

    All others are in namespaces that live only as long as the processes that `processes` finds."""
    names = [path.name for path in Path("/sys/class/net").iterdir() if _INTERFACE.fullmatch(path.name)]
    named = [path.name for path in Path("/run/netns").glob("*guestmark*")]
    return [*(f"the interface {name}" for name in names), *(f"the namespace {name}" for name in named)]


def loops(scratch: Path) -> list[str]:
    """Loop devices whose files are below a directory, also those that have been removed."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if scratch in Path(file.read_text().strip().removesuffix(" (deleted)")).parents:
                found.append(f"the loop device {file.parts[3]}")
    return found


def queues(known: dict[int, int], user: int = 0) -> list[str]:
    """Queues, semaphores and shared memory of `user` that processes of `known` have made or used last.

    Numbers of processes come again: a database server of somebody else leaves memory whose maker had one of them."""
    found = []
    for kind, columns in (("msg", ("lspid", "lrpid")), ("shm", ("cpid", "lpid"))):
        with contextlib.suppress(OSError):
            names, *rows = [line.split() for line in Path("/proc/sysvipc", kind).read_text().splitlines()]
            for row in rows:
                own = int(row[names.index("uid")]) in {user, _NOBODY}
                if own and any(int(row[names.index(column)]) in known for column in columns):
                    found.append(f"{kind} {row[names.index(f'{kind}id' if kind == 'shm' else 'msqid')]}")
    return found

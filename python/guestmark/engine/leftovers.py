"""Find what crashes and older versions left behind: unused files with known names, and orphaned processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import shutil
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.paths import choose_scratch_parent, locate_cache
from guestmark.core import procfs
from guestmark.core.keeper import is_in_use
from guestmark.core.machine_facts import read_mounts
from guestmark.core.registry import list_platform_names
from guestmark.disks.location import choose_default_location
from guestmark.disks.logged import unmount_below
from guestmark.disks.processes import is_stopped, read_status
from guestmark.platforms import confinement
from guestmark.platforms.confinement import find_memory_directory

# Names that older versions used, besides those of machines, which begin with their platform's name. A user's directory
# such as `guestmark-results` must not match.
_OLDER_NAMES = (
    "capture", "cut", "direct", "disks", "guestfish", "memory", "modules", "netboot", "proto", "template",
    "trial", "tree", "user", "virtiofsd",
)  # fmt: skip
# The pattern of the names of everything that keepers create.
_KEEPER_NAME = r"[a-z][a-z0-9@_-]*-[0-9a-f]{12}"
_KEEPER_PATTERN = re.compile(rf"guestmark-{_KEEPER_NAME}")
_UNIQUE_SUFFIX = r"[0-9a-z_]{8}(?:[0-9a-z_]{4})?(?:\.txt)?"
# Unfinished files in the cache. A process keeps touching the file that it creates, so an old one is abandoned.
_UNFINISHED_PATTERNS = (
    "guestmark-part-*",
    "*/guestmark-*",
    "kernels/vmlinux-*.*",
    "databases/*.part",
    "foreign/*/guestmark-*",
    "libguestfs/modules-*",
    "probes.*-*",
)
_UNFINISHED_OLD_S = 3600.0
_USUAL_DIRECTORIES = ("/tmp", "/var/tmp")
_AGENT_PATTERN = re.compile(r"(?:^|/)guestmark-agent$")
# This is in the environment of every process that a fleet's worker starts.
_FLEET_VARIABLE = b"GUESTMARK_FLEET_MACHINE="
_FLEET_PROCESS = re.compile(r"process_worker_pool|multiprocessing\.(?:spawn|resource_tracker)")
_ENDING_S = 1.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or directory that no process uses any more; `reason_to_keep` is set if it cannot be removed."""

    path: Path
    size: int
    changed_at: float
    reason_to_keep: str = ""

    def remove(self) -> None:
        """Remove the file or directory. Raises `OSError`."""
        if confinement.is_group(self.path):
            self.path.rmdir()
        elif self.path.is_dir() and not self.path.is_symlink():
            # This unmounts the image of a killed daemon. A directory with any other mount in it is kept.
            unmount_below(self.path)
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A process that outlived its guestmark, because it or its supervisor was stopped (SIGSTOP)."""

    pid: int
    # A pidfd, which never refers to another process that gets the same number later.
    handle: int
    command: str

    def end(self, patience_s: float = 5.0) -> bool:
        """Continue the process so that it ends by itself, else kill it; return whether it is gone."""
        for number, within_s in ((signal.SIGCONT, patience_s), (signal.SIGKILL, patience_s)):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)
            if select.select([self.handle], [], [], within_s)[0]:
                return True
        return False


def find_orphans() -> list[Orphan]:
    """Return this user's orphans, without those that end by themselves within a second."""
    found = _list_orphans()
    if any(not is_stopped(pid) for pid in found):
        time.sleep(_ENDING_S)
        found = {pid: command for pid, command in _list_orphans().items() if pid in found}
    made = []
    for pid, command in found.items():
        with contextlib.suppress(OSError):
            made.append(Orphan(pid, os.pidfd_open(pid), command))
    return made


def _list_orphans() -> dict[int, str]:
    words: dict[int, list[str]] = {}
    for pid in procfs.list_processes():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == os.geteuid() and not _has_ended(pid):
                words[pid] = procfs.read_words(pid) or [""]
    ours = set()
    for pid, said in words.items():
        if _AGENT_PATTERN.search(said[0]) and said[1:2] in (["supervise"], ["keep"]):
            ours.add(pid)
    writers = _list_written_pipes() if ours else set()
    found = [pid for pid in ours if _has_lost_controller(pid, words[pid], writers)]
    found += [pid for pid in words if pid not in ours and _is_lost_fleet_process(pid, words)]
    return {pid: " ".join(words[pid])[:150] for pid in sorted(found)}


def _has_lost_controller(pid: int, words: list[str], writers: set[str]) -> bool:
    """Return whether nothing can end the process any more: its lifeline has no writer, or its controller is gone."""
    options = dict(itertools.pairwise(words)) | dict(word.split("=", 1) for word in words if "=" in word)
    with contextlib.suppress(OSError):
        if handle := options.get("--controller"):
            info = Path(f"/proc/{pid}/fdinfo/{handle}").read_text().split()
            return info[info.index("Pid:") + 1] == "-1"
        end = os.readlink(f"/proc/{pid}/fd/{options.get('--lifeline')}")
        return end.startswith("pipe:") and end not in writers
    return False


def _list_written_pipes() -> set[str]:
    """Return the pipes to which some process of this machine can write."""
    found = set()
    for pid in procfs.list_processes():
        for link, end in procfs.list_open_files(pid):
            if end.startswith("pipe:") and end not in found:
                # The file may just have been closed.
                with contextlib.suppress(ValueError, IndexError):
                    info = procfs.read_text(link.parents[1] / "fdinfo" / link.name).split()
                    if int(info[info.index("flags:") + 1], 8) & os.O_ACCMODE != os.O_RDONLY:
                        found.add(end)
    return found


def _is_lost_fleet_process(pid: int, words: dict[int, list[str]]) -> bool:
    """Return whether a fleet's worker started the process, and neither worker nor supervisor exists any more."""
    with contextlib.suppress(OSError):
        named = any(map(_FLEET_PROCESS.search, words[pid]))
        if not named or _FLEET_VARIABLE not in Path(f"/proc/{pid}/environ").read_bytes():
            return False
        while pid > 1:
            pid = int(read_status(pid)[1])
            if words.get(pid, [])[1:2] == ["supervise"] or "worker" in words.get(pid, []):
                return False
        return True
    return False


def _has_ended(pid: int) -> bool:
    fields = read_status(pid)
    return not fields or fields[0] in "ZX"


def find_leftovers(more: Iterable[Path] = ()) -> list[Leftover]:
    """Return this user's leftovers in guestmark's usual directories and in `more`, the oldest first."""
    candidates: list[Path] = []
    for parent in dict.fromkeys(_list_directories(more)):
        candidates += _find_named(parent)
    candidates += [path for path in _find_unfinished_files() if path not in candidates]
    candidates += confinement.find_leftover_groups()
    used = _read_paths_in_use() if candidates else ""
    mounted = [Path(mount.where) for mount in read_mounts() if mount.kind != "fuse"]
    found = []
    for path in candidates:
        # Another process may remove any of them meanwhile.
        with contextlib.suppress(OSError):
            state = path.lstat()
            if state.st_uid != os.geteuid() or str(path) in used:
                continue
            if stat.S_ISDIR(state.st_mode) and is_in_use(path):
                continue
            keeps = ""
            if any(path in where.parents for where in mounted):
                keeps = "something is mounted in it; unmount that first"
            found.append(Leftover(path, _measure_size(path), state.st_mtime, keeps))
    return sorted(found, key=lambda leaving: leaving.changed_at)


def _list_directories(more: Iterable[Path]) -> Iterator[Path]:
    named = [
        choose_scratch_parent(),
        Path(choose_default_location()),
        find_memory_directory(),
        *more,
    ]
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        if directory := os.environ.get(name):
            named.append(Path(directory))
    if not os.environ.get("TMPDIR"):
        named += map(Path, _USUAL_DIRECTORIES)
    for parent in named:
        if parent is not None and parent.is_dir():
            yield parent.resolve()


def _find_named(parent: Path) -> Iterator[Path]:
    names = sorted({*_OLDER_NAMES, *(name.replace("/", "-") for name in list_platform_names())})
    # Without one of these names, eight letters after `guestmark-` may be anybody's: a date, or `examples`.
    named = rf"(?:{'|'.join(map(re.escape, names))})(?:@[a-z0-9_]+)?-{_UNIQUE_SUFFIX}"
    ours = re.compile(rf"guestmark-(?:{named}|{_KEEPER_NAME})")
    with contextlib.suppress(OSError):
        for entry in parent.iterdir():
            if ours.fullmatch(entry.name):
                yield entry


def _find_unfinished_files() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        cache = locate_cache()
        for pattern in _UNFINISHED_PATTERNS:
            for path in cache.glob(pattern):
                # The process that creates it holds a lock on it, which is checked later.
                if _KEEPER_PATTERN.fullmatch(path.name) and path.is_dir():
                    yield path
                    continue
                is_part = not path.name.endswith((".none", ".json"))
                if (
                    is_part
                    and _has_unfinished_name(path)
                    and path.lstat().st_mtime < time.time() - _UNFINISHED_OLD_S
                ):
                    yield path


def _has_unfinished_name(path: Path) -> bool:
    """Return whether its name shows that the file is unfinished; that of an unfinished kernel ends with an id."""
    if path.name.startswith("vmlinux-"):
        return bool(re.search(r"-\d+-\d+\.\d+$", path.name))
    return True


def _read_paths_in_use() -> str:
    """Return every path that a process of this machine names or has open, as far as this user may read them."""
    found: list[str] = []
    for pid in procfs.list_processes():
        if pid == os.getpid():
            continue
        folder = procfs.PROC / str(pid)
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_text(errors="surrogateescape"))
        for name in ("cwd", "root", "exe"):
            if target := procfs.read_link(folder / name):
                found.append(target)
        found += (end for _, end in procfs.list_open_files(pid))
    return "\n".join(found)


def _measure_size(path: Path) -> int:
    """Return the bytes that a file or directory occupies on disk."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_blocks * 512
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total

"""What crashes of the machine, or older versions, have left behind: found by its name, and by nobody using it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.keeper import is_in_use
from guestmark.appliance.paths import cache_directory, scratch_parent
from guestmark.core.registry import platform_names
from guestmark.disks.location import default_location
from guestmark.disks.logged import unmount_below
from guestmark.platforms.confinement import memory_directory

# Beside those of machines, which are called after their platforms. What a user calls `guestmark-results` is not ours.
_NAMES = (
    "capture", "cut", "direct", "disks", "guestfish", "memory", "modules", "netboot", "proto", "trial", "tree", "user",
    "virtiofsd",
)  # fmt: skip
_UNIQUE = r"[0-9a-z_]{8}(?:[0-9a-z_]{4})?(?:\.txt)?"
# In the cache: parts of what was being made. Whoever makes one touches it again and again.
_PARTS = (
    "kernels/guestmark-*",
    "kernels/vmlinux-*.*",
    "databases/*.part",
    "foreign/*/guestmark-foreign-*",
    "foreign/guestmark-foreign-*",
    "libguestfs/modules-*",
    "probes.*-*",
)
_PART_IS_OLD_S = 3600.0
_USUAL = ("/tmp", "/var/tmp")


@dataclass(frozen=True, slots=True)
class Leaving:
    """A file or directory that nobody uses any more; `keeps` says why it cannot be removed, if so."""

    path: Path
    size: int
    changed_at: float
    keeps: str = ""

    def remove(self) -> None:
        """Removes it. Raises `OSError`."""
        if self.path.is_dir() and not self.path.is_symlink():
            unmount_below(
                self.path
            )  # an image that a killed daemon served; nothing else is removed with a mount
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


def find(more: Iterable[Path] = ()) -> list[Leaving]:
    """All of this user's leavings where guestmark puts things, and in the directories `more`; the oldest first."""
    candidates = [path for parent in dict.fromkeys(_parents(more)) for path in _named(parent)]
    candidates += [path for path in _parts() if path not in candidates]
    used = _in_use_by_processes() if candidates else ""
    mounts = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    found = []
    for path in candidates:
        with contextlib.suppress(OSError):  # it has just gone
            state = path.lstat()
            if state.st_uid != os.geteuid() or str(path) in used:
                continue
            if stat.S_ISDIR(state.st_mode) and is_in_use(path):
                continue
            others = [line for line in mounts.splitlines() if f" {path}/" in line and " - fuse " not in line]
            keeps = "something is mounted in it; umount that first" if others else ""
            found.append(Leaving(path, _size(path), state.st_mtime, keeps))
    return sorted(found, key=lambda leaving: leaving.changed_at)


def _parents(more: Iterable[Path]) -> Iterator[Path]:
    named = [
        scratch_parent(),
        Path(default_location()),
        memory_directory(),
        *more,
    ]
    named += [Path(os.environ[name]) for name in ("TMPDIR", "XDG_RUNTIME_DIR") if os.environ.get(name)]
    if not os.environ.get("TMPDIR"):
        named += map(Path, _USUAL)
    for parent in named:
        if parent is not None and parent.is_dir():
            yield parent.resolve()


def _named(parent: Path) -> Iterator[Path]:
    names = sorted({*_NAMES, *(name.replace("/", "-") for name in platform_names())})
    ours = re.compile(rf"guestmark-(?:(?:{'|'.join(map(re.escape, names))})(?:@[a-z0-9_]+)?-)?{_UNIQUE}")
    with contextlib.suppress(OSError):
        yield from (entry for entry in parent.iterdir() if ours.fullmatch(entry.name))


def _parts() -> Iterator[Path]:
    with contextlib.suppress(OSError):
        cache = cache_directory()
        for pattern in _PARTS:
            for path in cache.glob(pattern):
                is_part = not path.name.endswith((".none", ".json"))
                if is_part and _is_part(path) and path.lstat().st_mtime < time.time() - _PART_IS_OLD_S:
                    yield path


def _is_part(path: Path) -> bool:
    """Kernels' releases have dots, too: a part of one ends with the id of the process that makes it."""
    if path.name.startswith("vmlinux-"):
        return bool(re.search(r"-\d+-\d+\.\d+$", path.name))
    return True


def _in_use_by_processes() -> str:
    """Every path that a process of this machine names or has open, as far as this user may know."""
    found: list[str] = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_text(errors="surrogateescape"))
        for name in ("cwd", "root", "exe"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(folder / name))
        with contextlib.suppress(OSError):
            for link in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    found.append(os.readlink(link))
    return "\n".join(found)


def _size(path: Path) -> int:
    """Bytes that it occupies."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_blocks * 512
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total

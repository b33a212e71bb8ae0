"""The initramfs of a guest: the agent as /init, modules, and the two device nodes it needs before /dev is mounted."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import MappingProxyType

from guestmark.appliance.modules import ModuleTree
from guestmark.appliance.paths import compute_file_identity, locate_cache, put_into_cache, remove_least_used

_KEPT = 20  # archives, the most recently used

NO_PROGRAMS: Mapping[str, Path | bytes] = MappingProxyType({})


class CpioArchive:
    """Collects entries of a cpio archive. Device nodes need no privileges, as they are only described."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._inode = 0

    def add_directory(self, path: str) -> None:
        """Adds a directory, mode 0755."""
        self._add_entry(path, stat.S_IFDIR | 0o755)

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Adds a regular file."""
        self._add_entry(path, stat.S_IFREG | mode, content)

    def add_character_device(self, path: str, major: int, minor: int) -> None:
        """Adds a character device node, mode 0600."""
        self._add_entry(path, stat.S_IFCHR | 0o600, device=(major, minor))

    def to_bytes(self) -> bytes:
        """Returns the whole archive with its trailer, padded to 512 bytes."""
        self._add_entry("TRAILER!!!", 0)
        whole = b"".join(self._parts)
        return whole + bytes(-len(whole) % 512)

    def _add_entry(
        self, path: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        self._inode += 1
        name = path.encode() + b"\0"
        # ino, mode, uid, gid, nlink, mtime, size, dev major and minor, rdev major and minor, name size, check
        fields = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % value for value in fields) + name
        self._parts += [head, bytes(-len(head) % 4), content, bytes(-len(content) % 4)]


@dataclass(frozen=True, slots=True)
class ModuleList:
    """Modules by name. The agent loads `required` or gives up; of `optional` it loads those that exist."""

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


def build_initramfs(
    agent: Path, modules: Path | None, wanted: ModuleList, programs: Mapping[str, Path | bytes] = NO_PROGRAMS
) -> Path:
    """Returns the cached initramfs for this agent and these modules, built on first use.

    The file is named by the hash of everything in it, so it is never stale. It is not compressed: under TCG, unpacking
    takes the guest longer than reading does. `modules` is None for a kernel that has everything built in. `programs`
    are further files, by their path below `/guestmark`. Raises `GuestmarkError` naming a required module that the tree
    lacks.
    """
    key = hashlib.sha256(repr(wanted).encode())
    inputs = [agent]
    if modules:
        inputs += [modules / "modules.order", modules / "modules.builtin"]
    for path in inputs:
        key.update(f"{path}{compute_file_identity(path)}".encode())
    for name, content in programs.items():
        identity = compute_file_identity(content) if isinstance(content, Path) else content
        key.update(f"{name}{identity!r}".encode())
    directory = locate_cache() / "initramfs"
    directory.mkdir(exist_ok=True)
    target = directory / f"{key.hexdigest()[:20]}.cpio"
    if target.exists():
        # `remove_least_used` relies on the time of the last use.
        os.utime(target)
        return target
    archive = CpioArchive()
    for path_name in ("dev", "proc", "sys", "guestmark", "guestmark/lib"):
        archive.add_directory(path_name)
    # Rust's runtime aborts as PID 1 if these two cannot be opened.
    archive.add_character_device("dev/console", 5, 1)
    archive.add_character_device("dev/null", 1, 3)
    archive.add_file("init", agent.read_bytes(), 0o755)
    lines: list[str] = []
    if modules:
        lines = _add_modules(archive, ModuleTree.read(modules), wanted)
    archive.add_file("guestmark/modules", "".join(lines).encode())
    _add_programs(archive, programs)
    put_into_cache(target, archive.to_bytes(), "the initramfs")
    # Each build of the agent adds another one.
    remove_least_used(directory.glob("*.cpio"), _KEPT)
    return target


def _add_programs(archive: CpioArchive, programs: Mapping[str, Path | bytes]) -> None:
    folders: set[str] = set()
    for name in programs:
        folders.update(map(str, PurePath(name).parents))
    for folder in sorted(folders - {"."}):
        archive.add_directory(f"guestmark/{folder}")
    for name, content in programs.items():
        if isinstance(content, Path):
            archive.add_file(f"guestmark/{name}", content.read_bytes(), 0o755)
        else:
            archive.add_file(f"guestmark/{name}", content, 0o755)


def _add_modules(archive: CpioArchive, tree: ModuleTree, wanted: ModuleList) -> list[str]:
    """Adds the modules and all modules that they need; returns the lines by which the agent loads them, in order."""
    optional = tuple(name for name in wanted.optional if tree.has_module(name))
    required = [name for name, _ in tree.read_with_dependencies(wanted.required)]
    lines = []
    for name, content in tree.read_with_dependencies(wanted.required + optional):
        path = f"guestmark/lib/{name}.ko"
        archive.add_file(path, content)
        if name in required:
            lines.append(f"/{path}\n")
        else:
            # The agent goes on if a module whose line begins with a dash cannot be loaded.
            lines.append(f"-/{path}\n")
    return lines

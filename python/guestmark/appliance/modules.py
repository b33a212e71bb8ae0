"""Finds the files that a set of kernel modules needs, in loading order."""

import bz2
import gzip
import lzma
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from guestmark.appliance.paths import FileCache
from guestmark.core.errors import GuestmarkError

_SIGNATURE_MARK = b"~Module signature appended~\n"
_SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst", ".ko.bz2")


@dataclass(frozen=True, slots=True)
class ModuleTree:
    """The modules in one `lib/modules/RELEASE` directory.

    `dependencies` maps a module's name to the names it needs; `builtin` are the names of modules in the kernel itself.
    """

    directory: Path
    files: dict[str, Path]
    dependencies: dict[str, tuple[str, ...]]
    builtin: frozenset[str]

    @classmethod
    def read(cls, directory: Path) -> "ModuleTree":
        """Reads `modules.dep` if depmod has written it; a tree fresh from a package is scanned instead."""
        decisive = ("modules.dep", "modules.builtin", "modules.order", "kernel")
        return _trees.look_up(directory, *(directory / name for name in decisive))

    @classmethod
    def _read_directory(cls, directory: Path) -> "ModuleTree":
        dep = directory / "modules.dep"
        builtin_file = directory / "modules.builtin"
        lines: list[str] = []
        if builtin_file.exists():
            lines = builtin_file.read_text().splitlines()
        builtin = frozenset(_normalize_module_name(Path(line)) for line in lines)
        files: dict[str, Path] = {}
        dependencies: dict[str, tuple[str, ...]] = {}
        if dep.exists() and dep.stat().st_size:
            for line in dep.read_text().splitlines():
                path, _, needs = line.partition(":")
                name = _normalize_module_name(Path(path))
                files[name] = directory / path
                # depmod lists the closure, nearest first; loading wants the farthest first.
                dependencies[name] = tuple(_normalize_module_name(Path(need)) for need in needs.split())
        else:
            for path_found in sorted((directory / "kernel").rglob("*.ko*")):
                files[_normalize_module_name(path_found)] = path_found
        return cls(directory, files, dependencies, builtin)

    def has_module(self, name: str) -> bool:
        """Returns whether the module exists, as a file or built into the kernel."""
        return name in self.files or name in self.builtin

    def read_with_dependencies(self, names: tuple[str, ...]) -> list[tuple[str, bytes]]:
        """Returns names and uncompressed contents of everything that `names` need, in loading order, without built-ins.

        Raises `GuestmarkError` naming a module that does not exist.
        """
        order: dict[str, bytes] = {}

        def visit(name: str) -> None:
            if name in order or name in self.builtin:
                return
            if name not in self.files:
                raise GuestmarkError(
                    f"the kernel in {self.directory} has no module {name}",
                    hint="use another kernel: --set kernel=FILE",
                )
            content = strip_signature(read_decompressed(self.files[name]))
            for need in self.dependencies.get(name) or _read_dependencies(content):
                visit(need)
            order[name] = content

        for name in names:
            visit(name)
        return list(order.items())


_trees = FileCache(ModuleTree._read_directory)


def read_decompressed(path: Path) -> bytes:
    """Returns the content of a module file, however the distribution compressed it."""
    data = path.read_bytes()
    match path.suffix:
        case ".xz":
            return lzma.decompress(data)
        case ".gz":
            return gzip.decompress(data)
        case ".bz2":
            return bz2.decompress(data)
        case ".zst":
            tool = shutil.which("zstd")
            if tool is None:
                raise GuestmarkError(
                    f"{path} is compressed with zstd, which is not installed", hint="install zstd"
                )
            return subprocess.run(
                [tool, "-dc"], input=data, capture_output=True, check=True, timeout=60
            ).stdout
        case _:
            return data


def strip_signature(content: bytes) -> bytes:
    """Returns a module's content without its appended signature.

    Checking signatures takes a third of the loading time under emulation, and no guest here enforces them. Layout:
    `struct module_signature` in the kernel's include/linux/module_signature.h.
    """
    if not content.endswith(_SIGNATURE_MARK):
        return content
    (length,) = struct.unpack(">I", content[-len(_SIGNATURE_MARK) - 4 : -len(_SIGNATURE_MARK)])
    return content[: -len(_SIGNATURE_MARK) - 12 - length]


def _read_dependencies(content: bytes) -> tuple[str, ...]:
    """Returns the `depends=` entry of a module's .modinfo section (what `modinfo -F depends` prints)."""
    at = content.find(b"\0depends=")
    if at < 0:
        return ()
    value = content[at + 9 : content.index(b"\0", at + 9)].decode()
    return tuple(name.replace("-", "_") for name in value.split(",") if name)


def _normalize_module_name(path: Path) -> str:
    name = path.name
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return name.replace("-", "_")

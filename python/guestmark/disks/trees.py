"""Filesystems with initial content: the mkfs arguments that put a directory's content into the image.

mke2fs makes a hole of every block that is zero, but a log that a server has written full of zeroes is no hole: writing
to it later would be another thing in the guest than on the host. So mke2fs is given marks for these blocks, and in the
finished image the marks become zeroes.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guestmark.agent.keeper import keeper
from guestmark.core.errors import MachineError
from guestmark.core.units import format_size
from guestmark.disks import sparse
from guestmark.setting.disk import DiskSpec
from guestmark.setting.filesystem import Filesystem

_BLOCK = 1024  # the smallest of ext2 to ext4
_ZERO = bytes(_BLOCK)
_MARK = hashlib.sha256(b"a block of zeroes that is not a hole").digest() * (_BLOCK // 32)
_PIECE = 4 << 20
_KINDS = ((stat.S_ISDIR, "d"), (stat.S_ISREG, "-"), (stat.S_ISLNK, "l"))


def size_of(tree: Path) -> int:
    """Bytes that the files of a tree take."""
    return sum(file.lstat().st_blocks for file in tree.rglob("*")) * 512


def check_fits(tree: Path, spec: DiskSpec) -> None:
    """Raises `MachineError` when the files alone are larger than the disk."""
    size = size_of(tree)
    if size >= spec.size:
        raise MachineError(
            f"{size / 1e6:.0f} MB of prepared files do not fit on a disk of {format_size(spec.size)}",
            hint="use a larger disk (--set size=4G) or less data",
        )


@contextmanager
def populating(spec: DiskSpec, raw: Path) -> Iterator[tuple[str, ...]]:
    """Arguments for the filesystem's mkfs, which makes the image `raw` inside the context; owners and permissions are
    kept. Nothing when there is no tree.
    """
    if not spec.tree:
        yield ()
    elif spec.filesystem.is_ext:
        with _directory("tree", raw.parent) as marked:
            sparse.copy_tree(Path(spec.tree), marked)
            for file in marked.rglob("*"):
                if file.is_file() and not file.is_symlink():
                    _replace(file, _ZERO, _MARK)
            yield "-d", str(marked)
        _replace(raw, _MARK, _ZERO)
    elif spec.filesystem is Filesystem.BTRFS:
        yield "--rootdir", spec.tree
    else:
        with _directory("proto", raw.parent) as directory:
            listing = directory / "prototype"
            listing.write_text(
                "\n".join(["/", "0 0", *_prototype(Path(spec.tree), Path(spec.tree)), "$", ""])
            )
            yield "-p", str(listing)


@contextmanager
def _directory(name: str, parent: Path) -> Iterator[Path]:
    """A directory that is removed at the end, also when this process is killed."""
    path = keeper().directory(name, parent.resolve())
    try:
        yield path
    finally:
        keeper().remove(path)


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Overwrites every block of the file that is `old` with `new`; holes stay holes."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        for start, end in list(sparse.data_ranges(file.fileno(), size)):
            for position in range(start - start % _BLOCK, end, _PIECE):
                file.seek(position)
                found = file.read(min(_PIECE, end - position))
                if old not in found:
                    continue
                changed = bytearray(found)
                for at in range(0, len(found) - _BLOCK + 1, _BLOCK):
                    if found[at : at + _BLOCK] == old:
                        changed[at : at + _BLOCK] = new
                file.seek(position)
                file.write(changed)


def _prototype(path: Path, tree: Path) -> list[str]:
    """Lines of mkfs.xfs's prototype file (its manual, option -p) for a file or directory."""
    status = path.lstat()
    kind = next((letter for matches, letter in _KINDS if matches(status.st_mode)), None)
    if kind is None:
        raise MachineError(f"{path} is neither a file nor a directory, so it cannot be put on a disk")
    mode = f"{kind}{'u' if status.st_mode & stat.S_ISUID else '-'}{'g' if status.st_mode & stat.S_ISGID else '-'}"
    own = f"{mode}{status.st_mode & 0o777:03o} {status.st_uid} {status.st_gid}"
    name = "" if path == tree else f"{path.name} "
    if kind == "-":
        return [f"{name}{own} {path}"]
    if kind == "l":
        return [f"{name}{own} {path.readlink()}"]
    inside = [line for entry in sorted(path.iterdir()) for line in _prototype(entry, tree)]
    return [f"{name}{own}", *inside, *(["$"] if path != tree else [])]

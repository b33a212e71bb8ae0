"""Unpacking layers of container images, whose names and links are somebody else's: nothing leaves the directory."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

_MOST_LINKS = 40  # that lead on from one name; as the kernel has it
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def unpack(archive: Path, root: Path) -> None:
    """Adds a layer to what is in `root`, with what it marks as removed taken away.

    Directories, files and links only. Links are followed as the image's own programs would, with `root` as their root.
    Raises `ValueError` for what is no layer, or tries to leave it.
    """
    try:
        with tarfile.open(archive) as layer:
            for entry in layer:
                _add(layer, entry, root)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {error}") from error


def _add(layer: tarfile.TarFile, entry: tarfile.TarInfo, root: Path) -> None:
    parts = PurePosixPath(entry.name).parts
    name = PurePosixPath(*(part for part in parts if part not in {"/", "."}))
    if ".." in parts:
        raise ValueError(f"{entry.name} leads out of the image")
    if not name.name:
        return
    folder = inside(root, str(name.parent))
    if name.name.startswith(_WHITEOUT):
        if name.name != _OPAQUE:
            _remove(folder / name.name.removeprefix(_WHITEOUT))
        elif folder.is_dir():
            for path in folder.iterdir():
                _remove(path)
        return
    path = folder / name.name
    if entry.isdir():
        if not path.is_dir() or path.is_symlink():
            _remove(path)
        path.mkdir(parents=True, exist_ok=True)
        return
    if not (entry.isfile() or entry.issym() or entry.islnk()):
        return  # devices and the like
    folder.mkdir(parents=True, exist_ok=True)
    _remove(path)
    if entry.issym():
        path.symlink_to(entry.linkname)
    elif entry.islnk():
        target = PurePosixPath("/") / entry.linkname
        shutil.copy2(inside(root, str(target.parent)) / target.name, path, follow_symlinks=False)
    else:
        content = layer.extractfile(entry)
        assert content is not None  # it is a file
        with path.open("xb") as stream:
            shutil.copyfileobj(content, stream)
        path.chmod(entry.mode & 0o755 | 0o600)


def inside(root: Path, name: str) -> Path:
    """Resolves a name in an image: its links are followed, and `/` and `..` end at `root`. It need not exist.

    Raises `ValueError` for links in a circle.
    """
    waiting = list(reversed(PurePosixPath(name).parts))
    found = root
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            found = found.parent if found != root else root
        elif part == "/":
            found = root
        elif part != ".":
            step = found / part
            if not step.is_symlink():
                found = step
                continue
            links += 1
            if links > _MOST_LINKS:
                raise ValueError(f"{name}: its links go round in a circle")
            waiting += reversed(PurePosixPath(os.readlink(step)).parts)
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

"""Unpacks images into the cache once: container images, archives, filesystems. Nothing is mounted.

Files keep their permissions to read and execute. All that could affect this host is dropped: owners, device nodes and
set-user-ID bits.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from guestmark.appliance.paths import locate_cache
from guestmark.core.temporary import scratch_directory
from guestmark.foreign.progress import tell_user

# Prefix of a level that names a container image or the path of an archive.
IMAGE = "image:"
_UNPACK_S = 900.0
_WORLD_WRITABLE = ("tmp", "var/tmp")
# Magic numbers and their offsets in a file.
_SQUASHFS, _EXT = (0, b"hsqs"), (0x438, b"\x53\xef")
_QCOW, _PARTITIONS = (0, b"QFI\xfb"), (510, b"\x55\xaa")

# The kernel has the same limit on symbolic links in one path.
_MOST_LINKS = 40
# How a layer marks a file, or all of a directory's content, as removed (OCI image specification).
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"


def unpack_container(name: str) -> Path:
    """Unpacks a container image and returns its directory.

    It is an archive that `podman save` or `docker save` wrote, or an image in podman's or docker's storage. Raises
    `ValueError` with a one-line message if the image is not available.
    """
    path = _expand_path(name)
    if path.is_file():
        return unpack_once(
            "images", f"layers-{_make_image_key(path)}", lambda root: _unpack_saved(path, root)
        )
    return _unpack_from_engine(name)


def unpack_root(text: str) -> Path:
    """Unpacks a root filesystem from a container image, a tar archive, a squashfs, or an ext2, ext3 or ext4 image.

    Returns the directory. Raises `ValueError` with a one-line message for other files.
    """
    name = text.removeprefix(IMAGE)
    path = _expand_path(name)
    if not path.is_file() and text != name:
        return _unpack_from_engine(name)
    for at, magic, make in ((*_SQUASHFS, _unpack_squashfs), (*_EXT, _unpack_ext)):
        if _has_magic(path, at, magic):
            return unpack_once("images", f"root-{_make_image_key(path)}", _announce_unpacking(path, make))
    if tarfile.is_tarfile(path):
        return unpack_once("images", f"root-{_make_image_key(path)}", _announce_unpacking(path, _unpack_tar))
    for at, magic in (_QCOW, _PARTITIONS):
        if _has_magic(path, at, magic):
            raise ValueError(
                f"{path} is a whole disk; use the root filesystem on it instead (qemu-img convert makes the image raw, "
                "losetup -P shows its partitions)"
            )
    raise ValueError(f"{path} is not a tar archive, a container image, a squashfs or an ext4 filesystem")


def unpack_once(folder: str, name: str, make: Callable[[Path], None]) -> Path:
    """Returns the directory `name` in the cache. If it does not exist, `make` fills it, in one process at a time."""
    home = locate_cache() / folder
    home.mkdir(exist_ok=True)
    target = home / name
    with open(home / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        with scratch_directory("part", home) as scratch:
            made = scratch / "root"
            made.mkdir()
            try:
                make(made)
            except (OSError, subprocess.SubprocessError) as error:
                raise ValueError(f"{target} cannot be created: {error}") from error
            made.rename(target)
    return target


def _expand_path(name: str) -> Path:
    return Path(os.path.expanduser(name)).absolute()


def _make_image_key(path: Path) -> str:
    status = path.stat()
    return hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:20]


def _has_magic(path: Path, at: int, magic: bytes) -> bool:
    with path.open("rb") as stream:
        stream.seek(at)
        return stream.read(len(magic)) == magic


def _announce_unpacking(path: Path, make: Callable[[Path, Path], None]) -> Callable[[Path], None]:
    def made(root: Path) -> None:
        tell_user(f"unpacking {path}; this is needed only once")
        make(path, root)
        _remove_privileges(root)

    return made


# --- container images and archives ------------------------------------------------------------------------------------


def _unpack_from_engine(name: str) -> Path:
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        raise ValueError(
            f"there is no archive {name!r}, and neither podman nor docker is installed to provide such an image"
        )
    asked = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}}", name], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise ValueError(f"{os.path.basename(engine)} has no image {name!r}; pull it first")
    key = asked.stdout.strip().removeprefix("sha256:")[:20]
    return unpack_once("images", f"layers-{key}", lambda root: _export_container(engine, name, root))


def _export_container(engine: str, name: str, root: Path) -> None:
    made = subprocess.run([engine, "create", name, "true"], capture_output=True, text=True, check=False)
    if made.returncode:
        raise ValueError(f"{engine} create {name} failed: {made.stderr.strip()[:200]}")
    container = made.stdout.strip().splitlines()[-1]
    try:
        archive = root.parent / "export.tar"
        subprocess.run([engine, "export", "-o", archive, container], check=True, capture_output=True)
        unpack_layer(archive, root)
        archive.unlink()
        _remove_privileges(root)
    finally:
        subprocess.run([engine, "rm", container], capture_output=True, check=False)


def _unpack_saved(archive: Path, root: Path) -> None:
    """Unpacks an archive that `podman save` or `docker save` wrote, in either of its formats."""
    tell_user(f"unpacking {archive}; this is needed only once")
    with scratch_directory("layers", root.parent) as parts:
        unpack_layer(archive, parts)
        _unpack_layers(parts, archive, root)
    _remove_privileges(root)


def _unpack_layers(parts: Path, archive: Path, root: Path) -> None:
    for layer in _order_layers(parts):
        blob = (parts / layer).resolve()
        if not blob.is_relative_to(parts.resolve()) or not blob.is_file():
            raise ValueError(f"{archive} lacks the layer {layer}")
        unpack_layer(blob, root)


def _order_layers(parts: Path) -> Sequence[str]:
    try:
        if (parts / "manifest.json").is_file():
            layers: list[str] = json.loads((parts / "manifest.json").read_text())[0]["Layers"]
            return layers
        described = json.loads((parts / "index.json").read_text())
        while "layers" not in described:
            described = json.loads((parts / _find_blob(described["manifests"][0])).read_text())
        return [_find_blob(layer) for layer in described["layers"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"it is not a container image: {error}") from error


def _find_blob(described: Mapping[str, Any]) -> str:
    kind, _, digest = str(described["digest"]).partition(":")
    return f"blobs/{kind}/{digest}"


def _unpack_tar(archive: Path, root: Path) -> None:
    """Unpacks a tar archive with a root filesystem or with a container image."""
    unpack_layer(archive, root)
    if any((root / name).is_file() for name in ("manifest.json", "index.json")):
        parts = root.rename(root.with_name("parts"))
        root.mkdir()
        _unpack_layers(parts, archive, root)


# --- filesystems ------------------------------------------------------------------------------------------------------


def _unpack_squashfs(image: Path, root: Path) -> None:
    # unsquashfs fails to create device nodes, which only root may do; the root filesystem does not need them.
    _run_tool(
        "unsquashfs",
        "squashfs-tools",
        "-no-progress",
        "-no-xattrs",
        "-no-exit-code",
        "-force",
        "-dest",
        root,
        image,
    )


def _unpack_ext(image: Path, root: Path) -> None:
    """Unpacks an image with debugfs, which needs no privileges, from a copy in which e2fsck replayed the journal."""
    copy = root.with_name("image")
    subprocess.run(
        ["cp", "--sparse=always", "--reflink=auto", image, copy],
        check=True,
        capture_output=True,
        timeout=_UNPACK_S,
    )
    _run_tool("e2fsck", "e2fsprogs", "-fy", copy, good=(0, 1))
    _run_tool("debugfs", "e2fsprogs", "-R", f"rdump / {root.name}", copy.name, cwd=root.parent)
    copy.unlink()


def _run_tool(
    program: str, package: str, *words: str | Path, good: Sequence[int] = (0,), cwd: Path | None = None
) -> None:
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if path is None:
        raise ValueError(f"{program} is not installed; install the package {package}")
    done = subprocess.run(
        [path, *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_UNPACK_S,
        check=False,
        cwd=cwd,
    )
    if done.returncode not in good:
        message = " ".join((done.stderr or done.stdout).split()) or f"exit status {done.returncode}"
        raise ValueError(f"{program} failed: {message[:200]}")


def _remove_privileges(root: Path) -> None:
    """Removes what could affect this host, and makes the usual directories world-writable."""
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                continue
            if stat.S_ISDIR(mode):
                path.chmod(stat.S_IMODE(mode) & 0o755 | 0o700)
            elif stat.S_ISREG(mode):
                path.chmod(stat.S_IMODE(mode) & 0o755 | 0o600)
            else:
                path.unlink()
    for name in _WORLD_WRITABLE:
        with contextlib.suppress(OSError, ValueError):
            resolve_inside(root, name).chmod(0o1777)


# --- layers of container images, whose names and links are not trusted: nothing is written outside the directory


def unpack_layer(archive: Path, root: Path) -> None:
    """Adds a layer to the files in `root`, and removes those that the layer marks as removed.

    Only directories, files and links are unpacked. Links are resolved as in a container, with `root` as the root
    directory. Raises `ValueError` for a file that is not a layer or points outside the image.
    """
    try:
        with tarfile.open(archive) as layer:
            for entry in layer:
                _add_entry(layer, entry, root)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise ValueError(f"{archive.name} cannot be unpacked: {error}") from error


def _add_entry(layer: tarfile.TarFile, entry: tarfile.TarInfo, root: Path) -> None:
    parts = PurePosixPath(entry.name).parts
    name = PurePosixPath(*(part for part in parts if part not in {"/", "."}))
    if ".." in parts:
        raise ValueError(f"{entry.name} points outside the image")
    if not name.name:
        return
    # The parent may be a link from an earlier layer, which must not lead out of the image.
    folder = resolve_inside(root, str(name.parent))
    if name.name.startswith(_WHITEOUT):
        if name.name != _OPAQUE:
            _remove_path(folder / name.name.removeprefix(_WHITEOUT))
        elif folder.is_dir():
            for path in folder.iterdir():
                _remove_path(path)
        return
    path = folder / name.name
    if entry.isdir():
        if not path.is_dir() or path.is_symlink():
            _remove_path(path)
        path.mkdir(parents=True, exist_ok=True)
        return
    if not (entry.isfile() or entry.issym() or entry.islnk()):
        # Devices, pipes and other special files are left out.
        return
    folder.mkdir(parents=True, exist_ok=True)
    _remove_path(path)
    if entry.issym():
        path.symlink_to(entry.linkname)
    elif entry.islnk():
        target = PurePosixPath("/") / entry.linkname
        shutil.copy2(resolve_inside(root, str(target.parent)) / target.name, path, follow_symlinks=False)
    else:
        content = layer.extractfile(entry)
        assert content is not None  # it is a file
        with path.open("xb") as stream:
            shutil.copyfileobj(content, stream)
        # The set-user-ID bits are dropped, and this user can read and write the file, to copy and remove it.
        path.chmod(entry.mode & 0o755 | 0o600)


def resolve_inside(root: Path, name: str) -> Path:
    """Resolves a name in an image, which need not exist: its links are followed, and `/` and `..` end at `root`.

    Raises `ValueError` if links form a loop.
    """
    waiting = list(reversed(PurePosixPath(name).parts))
    found = root
    links = 0
    while waiting:
        part = waiting.pop()
        if part == "..":
            if found != root:
                found = found.parent
        elif part == "/":
            found = root
        elif part != ".":
            step = found / part
            if not step.is_symlink():
                found = step
                continue
            links += 1
            if links > _MOST_LINKS:
                raise ValueError(f"{name}: its symbolic links form a loop")
            waiting += reversed(PurePosixPath(os.readlink(step)).parts)
    return found


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

"""QEMUs from elsewhere: a version that the package sources have, or one inside a container image; nothing is installed.

Both are unpacked into the cache, once. They run with this host's libraries, which is tried before they are used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from guestmark.appliance.paths import cache_directory
from guestmark.foreign.layers import inside, unpack
from guestmark.foreign.packages import ask
from guestmark.page.text import inert

APT, IMAGE = "apt:", "image:"  # before a version, and before an archive's path or an image's name
PROGRAM = "qemu-system-x86_64"
_PACKAGE, _COMMON, _DATA = "qemu-system-x86", "qemu-system-common", "qemu-system-data"  # of one source
_FIRMWARE = ("seabios", "ipxe-qemu")  # of sources of their own; the newest will do
_REBUILT = re.compile(
    r"\+b[0-9]+$"
)  # of packages of one architecture; that of all architectures has no such ending
_VERSION = re.compile(r"[0-9A-Za-z.+:~-]+", re.ASCII)
_FETCH_S = 600.0
_TRY_S = 30.0


def is_elsewhere(text: str) -> bool:
    """Whether a level names a source of this kind."""
    return text.startswith((APT, IMAGE))


def found(text: str) -> str:
    """The path of the QEMU that a level such as `apt:1:7.2+dfsg-7` names, fetched and unpacked where it is not yet.

    Raises `ValueError` with one line when it cannot be had or does not run here.
    """
    root = _of_apt(text.removeprefix(APT)) if text.startswith(APT) else _of_image(text.removeprefix(IMAGE))
    program = next((path for path in _programs(root) if path.is_file()), None)
    if program is None:
        raise ValueError(f"{text} has no {PROGRAM}")
    _try(program, text)
    return str(program)


def _programs(root: Path) -> Iterator[Path]:
    for folder in ("usr/bin", "usr/local/bin", "bin", "usr/libexec"):
        yield inside(root, f"{folder}/{PROGRAM}")


def _try(program: Path, text: str) -> None:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the QEMU of {text} does not run here: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ValueError(f"the QEMU of {text} does not run with this host's libraries: {said[:200]}")


# --- the package sources ----------------------------------------------------------------------------------------------


def versions() -> list[str]:
    """The versions of QEMU that the package sources of this host have, the newest first."""
    lines = (line.split("|") for line in ask(("madison", _PACKAGE)).splitlines())
    return list(dict.fromkeys(parts[1].strip() for parts in lines if len(parts) > 1))


def _of_apt(version: str) -> Path:
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is no version of a package")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ValueError(f"apt:{version} needs apt-get, which this system does not have")
    return _unpacked(f"apt-{version.replace(':', '_')}", lambda root: _fetch(version, root))


def _fetch(version: str, root: Path) -> None:
    known = versions()
    if version not in known:
        there = f"they have {', '.join(known)}" if known else "they have none; apt-get update reads them"
        raise ValueError(f"the package sources have no QEMU {version}: {there}")
    _tell(f"fetching QEMU {version} from the package sources, once")
    wanted = [
        f"{_PACKAGE}={version}",
        f"{_COMMON}={version}",
        f"{_DATA}={_REBUILT.sub('', version)}",
        *_FIRMWARE,
    ]
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        done = subprocess.run(
            ["apt-get", "-oAPT::Sandbox::User=", "download", *wanted],
            cwd=scratch, capture_output=True, text=True, timeout=_FETCH_S, check=False,
        )  # fmt: skip
        archives = sorted(Path(scratch).glob("*.deb"))
        if done.returncode or len(archives) < len(wanted):
            said = done.stderr.strip().splitlines()[-1:] or ["nothing was said"]
            raise ValueError(f"apt-get download of QEMU {version} failed: {said[0]}")
        for archive in archives:
            subprocess.run(
                ["dpkg-deb", "-x", archive, root], check=True, capture_output=True, timeout=_FETCH_S
            )


# --- container images -------------------------------------------------------------------------------------------------


def _of_image(name: str) -> Path:
    path = Path(os.path.expanduser(name)).absolute()
    if path.is_file():
        status = path.stat()
        key = hashlib.sha256(f"{path} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:20]
        return _unpacked(f"image-{key}", lambda root: _layers(path, root))
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None:
        raise ValueError(
            f"there is no archive {name!r}, and neither podman nor docker to ask for such an image"
        )
    asked = subprocess.run(
        [engine, "image", "inspect", "--format", "{{.Id}}", name], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        raise ValueError(f"{os.path.basename(engine)} has no image {name!r}; pull it first")
    key = asked.stdout.strip().removeprefix("sha256:")[:20]
    return _unpacked(f"image-{key}", lambda root: _exported(engine, name, root))


def _exported(engine: str, name: str, root: Path) -> None:
    made = subprocess.run([engine, "create", name, "true"], capture_output=True, text=True, check=False)
    if made.returncode:
        raise ValueError(f"{engine} create {name} failed: {made.stderr.strip()[:200]}")
    container = made.stdout.strip().splitlines()[-1]
    try:
        archive = root.parent / "export.tar"
        subprocess.run([engine, "export", "-o", archive, container], check=True, capture_output=True)
        unpack(archive, root)
        archive.unlink()
    finally:
        subprocess.run([engine, "rm", container], capture_output=True, check=False)


def _layers(archive: Path, root: Path) -> None:
    """Unpacks what `podman save` or `docker save` wrote, in either of its formats."""
    _tell(f"unpacking {archive}, once")
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        parts = Path(scratch)
        unpack(archive, parts)
        for layer in _ordered(parts):
            blob = (parts / layer).resolve()
            if not blob.is_relative_to(parts.resolve()) or not blob.is_file():
                raise ValueError(f"{archive} lacks its layer {layer}")
            unpack(blob, root)


def _ordered(parts: Path) -> Sequence[str]:
    try:
        if (parts / "manifest.json").is_file():
            layers: list[str] = json.loads((parts / "manifest.json").read_text())[0]["Layers"]
            return layers
        described = json.loads((parts / "index.json").read_text())
        while "layers" not in described:
            described = json.loads((parts / _blob(described["manifests"][0])).read_text())
        return [_blob(layer) for layer in described["layers"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"it is no container image: {error}") from error


def _blob(described: Mapping[str, Any]) -> str:
    kind, _, digest = str(described["digest"]).partition(":")
    return f"blobs/{kind}/{digest}"


# --- the cache --------------------------------------------------------------------------------------------------------


def _unpacked(name: str, make: Callable[[Path], None]) -> Path:
    """The directory of that name in the cache, made when it is not there, by one process at a time."""
    home = cache_directory() / "qemus"
    home.mkdir(exist_ok=True)
    target = home / name
    with open(home / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix="part-", dir=home) as scratch:
            root = Path(scratch) / "root"
            root.mkdir()
            try:
                make(root)
            except (OSError, subprocess.SubprocessError) as error:
                raise ValueError(f"{name} cannot be made: {error}") from error
            root.rename(target)
    return target


def _tell(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"guestmark: {inert(text)}\n")
        sys.stderr.flush()

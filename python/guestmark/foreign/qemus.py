"""Provides other QEMUs: a version in the package sources, or one in a container image; nothing is installed.

Both are unpacked into the cache once. They run with this host's libraries, which is tested before they are used.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.architectures import find_host_architecture
from guestmark.core.platform_kind import Program
from guestmark.core.temporary import scratch_directory
from guestmark.foreign.images import IMAGE, resolve_inside, unpack_container, unpack_once
from guestmark.foreign.packages import query_apt_cache
from guestmark.foreign.progress import tell_user

# Prefix of a level that names a package version.
APT = "apt:"
# Built from the same source as the emulators, so their versions must match.
_COMMON, _DATA = "qemu-system-common", "qemu-system-data"
# Built from other sources; their newest versions work with every QEMU.
_FIRMWARE = ("seabios", "ipxe-qemu")
# Version suffix of packages that were rebuilt for one architecture; packages for all architectures do not have it.
_REBUILT = re.compile(r"\+b[0-9]+$")
_VERSION = re.compile(r"[0-9A-Za-z.+:~-]+", re.ASCII)
_FETCH_S = 600.0
_TRY_S = 30.0


def is_elsewhere(text: str) -> bool:
    """Returns whether a level names a QEMU to download or to unpack."""
    return text.startswith((APT, IMAGE))


def find_qemu(text: str) -> str:
    """Returns the path of the QEMU that a level such as `apt:1:7.2+dfsg-7` names.

    Downloads and unpacks it first if needed. Raises `ValueError` with a one-line message if it is not available or does
    not run here.
    """
    if text.startswith(APT):
        root = _unpack_from_apt(text.removeprefix(APT))
    else:
        root = unpack_container(text.removeprefix(IMAGE))
    for program in _list_qemu_paths(root):
        if program.is_file():
            _try_program(program, text)
            return str(program)
    raise ValueError(f"{text} has no {_find_host_emulator().name}")


def _list_qemu_paths(root: Path) -> Iterator[Path]:
    for folder in ("usr/bin", "usr/local/bin", "bin", "usr/libexec"):
        yield resolve_inside(root, f"{folder}/{_find_host_emulator().name}")


def _try_program(program: Path, text: str) -> None:
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_TRY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the QEMU from {text} does not run here: {error}") from error
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise ValueError(f"the QEMU from {text} does not run with this host's libraries: {message[:200]}")


def list_versions() -> list[str]:
    """Returns the versions of QEMU in this host's package sources, the newest first."""
    versions = []
    for line in query_apt_cache(("madison", _find_host_emulator().package)).splitlines():
        columns = line.split("|")
        if len(columns) > 1:
            versions.append(columns[1].strip())
    return list(dict.fromkeys(versions))


def _unpack_from_apt(version: str) -> Path:
    if not _VERSION.fullmatch(version):
        raise ValueError(f"{version!r} is not a package version")
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ValueError(f"apt:{version} needs apt-get, which this system does not have")
    return unpack_once(
        "qemus", f"apt-{version.replace(':', '_')}", lambda root: _fetch_version(version, root)
    )


def _fetch_version(version: str, root: Path) -> None:
    known = list_versions()
    if version not in known:
        available = "they offer none; run apt-get update first"
        if known:
            available = f"they offer {', '.join(known)}"
        raise ValueError(f"the package sources have no QEMU {version}: {available}")
    tell_user(f"downloading QEMU {version} from the package sources; this is needed only once")
    wanted = [
        f"{_find_host_emulator().package}={version}",
        f"{_COMMON}={version}",
        f"{_DATA}={_REBUILT.sub('', version)}",
        *_FIRMWARE,
    ]
    with scratch_directory("packages", root.parent) as scratch:
        done = subprocess.run(
            ["apt-get", "-oAPT::Sandbox::User=", "download", *wanted],
            cwd=scratch, capture_output=True, text=True, timeout=_FETCH_S, check=False,
        )  # fmt: skip
        archives = sorted(scratch.glob("*.deb"))
        if done.returncode or len(archives) < len(wanted):
            message = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise ValueError(f"apt-get download of QEMU {version} failed: {message[0]}")
        for archive in archives:
            subprocess.run(
                ["dpkg-deb", "-x", archive, root], check=True, capture_output=True, timeout=_FETCH_S
            )


def _find_host_emulator() -> Program:
    """Returns the emulator of this host's own architecture."""
    return find_host_architecture().emulator

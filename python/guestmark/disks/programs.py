"""The programs that make and check images: finding them, running them with a deadline, passing on their errors."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from guestmark.agent.confinement import BUILDER
from guestmark.core.cause import Speaker, heard
from guestmark.core.errors import MachineError, PlatformUnusableError

_DEADLINE_S = 300.0
PACKAGES = {
    "qemu-img": "qemu-utils (Debian, Ubuntu) or qemu-img",
    "qemu-storage-daemon": "qemu-utils (Debian 13 and later) or qemu-system-common",
    "wipefs": "util-linux",
    "mke2fs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "dumpe2fs": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "xfs_repair": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "btrfs": "btrfs-progs",
    "mkfs.f2fs": "f2fs-tools",
    "mkfs.vfat": "dosfstools",
    "mkfs.exfat": "exfatprogs",
    "mkfs.nilfs2": "nilfs-tools",
    "mkfs.jfs": "jfsutils",
    "mkfs.erofs": "erofs-utils",
    "mksquashfs": "squashfs-tools",
}


def find(program: str) -> str:
    """Absolute path; the administrators' directories are searched too.

    Raises `PlatformUnusableError` naming the package.
    """
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise PlatformUnusableError(
            f"{program} is not installed", hint=f"install the package {PACKAGES.get(program, program)}"
        )
    return path


def run(
    program: str,
    *arguments: str,
    ok: Sequence[int] = (0,),
    deadline_s: float = _DEADLINE_S,
    writable: Sequence[Path] = (),
) -> str:
    """Runs a program and returns its output. Raises `MachineError` with its last words when it fails.

    It can change only what is `writable`: what it reads may have been written by a guest.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            BUILDER.around([find(program), *arguments], writable),
            capture_output=True, text=True, errors="replace", env=environment, stdin=subprocess.DEVNULL,
            timeout=deadline_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(f"{program} did not end within {deadline_s:g} s") from None
    if done.returncode not in ok:
        said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise MachineError(
            f"{program} failed: {'; '.join(said[:3])[:300] or f'exit status {done.returncode}'}",
            hint=f"the command was: {program} {' '.join(arguments)}",
            cause=heard(Speaker.ANY, done.stderr).cause,
        )
    return done.stdout

"""Runs programs that create, check and serve images; servers end with this process, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from guestmark.agent.binary import build_supervise_command
from guestmark.agent.confinement import BUILDER
from guestmark.core.cause import Speaker, classify_message
from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import MachineError, PlatformUnusableError
from guestmark.core.keeper import keeper
from guestmark.setting.base import quote_qemu_value

_DEADLINE_S = 300.0
PACKAGES = {
    "qemu-img": "qemu-utils",
    # In one or the other, depending on the release.
    "qemu-storage-daemon": "qemu-utils qemu-system-common",
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


def find_program(program: str) -> str:
    """Return the absolute path of a program; the directories for administrators' programs are searched too.

    Raises `PlatformUnusableError` naming the package.
    """
    # The PATH of ordinary users often lacks the directories of mkfs and wipefs.
    path = shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")
    if path is None:
        raise PlatformUnusableError(
            f"{program} is not installed", hint=make_install_hint(PACKAGES.get(program, program))
        )
    return path


def run_program(
    program: str,
    *arguments: str,
    ok: Sequence[int] = (0,),
    deadline_s: float = _DEADLINE_S,
    writable: Sequence[Path] = (),
) -> str:
    """Run a program and return its output. Raises `MachineError` with the last line of its output if it fails.

    The program can write only to the paths in `writable`, because a guest may have written what it reads.
    """
    # Messages are matched by their English text.
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            BUILDER.wrap_command([find_program(program), *arguments], writable),
            capture_output=True, text=True, errors="replace", env=environment, stdin=subprocess.DEVNULL,
            timeout=deadline_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MachineError(f"{program} did not finish within {deadline_s:g} s") from None
    if done.returncode not in ok:
        said = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        raise MachineError(
            f"{program} failed: {'; '.join(said[:3])[:300] or f'exit status {done.returncode}'}",
            hint=f"the command was: {program} {' '.join(arguments)}",
            cause=classify_message(Speaker.ANY, done.stderr).cause,
        )
    return done.stdout


DAEMON = "qemu-storage-daemon"
_READY_S = 10.0
_END_S = 5.0


@contextlib.contextmanager
def serve_image(
    command: Sequence[str], ready: Callable[[], bool], what: str, hint: str
) -> Iterator[Callable[[], None]]:
    """Run a server while the context lasts; yield a function that kills it earlier.

    Raises `MachineError` with `what` and the server's last line if the server ends before it is `ready`.
    """
    # The supervisor ends the server when the lifeline closes, which the kernel does even after SIGKILL.
    daemon, lifeline = _start_server(command)
    try:
        _wait_for_server(daemon, ready, what, hint)
        yield daemon.kill
    finally:
        os.close(lifeline)
        daemon.terminate()
        try:
            daemon.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.communicate()


@contextlib.contextmanager
def serve_over_nbd(image: Path, socket: Path) -> Iterator[None]:
    """Serve the bytes of an image over NBD at a local socket, as an export called `disk`."""
    command = [
        find_program(DAEMON), "--blockdev", f"driver=file,node-name=image,filename={quote_qemu_value(image)}",
        "--nbd-server", f"addr.type=unix,addr.path={quote_qemu_value(socket)}",
        "--export", "type=nbd,id=disk,node-name=image,name=disk,writable=on",
    ]  # fmt: skip
    with serve_image(
        command, socket.is_socket, "the image cannot be served over NBD", "see qemu-storage-daemon(1)"
    ):
        yield


def _start_server(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    theirs, ours = os.pipe()
    held = keeper().handles
    try:
        daemon = subprocess.Popen(
            build_supervise_command(command, lifeline_fd=theirs, hold=held),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs, *held),
            # Ctrl-C reaches the foreground process group; the server has to outlive the clean-up of the
            # trial.
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return daemon, ours


def _wait_for_server(
    daemon: subprocess.Popen[bytes], ready: Callable[[], bool], what: str, hint: str
) -> None:
    deadline = time.monotonic() + _READY_S
    while not ready():
        if daemon.poll() is not None:
            assert daemon.stderr is not None
            lines = daemon.stderr.read().decode(errors="replace").strip().splitlines()
            said = f"exit status {daemon.returncode}"
            if lines:
                said = lines[-1]
            raise MachineError(f"{what}: {said}", hint=hint)
        if time.monotonic() > deadline:
            raise MachineError(f"{what}: its server was not ready within {_READY_S:g} s", hint=hint)
        time.sleep(0.005)

"""Programs that serve images as files or over sockets; they end with this process, however that ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from guestmark.agent.binary import supervised
from guestmark.agent.keeper import keeper
from guestmark.core.errors import MachineError
from guestmark.disks import programs

DAEMON = "qemu-storage-daemon"
_READY_S = 10.0
_END_S = 5.0


@contextlib.contextmanager
def serving(
    command: Sequence[str], ready: Callable[[], bool], what: str, hint: str
) -> Iterator[Callable[[], None]]:
    """The server while the context lasts; yields how to kill it before.

    Raises `MachineError`, "`what` cannot be …", with the server's last words when it does not get `ready`.
    """
    daemon, lifeline = _start(command)
    try:
        _await(daemon, ready, what, hint)
        yield daemon.kill
    finally:
        os.close(lifeline)
        daemon.terminate()
        try:
            daemon.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.communicate()


def quoted(path: Path) -> str:
    """As QEMU's options want a value."""
    return str(path).replace(",", ",,")


@contextlib.contextmanager
def over_nbd(image: Path, socket: Path) -> Iterator[None]:
    """Serves the bytes of an image over NBD at a local socket, as an export called `disk`."""
    command = [
        programs.find(DAEMON), "--blockdev", f"driver=file,node-name=image,filename={quoted(image)}",
        "--nbd-server", f"addr.type=unix,addr.path={quoted(socket)}",
        "--export", "type=nbd,id=disk,node-name=image,name=disk,writable=on",
    ]  # fmt: skip
    with serving(
        command, socket.is_socket, "the image cannot be served over NBD", "see qemu-storage-daemon(1)"
    ):
        yield


def _start(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    theirs, ours = os.pipe()
    held = keeper().lifeline
    try:
        daemon = subprocess.Popen(
            supervised(command, lifeline_fd=theirs, hold=[held]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(theirs, held),
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    return daemon, ours


def _await(daemon: subprocess.Popen[bytes], ready: Callable[[], bool], what: str, hint: str) -> None:
    deadline = time.monotonic() + _READY_S
    while not ready():
        if daemon.poll() is not None:
            assert daemon.stderr is not None
            lines = daemon.stderr.read().decode(errors="replace").strip().splitlines()
            said = lines[-1] if lines else f"exit status {daemon.returncode}"
            raise MachineError(f"{what}: {said}", hint=hint)
        if time.monotonic() > deadline:
            raise MachineError(f"{what}: its server was not ready within {_READY_S:g} s", hint=hint)
        time.sleep(0.005)

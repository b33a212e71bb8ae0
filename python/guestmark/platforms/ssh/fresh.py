"""Making another machine fresh before a trial: by the user's own command, since every hypervisor has its own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING

from guestmark.core.errors import MachineError, UsageError
from guestmark.page.text import last_line
from guestmark.platforms.ssh.factors import READY, RESTART

if TYPE_CHECKING:
    from guestmark.core.model import Cell

_PAUSE_S = 1.0
_END = 64 << 10  # bytes of what a command printed that are looked at
DEST = "GUESTMARK_DEST"  # in the environment of these commands


def restart(cell: Cell, dest: str, deadline: float) -> bool:
    """Runs the command of the factor `restart`, then that of `ready` until it succeeds; whether there was one.

    `deadline` is `time.monotonic`'s. Raises `MachineError` when a command fails or takes too long.
    """
    command, ready = cell.factors.get(RESTART.name), cell.factors.get(READY.name)
    if command is None:
        if ready is not None:
            raise UsageError(f"{cell.id}: ready goes with restart", hint="--set restart=COMMAND")
        return False
    status, said = _run(command, dest, deadline)
    if status != 0:
        raise MachineError(
            f"{dest} was not restarted: {_how(status)}{said}", hint=f"try it by hand: {command}"
        )
    if ready is not None:
        await_ready(ready, dest, deadline)
    return True


def await_ready(command: str, dest: str, deadline: float) -> None:
    """Runs the command once a second until it succeeds. Raises `MachineError` at the deadline."""
    while True:
        status, said = _run(command, dest, deadline)
        if status == 0:
            return
        if time.monotonic() + _PAUSE_S > deadline:
            raise MachineError(
                f"{dest} did not become ready: {_how(status)}{said}", hint=f"try it by hand: {command}"
            )
        time.sleep(_PAUSE_S)


def _run(command: str, dest: str, deadline: float) -> tuple[int | None, str]:
    """Exit status, None for a command that took too long and was killed, and what it said last.

    What it prints goes to a file: a machine that it starts in the background may hold its output for ever.
    """
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={**os.environ, DEST: dest},
            start_new_session=True,
        )
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return None, ""
            raise
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _END))
        output = printed.read(_END)
    last = last_line(output.decode(errors="replace"))
    return process.returncode, f": {last}" if last else ""


def _how(status: int | None) -> str:
    return "its command took too long" if status is None else f"its command ended with status {status}"

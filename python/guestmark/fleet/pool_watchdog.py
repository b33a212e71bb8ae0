"""Watches the engine's worker on a machine, and ends it as a whole when a part of it is gone or hangs.

The engine's worker is a process that speaks with the engine, one that measures and one that keeps what these share.
When the one that measures dies the engine starts another. But an idle one dies with the lock of their queue in its
hands, and when what they share is gone nobody is told: then the machine seems to be there and never does anything.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from pathlib import Path

from guestmark.disks.processes import is_stopped, list_children
from guestmark.fleet import parsl_engine

_LOOK_S = 5.0
_COMING_S = 0.25  # while the parts are started
_PARTS = 2
_ORDERLY_S = 0.5  # between the end of the first part and of the whole, when that ends by itself
# In the command lines of the whole and of each part, which is a process of Python's multiprocessing.
POOL, _PART = "parsl.executors.high_throughput.process_worker_pool", b"spawn_main"
# The whole, whose parts end with it, also when it was killed and they hang or are stopped (PR_SET_PDEATHSIG, SIGKILL).
TIED_POOL = (
    "import runpy, sys; from multiprocessing import spawn; line = spawn.get_command_line; "
    "tie = 'import ctypes; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); '; "
    "spawn.get_command_line = lambda **given: "
    "[tie + word if 'spawn_main' in str(word) else word for word in line(**given)]; "
    f"runpy.run_module('{POOL}', run_name='__main__', alter_sys=True)"
)


def watch_pool(process: subprocess.Popen[bytes]) -> bool:
    """Until `process`, which supervises the engine's worker, has ended; whether it ended because a part of it did."""
    parts: dict[int, int] = {}  # process id and what tells of its end
    stopped: dict[int, float] = {}
    whole = os.pidfd_open(process.pid)
    try:
        while True:
            pools = [pid for pid in list_children(process.pid) if POOL.encode() in _read_command(pid)]
            for pid in (part for pool in pools for part in list_children(pool)):
                if pid not in parts and _PART in _read_command(pid):
                    with contextlib.suppress(ProcessLookupError):
                        parts[pid] = os.pidfd_open(pid)
            ended = _wait_for_end([whole, *parts.values()], _COMING_S if len(parts) < _PARTS else _LOOK_S)
            if ended and whole not in ended and not _wait_for_end([whole], _ORDERLY_S):
                for pool in pools:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pool, signal.SIGKILL)
                return True
            if ended:
                return False
            stopped = _kill_stopped_parts(parts, stopped)
    finally:
        for handle in (whole, *parts.values()):
            os.close(handle)


def find_pool_processes() -> list[int]:
    """The engine's processes that belong to the one that measures here, which is this one; none without the engine."""
    pool = os.getppid()
    if POOL.encode() not in _read_command(pool):
        return []
    return [pool, *(pid for pid in list_children(pool) if pid != os.getpid())]


def _wait_for_end(handles: list[int], within_s: float) -> set[int]:
    """Those whose process has ended; waits for the first."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return {handle for handle, _ in poll.poll(within_s * 1000)}


def _kill_stopped_parts(parts: dict[int, int], stopped: dict[int, float]) -> dict[int, float]:
    """Kills what has been stopped for long: the engine hears from another process, and would wait for ever."""
    now = time.monotonic()
    stopped = {pid: stopped.get(pid, now) for pid in parts if is_stopped(pid)}
    for pid, since in stopped.items():
        if now - since > parsl_engine.GIVE_UP_S:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(parts[pid], signal.SIGKILL)
    return stopped


def _read_command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""

"""Watches the engine's worker on a machine, and kills all of its processes if one of them ends or hangs.

The worker pool has a main process, which talks to the engine, a process that measures, and one that manages what these
two share. If the measuring process dies, the engine starts another. But if it dies while idle, it still holds the lock
of their queue, and no process notices when the manager dies: the machine then seems to be present but does nothing.
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
# The time between two checks while the processes start.
_COMING_S = 0.25
_PARTS = 2
# A worker that ends normally takes at most this long after its first process has ended.
_ORDERLY_S = 0.5
# Words that identify the worker pool's main process and its multiprocessing children by their command lines.
POOL, _PART = "parsl.executors.high_throughput.process_worker_pool", b"spawn_main"
# Starts the main process so that the kernel kills its children when it has ended, even if it was killed and they hang
# or are stopped (PR_SET_PDEATHSIG, SIGKILL).
TIED_POOL = (
    "import runpy, sys; from multiprocessing import spawn; line = spawn.get_command_line; "
    "tie = 'import ctypes; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); '; "
    "spawn.get_command_line = lambda **given: "
    "[tie + word if 'spawn_main' in str(word) else word for word in line(**given)]; "
    f"runpy.run_module('{POOL}', run_name='__main__', alter_sys=True)"
)


def watch_pool(process: subprocess.Popen[bytes]) -> bool:
    """Watch until `process`, the supervisor of the engine's worker, has ended; return whether a child ended first."""
    parts: dict[int, int] = {}  # process ids and pidfds
    stopped: dict[int, float] = {}
    parent = os.pidfd_open(process.pid)
    try:
        while True:
            pools = [pid for pid in list_children(process.pid) if POOL.encode() in _read_command(pid)]
            for pool in pools:
                _open_new_parts(pool, parts)
            ended = _wait_for_end([parent, *parts.values()], _COMING_S if len(parts) < _PARTS else _LOOK_S)
            if ended and parent not in ended and not _wait_for_end([parent], _ORDERLY_S):
                for pool in pools:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pool, signal.SIGKILL)
                return True
            if ended:
                return False
            stopped = _kill_stopped_parts(parts, stopped)
    finally:
        for handle in (parent, *parts.values()):
            os.close(handle)


def _open_new_parts(pool: int, parts: dict[int, int]) -> None:
    """Add the pool's processes that are not among `parts` yet, each with a pidfd."""
    for pid in list_children(pool):
        if pid not in parts and _PART in _read_command(pid):
            with contextlib.suppress(ProcessLookupError):
                parts[pid] = os.pidfd_open(pid)


def find_pool_processes() -> list[int]:
    """Return the worker pool's other processes if this one is its measuring process; empty outside of a fleet."""
    pool = os.getppid()
    if POOL.encode() not in _read_command(pool):
        return []
    return [pool, *(pid for pid in list_children(pool) if pid != os.getpid())]


def _wait_for_end(handles: list[int], within_s: float) -> set[int]:
    """Wait for the first of the processes to end; return the pidfds of those that have ended."""
    poll = select.poll()
    for handle in handles:
        poll.register(handle, select.POLLIN)
    return {handle for handle, _ in poll.poll(within_s * 1000)}


def _kill_stopped_parts(parts: dict[int, int], stopped: dict[int, float]) -> dict[int, float]:
    """Kill children that were stopped long ago: the engine still hears from the others, and would wait forever."""
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

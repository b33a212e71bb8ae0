"""A hypervisor's process, started so that nothing of it survives this object or a killed controller.

The agent's `supervise` mode is the parent of the hypervisor. It holds the read end of a pipe, the *lifeline*, whose
write end only the controller has: when the controller ends, however it ends, the supervisor sees the end of file, kills
the hypervisor with all its helper processes and removes the scratch directory.
"""

import bisect
import contextlib
import os
import re
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from guestmark.agent.binary import supervised
from guestmark.appliance.paths import scratch_parent
from guestmark.core.errors import MachineError
from guestmark.platforms.affinity import starting

_CONSOLE_LIMIT = 1 << 20
_STOP_DEADLINE_S = 5.0
_MAX_STAMPS = 50_000  # arrivals of output whose time is kept


class Console:
    """Collects a machine's output; the middle of very long output is replaced by a mark."""

    def __init__(self, stream: int, limit: int = _CONSOLE_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._head: list[bytes] = []
        self._tail: list[bytes] = []
        self._head_size = self._tail_size = self._dropped = 0
        self.first_output_at: float | None = None
        self.last_output_at: float | None = None
        self._stamps: list[tuple[int, float]] = []  # how much had arrived, and when
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="console", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Everything kept so far, as text; undecodable bytes are replaced."""
        with self._lock:
            parts = [b"".join(self._head)]
            if self._dropped:
                parts.append(f"\n[… {self._dropped} bytes of console output dropped …]\n".encode())
            parts.append(b"".join(self._tail))
        return b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n")

    def when(self, pattern: re.Pattern[bytes], *, last: bool = False) -> float | None:
        """When the first (or last) match of `pattern` had arrived, on the monotonic clock; None when there is none."""
        with self._lock:
            parts = [(self._head_size + self._dropped, b"".join(self._tail)), (0, b"".join(self._head))]
            for start, text in parts if last else parts[::-1]:
                ends = [match.end() for match in pattern.finditer(text)]
                if ends:
                    arrived = start + (ends[-1] if last else ends[0])
                    at = bisect.bisect_left(self._stamps, arrived, key=lambda stamp: stamp[0])
                    return self._stamps[min(at, len(self._stamps) - 1)][1]
        return None

    def join(self, timeout_s: float = 1.0) -> None:
        """Waits for the end of the output, which comes when the last process that holds it has ended."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._stream, 65536):
                now = time.monotonic()
                with self._lock:
                    if self.first_output_at is None:
                        self.first_output_at = now
                    self.last_output_at = now
                    self._keep(chunk)
                    if len(self._stamps) == _MAX_STAMPS:
                        self._stamps.pop()
                    self._stamps.append((self._head_size + self._dropped + self._tail_size, now))
        os.close(self._stream)

    def _keep(self, chunk: bytes) -> None:
        if self._head_size < self._limit // 2:
            self._head.append(chunk)
            self._head_size += len(chunk)
            return
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size > self._limit // 2 and len(self._tail) > 1:
            gone = self._tail.pop(0)
            self._tail_size -= len(gone)
            self._dropped += len(gone)


class SupervisedProcess:
    """One hypervisor under its supervisor, with a private scratch directory that is removed with it."""

    def __init__(self, name: str) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix=f"guestmark-{name}-", dir=scratch_parent()))
        self.command: tuple[str, ...] = ()
        self.started_at = 0.0
        self._console: Console | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    def start(self, command: Sequence[str], pass_fds: Sequence[int] = ()) -> None:
        """Starts `command`; its output becomes the console. Raises `MachineError` when it cannot be started."""
        self.command = tuple(command)
        lifeline, self._lifeline = os.pipe()
        output, output_write = os.pipe()
        wrapped = supervised(command, lifeline_fd=lifeline, remove=[str(self.scratch)])
        # Before the process, so that an interruption finds it, and not where the machine belongs: its thread is ours.
        self._console = Console(output)
        self.started_at = time.monotonic()
        try:
            with starting():
                self._process = subprocess.Popen(
                    wrapped,
                    stdin=subprocess.DEVNULL,
                    stdout=output_write,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lifeline, *pass_fds),
                    cwd=self.scratch,
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(f"{command[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
            os.close(output_write)

    @property
    def console(self) -> Console:
        """The collected output."""
        assert self._console is not None, "not started"
        return self._console

    def running(self) -> bool:
        """Whether the hypervisor is still running."""
        return self._process is not None and self._process.poll() is None

    def pid(self) -> int | None:
        """Process id of the hypervisor itself (the supervisor's first child)."""
        if self._process is None:
            return None
        try:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def wait(self, timeout_s: float) -> int | None:
        """Exit status of the hypervisor (128 + signal), None when it is still running at the end of `timeout_s`."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end_after(self, order: Callable[[], None], timeout_s: float) -> tuple[float, float | None]:
        """When `order` was given and when the hypervisor's own process had ended, on the monotonic clock.

        None for the latter when it is still there `timeout_s` later. The supervisor, which cleans up, ends after it.
        """
        assert self._process is not None, "not started"
        # Until the hypervisor exists, its supervisor stands in for it.
        handle = os.pidfd_open(self.pid() or self._process.pid) if self.running() else -1
        try:
            ordered = time.monotonic()
            order()
            ended = handle < 0 or bool(select.select([handle], [], [], timeout_s)[0])
            return ordered, time.monotonic() if ended else None
        finally:
            if handle >= 0:
                os.close(handle)

    def stop(self) -> None:
        """Stops the hypervisor and all its helpers and removes the scratch directory. May be called twice."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process is not None:
            try:
                self._process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its child dies with it (PR_SET_PDEATHSIG)
                self._process.wait()
            self.console.join()
        shutil.rmtree(self.scratch, ignore_errors=True)


def watchdog(process: SupervisedProcess, what: str) -> Callable[[], None]:
    """For loops that wait for a machine: raises `MachineError` with the console once it has ended."""

    def check() -> None:
        if not process.running():
            process.console.join()
            status = process.wait(0)
            raise MachineError(f"{what} ended with status {status}", console=process.console.text())

    return check

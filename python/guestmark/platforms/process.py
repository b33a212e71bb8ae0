"""A hypervisor's process, started so that none of its processes survives this object or a killed controller.

The agent's `supervise` mode is the parent of the hypervisor. It has the read end of a pipe, the *lifeline*, whose write
end only the controller has: when the controller ends, for any reason, the supervisor reads end of file and kills the
hypervisor with all its helper processes. The scratch directory belongs to the keeper (`core.keeper`), which starts
before the directory is created and removes it after the hypervisor has ended. The hypervisor itself is confined
(`agent.confinement`): if namespaces are available, the kernel ends all processes that it has started with it, and it
ends with the supervisor even if that is killed.
"""

import bisect
import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from guestmark.agent.binary import build_supervise_command
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.cause import classify_errno
from guestmark.core.errors import MachineError
from guestmark.core.keeper import keeper
from guestmark.disks.processes import find_confined_program
from guestmark.platforms import confinement
from guestmark.platforms.affinity import mark_machine_start
from guestmark.platforms.confinement import find_memory_directory

_CONSOLE_LIMIT = 1 << 20
_STOP_DEADLINE_S = 5.0
# The most arrivals of output whose times are kept; a later one replaces the last.
_MAX_STAMPS = 50_000


class Console:
    """Collects a machine's output; the middle of very long output is replaced with a note."""

    def __init__(self, stream: int, limit: int = _CONSOLE_LIMIT) -> None:
        self._stream = stream
        self._limit = limit
        self._head: list[bytes] = []
        self._tail: list[bytes] = []
        self._head_size = self._tail_size = self._dropped = 0
        self.first_output_at: float | None = None
        self.last_output_at: float | None = None
        # The total number of bytes that had arrived, and the time.
        self._stamps: list[tuple[int, float]] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._collect_output, name="console", daemon=True)
        self._thread.start()

    def read_text(self) -> str:
        """Returns the collected output as text; undecodable bytes are replaced."""
        with self._lock:
            parts = [b"".join(self._head)]
            if self._dropped:
                parts.append(f"\n[… {self._dropped} bytes of console output dropped …]\n".encode())
            parts.append(b"".join(self._tail))
        return b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n")

    def find_arrival(self, pattern: re.Pattern[bytes], *, last: bool = False) -> float | None:
        """Returns the monotonic time at which the first (or last) match of `pattern` had arrived; None without one."""
        with self._lock:
            parts = [(0, b"".join(self._head)), (self._head_size + self._dropped, b"".join(self._tail))]
            if last:
                parts.reverse()
            for start, text in parts:
                ends = [match.end() for match in pattern.finditer(text)]
                if last:
                    ends.reverse()
                if ends:
                    arrived = start + ends[0]
                    at = bisect.bisect_left(self._stamps, arrived, key=lambda stamp: stamp[0])
                    return self._stamps[min(at, len(self._stamps) - 1)][1]
        return None

    def wait_for_end(self, timeout_s: float = 1.0) -> None:
        """Waits until the last process that has the output open has ended."""
        self._thread.join(timeout_s)

    def _collect_output(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._stream, 65536):
                now = time.monotonic()
                with self._lock:
                    if self.first_output_at is None:
                        self.first_output_at = now
                    self.last_output_at = now
                    self._keep_chunk(chunk)
                    if len(self._stamps) == _MAX_STAMPS:
                        self._stamps.pop()
                    self._stamps.append((self._head_size + self._dropped + self._tail_size, now))
        os.close(self._stream)

    def _keep_chunk(self, chunk: bytes) -> None:
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
    """One hypervisor under a supervisor, with a private scratch directory that is removed with it."""

    def __init__(self, name: str, confinement: Confinement | None = HYPERVISOR) -> None:
        self.scratch = keeper().directory(name, choose_scratch_parent())
        self.command: tuple[str, ...] = ()
        self.writable: tuple[Path, ...] = (self.scratch,)
        self._confinement = confinement
        self._directories = [self.scratch]
        # Control groups, which limit its memory and processes.
        self.groups: tuple[Path, ...] = ()
        self.started_at = 0.0
        self._console: Console | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._ended = False
        self._ending = threading.Lock()
        # Processes with which it ends, by name.
        self.helpers: dict[str, SupervisedProcess] = {}

    def start(
        self,
        command: Sequence[str],
        pass_fds: Sequence[int] = (),
        *,
        writable: Iterable[Path] = (),
        within: Sequence[str] = (),
    ) -> None:
        """Starts `command`; its output becomes the console. Raises `MachineError` if it cannot be started.

        Except for its scratch directory it can change only what is `writable`. `within` is a prefix that executes the
        command after it, for instance in a namespace.
        """
        self.command = tuple(command)
        lifeline, ours = os.pipe()
        with self._ending:
            # If a helper has already ended, the lifeline is closed here, which ends the process at once.
            if self._ended:
                os.close(ours)
            else:
                self._lifeline = ours
        output, output_write = os.pipe()
        # The process that confines it also watches the lifeline, in case the supervisor is stopped by SIGSTOP.
        inner = os.dup(lifeline)
        held = keeper().handles
        wrapped = build_supervise_command(
            [*within, *self._wrap_confined(command, writable, inner)], lifeline_fd=lifeline, hold=held
        )
        # Created before the process, so that it exists if an interruption follows; and outside `mark_machine_start`,
        # because its thread belongs to the control plane.
        self._console = Console(output)
        self.started_at = time.monotonic()
        try:
            with mark_machine_start():
                self._process = subprocess.Popen(
                    wrapped,
                    stdin=subprocess.DEVNULL,
                    stdout=output_write,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lifeline, inner, *held, *pass_fds),
                    cwd=self.scratch,
                    start_new_session=True,
                )
        except OSError as error:
            raise MachineError(
                f"{command[0]} cannot be started: {error.strerror}", cause=classify_errno(error.errno)
            ) from error
        finally:
            os.close(lifeline)
            os.close(inner)
            os.close(output_write)
        threading.Thread(target=self._end_dependents, name=f"end of {command[0]}", daemon=True).start()

    def _end_dependents(self) -> None:
        """Waits for the process's end, then ends the processes that would outlive it."""
        # A negative status means that the supervisor was killed, so it cannot have ended the other processes.
        if (self.wait(None) or 0) < 0:
            end_confined_in(self.scratch)
        for helper in self.helpers.values():
            helper._close_lifeline()

    def _wrap_confined(self, command: Sequence[str], writable: Iterable[Path], lifeline: int) -> list[str]:
        if self._confinement is None:
            return list(command)
        temporary = over_temporary = None
        if self._confinement.writes_tmp:
            over_temporary = self.scratch / "over-tmp"
            over_temporary.mkdir()
        if self._confinement.memory_file and (parent := find_memory_directory()):
            temporary = keeper().directory("memory", parent)
            self._directories.append(temporary)
        self.writable = (self.scratch, *writable)
        if temporary:
            self.writable += (temporary,)
        self.groups = confinement.make_control_groups("machine")
        self._directories += self.groups
        return self._confinement.wrap_command(
            command,
            self.writable,
            temporary,
            over_temporary,
            lifeline=lifeline,
            groups=self.groups,
            scratch=self.scratch,
        )

    @property
    def console(self) -> Console:
        """The collected output."""
        assert self._console is not None, "not started"
        return self._console

    def end_with(self, name: str, helper: "SupervisedProcess") -> None:
        """Ends this process as soon as `helper` has ended, because it would otherwise wait for the helper forever.

        This also applies if this process is started later.
        """
        self.helpers[name] = helper

        def watch() -> None:
            helper.wait(None)
            self._close_lifeline()

        threading.Thread(target=watch, name=f"watch {name}", daemon=True).start()

    def is_running(self) -> bool:
        """Returns whether the hypervisor still runs."""
        return self._process is not None and self._process.poll() is None

    def pid(self) -> int | None:
        """Returns the process id of the hypervisor itself, not of the supervisor or of confining processes."""
        if self._process is None:
            return None
        try:
            pid = self._process.pid
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return find_confined_program(int(children[0])) if children else None

    def list_supervisors(self) -> list[int]:
        """Returns the process id of its supervisor, the ancestor of all its processes; empty before the start."""
        return [] if self._process is None else [self._process.pid]

    def list_pids(self) -> list[int]:
        """Returns the process id of the hypervisor itself; empty if it has ended."""
        pid = self.pid()
        return [] if pid is None else [pid]

    def wait(self, timeout_s: float | None) -> int | None:
        """Returns the hypervisor's exit status (128 + signal); None if it still runs after `timeout_s`."""
        assert self._process is not None, "not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end_after(self, order: Callable[[], None], timeout_s: float) -> tuple[float, float | None]:
        """Calls `order` and waits for the end of the hypervisor's own process; returns both monotonic times.

        The latter is None if the process still runs after `timeout_s`. The supervisor, which cleans up, ends later.
        """
        assert self._process is not None, "not started"
        # Before the hypervisor exists, the end of its supervisor counts.
        handle = -1
        if self.is_running():
            # It may end at any moment, even before it is opened.
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(self.pid() or self._process.pid)
        try:
            ordered = time.monotonic()
            order()
            if handle >= 0 and not select.select([handle], [], [], timeout_s)[0]:
                return ordered, None
            return ordered, time.monotonic()
        finally:
            if handle >= 0:
                os.close(handle)

    def stop(self) -> None:
        """Stops the hypervisor and all its helpers and removes the scratch directory. May be called twice."""
        self._close_lifeline()
        if self._process is not None:
            try:
                self._process.wait(_STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                # Its child is killed with it (PR_SET_PDEATHSIG).
                self._process.kill()
                self._process.wait()
            self.console.wait_for_end()
        for directory in self._directories:
            keeper().remove(directory)

    def _close_lifeline(self) -> None:
        with self._ending:
            self._ended = True
            if self._lifeline >= 0:
                os.close(self._lifeline)
                self._lifeline = -1


def end_confined_in(scratch: Path) -> None:
    """Kills the confined processes whose working directory is a machine's scratch directory.

    Without namespaces, as for users other than root, a hypervisor's helpers are ended by their parents. If those are
    killed, the helpers remain and keep the machine's channels open. See also `crates/agent/src/keep.rs`.
    """
    deadline = time.monotonic() + _STOP_DEADLINE_S
    while (found := list(_find_confined_in(scratch))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _find_confined_in(scratch: Path) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if Path(os.readlink(folder / "cwd").removesuffix(" (deleted)")).is_relative_to(scratch):
                status = (folder / "status").read_text().splitlines()
                if "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status:
                    yield int(folder.name)


def make_watchdog(process: SupervisedProcess, what: str) -> Callable[[], None]:
    """Returns a function that raises `MachineError` with the console once the process has ended.

    Loops that wait for a machine call it.
    """

    def check() -> None:
        if not process.is_running():
            process.console.wait_for_end()
            status = process.wait(0)
            raise MachineError(f"{what} exited with status {status}", console=process.console.read_text())

    return check

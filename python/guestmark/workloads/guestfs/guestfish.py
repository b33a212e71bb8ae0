"""Runs the real guestfish on this host, and records when each of its commands ended."""

from __future__ import annotations

import contextlib
import io
import os
import select
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from guestmark.agent.confinement import TEMPORARY_FILES
from guestmark.core import procfs
from guestmark.core.errors import AttestationError, WorkloadError
from guestmark.core.findings import Fact
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import ConfinementFacts
from guestmark.disks import processes
from guestmark.platforms.confinement import attest_process
from guestmark.platforms.libguestfs import GUESTFISH, build_environment_prefix, find_appliance_home, prepare
from guestmark.platforms.process import Console, SupervisedProcess
from guestmark.platforms.qemu.accelerators import KVM, TCG
from guestmark.setting.machine import MEMORY, SMP

_VERBOSE = {"LIBGUESTFS_DEBUG": "1", "LIBGUESTFS_TRACE": "1"}
_MIB = 1 << 20
_EXIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a script; the time at which it is reached is recorded."""

    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times on the host's monotonic clock at which guestfish started and reached each mark, and its QEMU's command."""

    started_at: float
    marks: dict[str, float]
    qemu: tuple[str, ...]
    ended_at: float
    console: Console  # its messages, with their times
    confined: ConfinementFacts | None = None  # by its kernel's report

    def get_seconds_between(self, first: str, second: str) -> float:
        """Returns the seconds between two marks."""
        return self.marks[second] - self.marks[first]


def run(
    accelerator: str,
    script: Sequence[str | Mark],
    timeout_s: float,
    *,
    verbose: bool = False,
    writable: Sequence[Path] = (),
) -> Timeline:
    """Runs guestfish commands one after the other, with marks between them, in a guest with `accelerator`.

    The script can change only those of this host's files that are in `writable`.

    `verbose` makes libguestfs and its guest trace their steps, which takes time. The first mark should follow the
    command `run`.

    Raises `WorkloadError` with guestfish's message if a command fails or time is up, `PlatformUnusableError` if
    libguestfs cannot be used here, `AttestationError` if its QEMU runs with another accelerator.
    """
    environment = prepare(accelerator)
    if verbose:
        environment = {**environment, **_VERBOSE}
    process = SupervisedProcess(GUESTFISH, TEMPORARY_FILES)
    # supermin takes this lock even if there is nothing to do.
    lock = find_appliance_home(environment["LIBGUESTFS_CACHEDIR"]) / "lock"
    # Confinement can make only existing files writable.
    lock.touch()
    with contextlib.ExitStack() as stack:
        stack.callback(process.stop)
        commands, write_commands = (stack.enter_context(end) for end in _open_pipe())
        read_marks, marks = (stack.enter_context(end) for end in _open_pipe())
        lines, names = _build_script_lines(script, marks.fileno())
        process.start(
            [
                *build_environment_prefix(environment, process.scratch), GUESTFISH,
                "-f", f"/dev/fd/{commands.fileno()}",
            ],
            pass_fds=(commands.fileno(), marks.fileno()),
            writable=(lock, *writable),
        )  # fmt: skip
        commands.close()
        marks.close()
        write_commands.write(("\n".join(lines) + "\n").encode())
        write_commands.close()
        return _follow_marks(process, read_marks, names, accelerator, timeout_s)


def _build_script_lines(script: Sequence[str | Mark], marks_fd: int) -> tuple[list[str], list[str]]:
    """Returns guestfish's commands, in which each mark writes its name to the descriptor; then the marks' names."""
    lines, names = [], []
    for step in script:
        if isinstance(step, Mark):
            names.append(step.name)
            lines.append(f"!echo {step.name} > /dev/fd/{marks_fd}")
        else:
            lines.append(step)
    return lines, names


def _follow_marks(
    process: SupervisedProcess, stream: io.FileIO, names: Sequence[str], accelerator: str, timeout_s: float
) -> Timeline:
    deadline = time.monotonic() + timeout_s
    reached: dict[str, float] = {}
    qemu: tuple[str, ...] = ()
    confined: ConfinementFacts | None = None
    while len(reached) < len(names):
        readable, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        now = time.monotonic()
        said = stream.read(4096) if readable else None
        if said is None:
            raise WorkloadError(
                f"guestfish did not reach {names[len(reached)]!r} within {timeout_s:.0f} s{_last_words(process)}"
            )
        if not said:
            break
        for name in said.decode().split():
            reached[name] = now
        # QEMU runs from the first mark on, and its command line is readable only while it runs.
        if not qemu:
            qemu = _attest_accelerator(process, accelerator)
            confined = attest_process(process.pid(), process.writable)
    _, ended_at = process.end_after(lambda: None, _EXIT_S)
    status = None if ended_at is None else process.wait(_EXIT_S)
    process.console.wait_for_end()
    if ended_at is None or status != 0 or len(reached) < len(names):
        ending = "did not exit" if status is None else f"exited with status {status}"
        raise WorkloadError(f"guestfish {ending}{_last_words(process)}")
    return Timeline(process.started_at, reached, qemu, ended_at, process.console, confined)


def build_size_commands(levels: Levels) -> list[str]:
    """Returns the commands that give libguestfs's guest the cell's memory and processors."""
    commands = []
    if MEMORY in levels:
        commands.append(f"set-memsize {levels[MEMORY] // _MIB}")
    if SMP in levels:
        commands.append(f"set-smp {levels[SMP]}")
    return commands


def _attest_accelerator(process: SupervisedProcess, accelerator: str) -> tuple[str, ...]:
    """Returns the command line of guestfish's QEMU. Raises `AttestationError` if it runs with another accelerator."""
    root = process.pid()
    for command, fds in _walk_descendants(root) if root is not None else ():
        if not command or "qemu" not in command[0]:
            continue
        has_kvm = any("kvm-vm" in fd for fd in fds)
        found = KVM.name if has_kvm else TCG.name
        if found != accelerator:
            raise AttestationError(
                f"libguestfs does not run as requested: asked for {accelerator}, found {found}"
            )
        return command
    raise AttestationError("libguestfs runs no QEMU, so its guest cannot be attested")


def _walk_descendants(root: int) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yields the command line and the open files of `root` and of each of its descendants."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += processes.list_children(pid)
        if command := procfs.read_words(pid):
            yield tuple(command), [end for _, end in procfs.list_open_files(pid)]


def _last_words(process: SupervisedProcess) -> str:
    lines = [line.strip() for line in process.console.read_text().splitlines() if line.strip()]
    if not lines:
        return ""
    errors = [line for line in lines if "error" in line.lower()]
    return f": {(errors or lines)[-1][:300]}"


def _open_pipe() -> tuple[io.FileIO, io.FileIO]:
    read_fd, write_fd = os.pipe()
    return io.FileIO(read_fd, "r"), io.FileIO(write_fd, "w")


class Guestfs(Fact, kw_only=True):
    """The program, the QEMU that it started, and for `guestfs-run` the launch whose phases are shown."""

    version: str | None = msgspec.field(name="guestfish", default=None)
    qemu: list[str] | None = msgspec.field(name="libguestfs_qemu", default=None)  # its command line
    confined: ConfinementFacts | None = msgspec.field(name="libguestfs_confined", default=None)
    calls: int | None = None  # calls of the API in a session
    # Time to ready of the launch that was traced.
    traced_ready_s: float | None = None
    # Time in which libguestfs checks its appliance before the guest starts.
    appliance_s: float | None = None
    features_s: float | None = None  # time in which it then tests QEMU's features

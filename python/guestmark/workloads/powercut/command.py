"""Runs the user's programs, which are judged by a check of the lines that they acknowledge, or by their own syncs."""

from __future__ import annotations

import functools
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guestmark.agent.background import Background
from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core import regex
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.own_program import find_agent_binary
from guestmark.core.units import format_size
from guestmark.disks.mounted import DISK, make_work_directory
from guestmark.powercut import calls
from guestmark.powercut.calls import AddedSyncs, Call
from guestmark.powercut.rebuilt import split_rebuilt
from guestmark.powercut.recovery import Recovered
from guestmark.powercut.syncs import FileState, Promises

_READ_S = 60.0
_LOOK_S, _STAT_S = 1.0, 60.0
_FULL_SHARE = 0.01  # share of free space below which a disk counts as full
_ERRORS, _ERRORS_KEPT = 2, 16 << 10
_LONGEST_LINE, _MOST_LINES = 1 << 20, 1_000_000
# Limits on the number of a program's promises that are judged, and on the bytes digested for them.
_MOST, _DIGESTED = 300, 1 << 30


class AcknowledgingProgram:
    """Runs the program on the disk. `lines` are its acknowledgements, if it makes any.

    Each line of its standard output is an acknowledgement; with `pattern`, each line that matches. It is answered by an
    empty line on standard input: a program that waits for this is judged exactly, any other from the moment at which
    its line arrived. `note` is called as soon as its disk is full.
    """

    def __init__(self, command: Sequence[str], pattern: str, note: Callable[[str], None]) -> None:
        self._command = command
        self._pattern = pattern
        self._note = note
        self._syncs: AddedSyncs | None = None
        self.lines: list[bytes] = []
        # Calls on the files of its disk, if it was traced.
        self.calls: list[Call] | None = None

    def follow_program(self, syncs: AddedSyncs) -> None:
        """Traces the program from now on, with syncs added to it."""
        self._syncs = syncs

    def run(self, agent: Agent, directory: str, mark: Callable[[int], None], limit_s: float) -> int:
        """Runs the program in the directory and marks each line; returns their number. Raises `WorkloadError`."""
        argv = [word.replace(DISK, directory) for word in self._command]
        # Tracing slows a program down, so it is done only when a loss has to be explained.
        if self._syncs is None:
            return self._run_program(agent, argv, directory, mark, limit_s)
        log = f"/tmp/guestmark-{secrets.token_hex(6)}.calls"
        added = []
        if self._syncs.each:
            added.append("--sync-before-said")
        if self._syncs.every:
            added.append("--sync-after-all")
        for call, path in self._syncs.after:
            added += ["--sync-after", f"{call}:{directory}/{path}"]
        try:
            followed = [PROGRAM, "follow", "--disk", directory, "--log", log, *added, "--", *argv]
            count = self._run_program(agent, followed, directory, mark, limit_s)
            self.calls = calls.parse_calls(agent.read_file(log).decode())
        finally:
            agent.exec(["rm", "-f", log], timeout_s=_READ_S)
        return count

    def _run_program(
        self, agent: Agent, argv: Sequence[str], directory: str, mark: Callable[[int], None], limit_s: float
    ) -> int:
        self.lines = []
        printed = PrintedLines()
        room = DiskRoom(agent, directory, printed, self._note)
        program = agent.background(argv, stdin=True, cwd=directory, hear=printed.add_output)
        deadline = time.monotonic() + limit_s
        while program.is_running and time.monotonic() < deadline:
            # The disk is watched even while a program prints nothing for long.
            program.wait(min(_LOOK_S, deadline - time.monotonic()), lambda _: printed.has_lines)
            self._take_lines(printed.take_lines(), program, mark)
            room.check_room()
        if program.is_running:
            program.send_signal(signal.SIGKILL)
            raise WorkloadError(
                f"{argv[0]} did not end within {limit_s:g} s{room.said or printed.quoted_errors}",
                hint=room.hint or "use a longer --trial-limit",
            )
        program.wait(0)  # the message says why it could not be started
        self._take_lines([*printed.take_lines(), *printed.take_last_line()], program, mark)
        room.check_room(now=True)
        ended = program.ended
        status = None if ended is None else ended.status
        if status != 0:
            how = "was killed by a signal" if status is None else f"exited with status {status}"
            raise WorkloadError(
                f"{argv[0]} {how}{room.said or printed.quoted_errors or ': it printed nothing'}",
                hint=room.hint or "it runs in the root directory of the disk, which {disk} stands for",
            )
        if self._pattern and not self.lines:
            raise WorkloadError(
                f"{argv[0]} printed no line that matches {self._pattern!r}, so nothing was acknowledged",
                hint="the expression of --acknowledge is searched for in each line of its standard output",
            )
        return len(self.lines)

    def _take_lines(self, lines: Sequence[bytes], program: Background, mark: Callable[[int], None]) -> None:
        for line in lines:
            if self._pattern and not self._is_acknowledgement(line):
                continue
            if len(self.lines) == _MOST_LINES:
                raise WorkloadError(
                    f"it acknowledged more than {_MOST_LINES:,} lines",
                    hint="select some of them with --acknowledge REGEX",
                )
            self.lines.append(line)
            # The mark is logged before the answer, so that later writes of a program that waits come after it.
            mark(len(self.lines))
            program.send_input(b"\n")

    def _is_acknowledgement(self, line: bytes) -> bool:
        try:
            return regex.find_last_match(self._pattern, [line.decode(errors="replace")]) is not None
        except regex.TooCostlyError as error:
            raise WorkloadError(
                f"--acknowledge {self._pattern!r} takes too long", hint="write a simpler expression"
            ) from error


class PrintedLines:
    """A program's output: lines of standard output until they are taken, and the last lines of standard error."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._begun = bytearray()
        self.errors = bytearray()

    def add_output(self, stream: int, data: bytes) -> None:
        """Adds output of a stream. Raises `WorkloadError` for an endless line."""
        if stream == _ERRORS:
            self.errors += data
            # A program may print errors endlessly.
            del self.errors[:-_ERRORS_KEPT]
            return
        # A read may end within a line; its beginning is kept until the rest arrives.
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._begun) + lines[0]
            self._begun.clear()
            self._lines += lines
        self._begun += rest
        if len(self._begun) > _LONGEST_LINE:
            raise WorkloadError(
                f"it printed a line of more than {_LONGEST_LINE:,} bytes",
                hint="each line of standard output should acknowledge that something is safe",
            )

    @property
    def has_lines(self) -> bool:
        """True if there are complete lines to take."""
        return bool(self._lines)

    def take_lines(self) -> list[bytes]:
        """Returns the complete lines since the last call."""
        lines, self._lines = self._lines, []
        return lines

    def take_last_line(self) -> list[bytes]:
        """Returns the incomplete last line, if the output does not end with a line feed."""
        return [bytes(self._begun)] if self._begun else []

    @property
    def quoted_errors(self) -> str:
        """The last error lines as the end of a sentence; empty if there are none."""
        lines = self.errors.decode(errors="replace").strip().splitlines()
        if not lines:
            return ""
        return f": {' | '.join(lines[-3:])}"


class DiskRoom:
    """Watches the free space on a program's disk, and reports once it is full."""

    def __init__(
        self, agent: Agent, directory: str, printed: PrintedLines, note: Callable[[str], None]
    ) -> None:
        self._agent, self._directory = agent, directory
        self._printed = printed
        self._note = note
        self._next = 0.0
        self._size = 0
        self.said = ""  # the end of a sentence, once the disk is full
        self.hint = ""

    def check_room(self, *, now: bool = False) -> None:
        """Checks the free space, at most once a second unless `now`; reports a full disk."""
        if self.said or (time.monotonic() < self._next and not now):
            return
        self._next = time.monotonic() + _LOOK_S
        done = self._agent.exec(["stat", "-f", "-c", "%a %b %S", self._directory], timeout_s=_STAT_S)
        if not done.ok:
            return
        free, blocks, unit = map(int, done.stdout.split())
        self._size = blocks * unit
        complaint = classify_message(Speaker.ANY, self._printed.errors.decode(errors="replace"))
        if complaint.cause is Cause.NO_ROOM:
            self._report_full(f": {complaint.line}")
        elif free * unit < _FULL_SHARE * self._size:
            self._report_full(f": its disk of {self._size >> 20:,} MiB is full")

    def _report_full(self, said: str) -> None:
        self.said = said
        larger = max(1 << 30, 1 << (4 * self._size - 1).bit_length())
        self.hint = f"give it a larger disk: --set size={format_size(larger)}"
        self._note(f"the program's disk is full{said}; {self.hint}")


def _follow_program(
    program: Background, name: str, take: Callable[[bytes], bool], mark: Callable[[int], None], limit_s: float
) -> int | None:
    """Passes each line of a program to `take`; marks and answers it if `take` returns that it acknowledges something.

    Returns the exit status. Raises `WorkloadError` if the program does not end in time.
    """
    deadline = time.monotonic() + limit_s
    taken = lines = marks = 0
    while program.wait(deadline - time.monotonic(), functools.partial(has_further_lines, lines)):
        # Bytes after the last line's end belong to the next line and are left for later.
        for line in bytes(program.output[taken:]).split(b"\n")[:-1]:
            taken += len(line) + 1
            lines += 1
            if take(line):
                marks += 1
                mark(marks)
                program.send_input(b"\n")
        if not program.is_running:
            break
    if program.ended is None:
        program.send_signal(signal.SIGKILL)
        raise WorkloadError(f"{name} did not end within {limit_s:g} s", hint="use a longer --trial-limit")
    return program.ended.status


def _read_part(agent: Agent, path: str, at: int, count: int) -> bytes:
    """Reads up to `count` bytes of a file from `at`; none if it cannot be read."""
    try:
        return agent.read_file(path, offset=at, limit=count, timeout_s=_READ_S)
    except CallError:
        return b""


def has_further_lines(lines: int, said: bytes) -> bool:
    """Returns whether a program has printed more than `lines` complete lines."""
    return said.count(b"\n") > lines


@dataclass(frozen=True, slots=True)
class Program:
    """A command whose syncs are judged: `before` are shell commands that run first, `files` texts by file name."""

    argv: Sequence[str]
    env: Mapping[str, str]
    before: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)  # as for `Agent.exec`
    # If empty, it runs in its directory on the disk.
    cwd: str = ""
    statuses: Sequence[int] = (0,)


class SyncingProgram:
    """Runs a program on the disk and marks each call that promises durability; `promises` collects them."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._root = ""
        self.promises = Promises()

    def run(self, agent: Agent, directory: str, mark: Callable[[int], None], limit_s: float) -> int:
        """Runs the program in the directory and marks each promise; returns their number.

        Raises `WorkloadError`, such as `CommandError` if there is no such program.
        """
        self._root, self.promises = directory, Promises()
        work = make_work_directory(agent, directory, **self._program.user)
        for name, text in self._program.files.items():
            user = self._program.user
            agent.write_file(f"{work}/{name}", text.encode(), uid=user.get("uid"), gid=user.get("gid"))
        where: dict[str, Any] = {
            "env": self._program.env, "cwd": self._program.cwd or work, **self._program.user,
        }  # fmt: skip
        for line in self._program.before:
            done = agent.exec(["/bin/sh", "-c", line.replace(DISK, work)], timeout_s=limit_s, **where)
            if not done.ok:
                raise WorkloadError(
                    f"{line} failed with status {done.status}", hint="this command runs before the program"
                )
        agent.exec(["sync"], timeout_s=limit_s)
        argv = [word.replace(DISK, work) for word in self._program.argv]
        # The tracer itself could only report that something was not found.
        agent.which(argv[0], path=self._program.env.get("PATH"), cwd=where["cwd"])
        tracer = [
            PROGRAM,
            "syncs",
            "--disk",
            directory,
            "--most",
            str(_MOST),
            "--bytes",
            str(_DIGESTED),
            "--",
        ]
        program = agent.background([*tracer, *argv], stdin=True, **where)
        words = shlex.join(argv)
        ended = _follow_program(
            program, words, lambda line: self.promises.add_line(line.decode()), mark, limit_s
        )
        self._check_followed(words, program, ended)
        self.promises.unsynced, self.promises.rebuilt = split_rebuilt(
            self.promises.unsynced, functools.partial(_read_part, agent)
        )
        return len(self.promises.calls)

    def _check_followed(self, words: str, program: Background, ended: int | None) -> None:
        """Raises `MachineError` if calls cannot be traced, `WorkloadError` for a program that failed."""
        if self.promises.status is None:
            said = program.read_text().strip().splitlines()
            raise MachineError(
                f"the syncs of {words} cannot be traced: {said[-1] if said else ended}",
                hint="its machine's kernel needs ptrace with PTRACE_GET_SYSCALL_INFO (Linux 5.3)",
            )
        if self.promises.has_failed(self._program.statuses):
            complaint = classify_message(Speaker.ANY, self.promises.errors)
            if complaint.cause is Cause.NO_ROOM:
                raise WorkloadError(
                    f"{words} exited with status {self.promises.status} because its disk is full: {complaint.line}",
                    hint="give it a larger disk: --set size=SIZE",
                )
            raise WorkloadError(
                f"{words} exited with status {self.promises.status}: {self.promises.said or 'it printed nothing'}",
                hint="it runs in a new directory on its disk, where every call is traced",
            )

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """Reads the files whose content was promised by record `newest`; see `recovery.Reader`."""
        expected = self.promises.list_expected_files(newest, exact=exact)
        named: set[str] = set()
        for file in expected:
            named.update(file.paths)
        paths = sorted(named)
        asked = "".join(f"{self._map_path(path, directory)}\n" for path in paths).encode()
        done = agent.exec([str(find_agent_binary()), "digests"], stdin=asked, timeout_s=_READ_S)
        lines = done.stdout.decode().splitlines()
        if not done.ok or len(lines) != len(paths):
            said = done.stderr.decode(errors="replace").strip()
            raise MachineError(f"a crash state cannot be read: {said}", hint="see the kernel's log")
        states = dict(zip(paths, map(FileState.parse, lines), strict=True))
        lost = ""
        for file in expected:
            lost = file.describe_missing(states)
            if lost:
                break
        return Recovered(dict.fromkeys(names, None if lost else b""), lost=lost)

    def _map_path(self, path: str, directory: Path) -> str:
        """Returns the path below `directory` of a file of the machine; both paths are in hexadecimal."""
        below = bytes.fromhex(path).removeprefix(self._root.encode()).lstrip(b"/")
        return (bytes(directory) + b"/" + below).hex()

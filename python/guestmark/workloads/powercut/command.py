"""Programs of the user's: their lines are acknowledgements that a check looks for, or their own syncs are."""

from __future__ import annotations

import functools
import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guestmark.agent.binary import PROGRAM
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.core.own_program import agent_binary
from guestmark.disks.mounted import DISK, work_below
from guestmark.powercut.recovery import Recovered
from guestmark.powercut.syncs import Promises, State

if TYPE_CHECKING:
    from guestmark.agent.background import Background
    from guestmark.agent.client import Agent

_CHECK_S = 60.0
_MOST, _DIGESTED = 300, 1 << 30  # promises of a program that are judged, and bytes that are digested for them


class Acknowledging:
    """Runs the program on the disk, and its check on what a cut left. `lines` is what it has acknowledged.

    A line that the program prints is an acknowledgement, and is answered by an empty line on its standard input: a
    program that waits for that is judged exactly, another one from the moment at which its line has arrived.
    """

    def __init__(self, command: Sequence[str], check: str) -> None:
        self._command = command
        self._check = check
        self.lines: list[bytes] = []

    def run(self, agent: Agent, directory: str, mark: Callable[[int], None], limit_s: float) -> int:
        """Runs it in the directory, marking each line; returns how many there were. Raises `WorkloadError`."""
        argv = [word.replace(DISK, directory) for word in self._command]
        self.lines = []

        def take(line: bytes) -> bool:
            self.lines.append(line)
            return True

        program = agent.background(argv, stdin=True, cwd=directory)
        ended = _follow(program, argv[0], take, mark, limit_s)
        if ended != 0:
            said = program.text().strip().splitlines()
            raise WorkloadError(
                f"{argv[0]} ended with status {ended}: {said[-1] if said else 'it said nothing'}",
                hint="it runs at the top of the disk, which {disk} stands for",
            )
        if not self.lines:
            raise WorkloadError(
                f"{argv[0]} printed no line, so that nothing was acknowledged",
                hint="let it print a line for whatever is safe, once it is",
            )
        return len(self.lines)

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """See `recovery.Reader`: the check, in the directory, gets the lines acknowledged by then on standard input."""
        told = b"".join(line + b"\n" for line in self.lines[: newest + 1])
        done = agent.exec(
            ["sh", "-c", self._check], stdin=told or b"\n", timeout_s=_CHECK_S, cwd=str(directory)
        )
        return Recovered(dict.fromkeys(names, b"" if done.ok else None))


def _follow(
    program: Background, name: str, take: Callable[[bytes], bool], mark: Callable[[int], None], limit_s: float
) -> int | None:
    """Hands each line of a program on; where `take` says that it acknowledges something, marks and answers it.

    Returns the exit status. Raises `WorkloadError` when the program does not end in time.
    """
    deadline = time.monotonic() + limit_s
    taken = lines = marks = 0
    while program.wait(deadline - time.monotonic(), functools.partial(_more, lines)):
        for line in bytes(program.output[taken:]).split(b"\n")[:-1]:
            taken += len(line) + 1
            lines += 1
            if take(line):
                marks += 1
                mark(marks)
                program.feed(b"\n")
        if not program.running:
            break
    if program.ended is None:
        program.signal(signal.SIGKILL)
        raise WorkloadError(f"{name} did not end within {limit_s:g} s", hint="see --trial-limit")
    return program.ended.status


def _more(lines: int, said: bytes) -> bool:
    return said.count(b"\n") > lines


@dataclass(frozen=True, slots=True)
class Program:
    """A row's own command: `before` are shell commands that come first, `files` texts by names in its directory."""

    argv: Sequence[str]
    env: Mapping[str, str]
    before: Sequence[str] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    user: Mapping[str, Any] = field(default_factory=dict)  # as for `Agent.exec`
    cwd: str = ""  # else it runs in its directory on the disk
    statuses: Sequence[int] = (0,)


class Syncing:
    """Runs a program on the disk, and marks each of its calls that promise durability. `promises` are those."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._root = ""
        self.promises = Promises()

    def run(self, agent: Agent, directory: str, mark: Callable[[int], None], limit_s: float) -> int:
        """Runs it in the directory, marking each promise; returns how many there were. Raises `WorkloadError`."""
        self._root, self.promises = directory, Promises()
        work = work_below(agent, directory, **self._program.user)
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
                    f"{line} failed with status {done.status}", hint="it comes before the command"
                )
        agent.exec(["sync"], timeout_s=limit_s)
        argv = [word.replace(DISK, work) for word in self._program.argv]
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
        ended = _follow(program, words, lambda line: self.promises.add(line.decode()), mark, limit_s)
        self._check(words, program, ended)
        return len(self.promises.calls)

    def _check(self, words: str, program: Background, ended: int | None) -> None:
        """Raises `MachineError` where calls cannot be followed, `WorkloadError` for a program that failed."""
        if self.promises.status is None:
            said = program.text().strip().splitlines()
            raise MachineError(
                f"the syncs of {words} cannot be followed: {said[-1] if said else ended}",
                hint="its machine's kernel needs ptrace with PTRACE_GET_SYSCALL_INFO (Linux 5.3)",
            )
        if self.promises.failed(self._program.statuses):
            raise WorkloadError(
                f"{words} ended with status {self.promises.status}: {self.promises.said or 'it said nothing'}",
                hint="it runs in a new directory on its disk, where every call is followed",
            )

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """See `recovery.Reader`: the files of which something was promised by then."""
        expected = self.promises.expected(newest, exact=exact)
        paths = sorted({path for one in expected for path in one.paths})
        asked = "".join(f"{self._here(path, directory)}\n" for path in paths).encode()
        done = agent.exec([str(agent_binary()), "digests"], stdin=asked, timeout_s=_CHECK_S)
        lines = done.stdout.decode().splitlines()
        if not done.ok or len(lines) != len(paths):
            said = done.stderr.decode(errors="replace").strip()
            raise MachineError(f"a crash state cannot be read: {said}", hint="see the kernel's log")
        states = dict(zip(paths, map(State.parsed, lines), strict=True))
        lost = next((why for one in expected if (why := one.missing(states))), "")
        return Recovered(dict.fromkeys(names, None if lost else b""), lost=lost)

    def _here(self, path: str, directory: Path) -> str:
        """Where a file of the machine's is now, likewise in hexadecimal."""
        below = bytes.fromhex(path).removeprefix(self._root.encode()).lstrip(b"/")
        return (bytes(directory) + b"/" + below).hex()

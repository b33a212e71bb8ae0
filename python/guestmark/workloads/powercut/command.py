"""A program of the user's whose lines are acknowledgements, and a check that looks for them in every crash state."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.powercut.recovery import Recovered

if TYPE_CHECKING:
    from guestmark.agent.client import Agent

_CHECK_S = 60.0


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
        argv = [word.replace("{disk}", directory) for word in self._command]
        program = agent.background(argv, stdin=True, cwd=directory)
        deadline = time.monotonic() + limit_s
        self.lines = []
        while program.wait(deadline - time.monotonic(), functools.partial(_more, len(self.lines))):
            for line in bytes(program.output).split(b"\n")[len(self.lines) : -1]:
                self.lines.append(line)
                mark(len(self.lines))
                program.feed(b"\n")
            if not program.running:
                break
        if program.ended is None:
            program.signal(signal.SIGKILL)
            raise WorkloadError(f"{argv[0]} did not end within {limit_s:g} s", hint="see --trial-limit")
        if program.ended.status != 0:
            said = program.text().strip().splitlines()
            raise WorkloadError(
                f"{argv[0]} ended with status {program.ended.status}: {said[-1] if said else 'it said nothing'}",
                hint="it runs at the top of the disk, which {disk} stands for",
            )
        if not self.lines:
            raise WorkloadError(
                f"{argv[0]} printed no line, so that nothing was acknowledged",
                hint="let it print a line for whatever is safe, once it is",
            )
        return len(self.lines)

    def read(self, agent: Agent, directory: Path, names: Sequence[str], newest: int) -> Recovered:
        """See `recovery.Reader`: the check, in the directory, gets the lines acknowledged by then on standard input."""
        told = b"".join(line + b"\n" for line in self.lines[: newest + 1])
        done = agent.exec(
            ["sh", "-c", self._check], stdin=told or b"\n", timeout_s=_CHECK_S, cwd=str(directory)
        )
        return Recovered(dict.fromkeys(names, b"" if done.ok else None))


def _more(lines: int, said: bytes) -> bool:
    return said.count(b"\n") > lines

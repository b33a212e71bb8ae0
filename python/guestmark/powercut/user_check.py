"""A user's check: it runs in its own namespaces on the files that a power cut left, and its output is kept.

A user's script may be faulty, so only a run that passes or fails counts; if it did not finish in time or could not be
started, nothing was judged. It runs only once on the same files with the same input.
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.core.errors import MachineError
from guestmark.core.own_program import find_agent_binary
from guestmark.core.temporary import scratch_directory
from guestmark.powercut.check_answer import Answer, Ending, classify_end
from guestmark.powercut.recovery import Recovered, allow_changes

_DIGEST_S = 120.0
_TRIED_S = 10.0
# Bytes of each stream that are kept; the last lines of them are shown.
_HEARD = 64 << 10
_LINES, _WIDTH = 8, 400
_LEAST_MEMORY = 64 << 20
# Share of the host's memory in which all checks at once may keep files.
_MEMORY_SHARE = 4
_PROCESSORS = len(os.sched_getaffinity(0))


# More workers than this recover states, since they mostly wait for mounts; a check may need a whole processor.
_AT_ONCE = threading.BoundedSemaphore(_PROCESSORS)
_NOTHING_ASKED = Answer(Ending.PASSED, 0, (), (), 0.0)


@dataclass(slots=True)
class Limit:
    """The time limit of a check; it is changed once the time of the first run is known."""

    seconds: float


class Check:
    """A shell command that judges a mounted disk, as a `recovery.Reader`; its input is the acknowledged `lines`.

    With `apart` each run gets a sandbox: its own namespaces. With `always` it also runs if nothing had been
    acknowledged, because the disk has to be consistent then, too. Unless it is `forgetful`, it is not run again on
    files that it has seen.
    """

    def __init__(
        self,
        command: str,
        lines: Sequence[bytes],
        limit: Limit,
        *,
        apart: bool,
        always: bool,
        forgetful: bool = False,
    ) -> None:
        self.command = command
        self.lines = lines
        self.limit = limit
        self.apart = apart
        self.always = always
        self.runs = 0
        self.remembers = not forgetful
        self._known: dict[tuple[bytes, int], Future[Answer]] = {}
        self._lock = threading.Lock()

    def copy_without_memory(self) -> Check:
        """Return the same check without the cache of results, so that it runs each time."""
        return Check(
            self.command, self.lines, self.limit, apart=self.apart, always=self.always, forgetful=True
        )

    def read(
        self, agent: Agent, directory: Path, names: Sequence[str], newest: int, *, exact: bool
    ) -> Recovered:
        """See `recovery.Reader`."""
        acknowledged = self.lines[: newest + 1]
        if not (acknowledged or self.always):
            return Recovered({}, answer=_NOTHING_ASKED)
        run = self._answer_once if self.remembers else self._run_counted
        answer = run(agent, directory, acknowledged)
        return Recovered({}, answer=answer)

    def _answer_once(self, agent: Agent, directory: Path, acknowledged: Sequence[bytes]) -> Answer:
        try:
            # Read by the agent itself: starting a program takes longer than reading most programs' files.
            digest = agent.digest_tree(str(directory), timeout_s=_DIGEST_S)
        except CallError as error:
            raise MachineError(
                f"a crash state cannot be read: {error.message}",
                hint="see the kernel log: dmesg",
                cause=error.cause,
            ) from error
        key = (digest, len(acknowledged))
        # Two workers may have equal files at the same time; the second one waits for the answer of the first.
        with self._lock:
            answered = self._known.get(key)
            if answered is None:
                own: Future[Answer] = Future()
                self._known[key] = own
        if answered is not None:
            return answered.result()
        try:
            own.set_result(self._run_counted(agent, directory, acknowledged))
        except BaseException as error:
            own.set_exception(error)
            raise
        return own.result()

    def build_command_line(self, room: Path, directory: Path) -> list[str]:
        """Return the command that runs the check on the directory; `room` is an empty directory for its sandbox."""
        shell = ["sh", "-c", self.command]
        return [*build_world_command(room, directory), *shell] if self.apart else shell

    def _run_counted(self, agent: Agent, directory: Path, acknowledged: Sequence[bytes]) -> Answer:
        with self._lock:
            self.runs += 1
        with _AT_ONCE:
            return self._run_in_room(agent, directory, acknowledged)

    def _run_in_room(self, agent: Agent, directory: Path, acknowledged: Sequence[bytes]) -> Answer:
        allow_changes(agent, directory)
        room = directory.parent / "room"
        room.mkdir(exist_ok=True)
        done = agent.exec(
            self.build_command_line(room, directory),
            stdin=encode_lines(acknowledged),
            timeout_s=self.limit.seconds, cwd=str(directory), output_limit=_HEARD, tail=True,
        )  # fmt: skip
        ending = classify_end(done.status, done.signal, apart=self.apart, was_full=_ran_out_of_space(room))
        took_s = done.wall_s
        if done.timed_out:
            ending, took_s = Ending.LATE, self.limit.seconds
        elif done.oom_killed and ending is not Ending.PASSED:
            # The kernel does not say whose process it was, so no check that ran at that time is believed.
            ending = Ending.OUT_OF_MEMORY
        return Answer(ending, done.status, _last_lines(done.stdout), _last_lines(done.stderr), took_s)


def encode_lines(lines: Sequence[bytes]) -> bytes:
    """Return the lines as a check gets them as input, each with its line feed."""
    return b"".join(line + b"\n" for line in lines)


def run_check_here(check: Check, room: Path, directory: Path, acknowledged: Sequence[bytes]) -> Answer:
    """Run a check on files of this host; `room` is a directory for its own use."""
    own = room / "room"
    own.mkdir()
    begin = time.monotonic()
    try:
        with _AT_ONCE:
            done = subprocess.run(
                check.build_command_line(own, directory), cwd=directory,
                input=encode_lines(acknowledged), capture_output=True, timeout=check.limit.seconds,
                check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(Ending.LATE, None, (), (), check.limit.seconds)
    # A negative number stands for a signal.
    status, ended_by = (done.returncode, None) if done.returncode >= 0 else (None, -done.returncode)
    return Answer(
        classify_end(status, ended_by, apart=check.apart, was_full=_ran_out_of_space(own)),
        status,
        _last_lines(done.stdout),
        _last_lines(done.stderr),
        time.monotonic() - begin,
    )


def _last_lines(output: bytes) -> tuple[str, ...]:
    """Return the last lines, with unprintable characters replaced so that every document can hold them."""
    shown = []
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    for line in lines[-_LINES:]:
        printable = (character if character.isprintable() else "?" for character in line)
        shown.append("".join(printable)[:_WIDTH])
    return tuple(shown)


def build_world_command(room: Path, directory: Path) -> tuple[str, ...]:
    """Return the prefix of a command that may change only this directory; `room` is an empty directory for it."""
    return (
        str(find_agent_binary()), "world", "--room", str(room), "--writable", str(directory),
        "--memory", str(choose_memory_size()), "--note-full", str(_locate_note(room)), "--",
    )  # fmt: skip


def _locate_note(room: Path) -> Path:
    return room.with_name(f"{room.name}-full")


def _ran_out_of_space(room: Path) -> bool:
    """Return True if the check in this sandbox found its /tmp full; always False without a sandbox."""
    note = _locate_note(room)
    return note.exists() and note.stat().st_size > 0


def choose_memory_size() -> int:
    """Return how many bytes a check may write to its /tmp, so that all checks leave the host half of its memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # The same amount may go to its /dev/shm.
    return max(_LEAST_MEMORY, memory // (_MEMORY_SHARE * _PROCESSORS))


@functools.cache
def explain_no_sandbox() -> str:
    """Return why a check cannot be sandboxed on this host, found by trying; empty if it can."""
    with scratch_directory("world") as room:
        try:
            done = subprocess.run(
                [*build_world_command(room, room), "true"],
                capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TRIED_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "creating a sandbox took too long"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]

"""Connections to the machines of a lab, each with the engine's worker at its other end."""

from __future__ import annotations

import collections
import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from guestmark.agent.binary import supervise_command
from guestmark.core.errors import ExitStatus
from guestmark.fleet import parsl_engine
from guestmark.fleet.block_task import MESSAGE_PREFIX, WorkerMark
from guestmark.fleet.lab import LabMachine
from guestmark.fleet.worker import WorkerStart
from guestmark.page.text import make_inert
from guestmark.platforms.ssh.session import UNATTENDED, explain_refusal, is_final, ssh_command

_KEPT_LINES, _LONGEST = 20, 300
_STOP_S, _HEAR_S = 5.0, 1.0
# How long nothing need be heard of a worker: until it is set up, which may take an installation; until it has begun;
# and while it is there.
_COMING_S, _APPEAR_S, _ABSENT_S = 600.0, 90.0, 30.0
_SAYS = "guestmark: "  # before each of its messages
_ORDERLY = (ExitStatus.USAGE, ExitStatus.NOTHING_MEASURED)  # of a worker that says what it lacks
_SSH_FAILED, _NOT_FOUND = 255, 127  # exit statuses: of ssh itself, and of a shell without the program
# As for `ssh:DEST`, but for what is forwarded: the engine's port and, where it is on this host, the ledger's.
_OPTIONS = (*UNATTENDED, "-o", "ControlPath=none")


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """What a worker has to reach: the engine's port on this host's loopback, and the ledger."""

    port: int
    ledger: str

    def forwarded(self) -> list[int]:
        """Ports of this host's loopback that another machine has to be given on its own."""
        url = urlsplit(self.ledger)
        local = url.hostname in {"localhost", "127.0.0.1", "::1"}
        return [self.port, *([url.port or 5432] if local else [])]


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """What a connection said at its end, in a line; whether trying again cannot help."""

    text: str = ""
    final: bool = False


class WorkerLink:
    """A worker's connection; it is over when the worker has ended or `close` is called, whichever is first."""

    def __init__(
        self, member: LabMachine, reach: WorkerAddresses, keys: dict[str, str], arguments: list[str]
    ) -> None:
        self.member = member
        self._worker = arguments[arguments.index("--uid") + 1]
        self._seen, self._patience_s = time.monotonic(), _COMING_S
        self._at_work = False  # whether it has begun a block that is not done
        self._why = ""  # it ended itself, whatever its processes say meanwhile
        self._in_order = time.monotonic()  # when it last had nothing to do, or did it
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._told: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                supervise_command(
                    make_remote_command(member, ["fleet", "worker"], reach.forwarded()),
                    lifeline_fd=lifeline,
                    spare_keepers=True,
                ),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        finally:
            os.close(lifeline)
        start = WorkerStart(member.name, reach.ledger, keys, arguments, parsl_engine.read_versions())
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(start) + b"\n")
            self._process.stdin.flush()
        self._hearing = threading.Thread(target=self._read_messages, name=f"hear {member.name}", daemon=True)
        self._hearing.start()

    def is_running(self) -> bool:
        """Whether the connection, and the worker, are there."""
        return self._process.poll() is None

    def describe_end(self) -> LinkEnd:
        """Why it has ended, as far as ssh or the worker said so."""
        status = self._process.poll()
        if status is not None:
            self._hearing.join(_HEAR_S)
        if self._why:
            return LinkEnd(self._why)
        text = "\n".join(self._said)
        if self.member.ssh and status == _SSH_FAILED:
            error = explain_refusal(self.member.ssh, text, status)
            return LinkEnd(f"{error.message}; {error.hint}", is_final(text))
        if status == _NOT_FOUND:
            command = self.member.command[0]
            return LinkEnd(
                f"there is no {command}; install guestmark, or say where it is: command = […] in the lab's file",
                True,
            )
        lines = [line for line in self._said if line]
        errors = [at for at, line in enumerate(lines) if line.startswith(_SAYS)]
        if errors:  # what is wrong, and what to do
            return LinkEnd("; ".join(lines[errors[-1] :][:2]).removeprefix(_SAYS), status in _ORDERLY)
        return LinkEnd(lines[-1] if lines else "")

    def is_silent(self, present: Mapping[str, int]) -> bool:
        """Whether the engine should have heard of the worker by now, or the worker have begun the block that it has.

        `present` are the workers that the engine hears of, and how many blocks it has given each. A worker that is
        stopped before the engine has given it anything is missed by nobody else; nor is one that gets a block and
        cannot take it up.
        """
        now, blocks = time.monotonic(), present.get(self._worker)
        if blocks is not None:
            self._seen, self._patience_s = now, _ABSENT_S
        if not blocks or self._at_work:
            self._in_order = now
        return now - self._seen > self._patience_s or now - self._in_order > _ABSENT_S

    def take_messages(self) -> list[str]:
        """What the worker has said to be passed on since this was last asked, e.g. whom it waits for."""
        found = []
        while self._told:
            found.append(self._told.popleft())
        return found

    def close(self) -> None:
        """Ends the worker: it sees the end of its input. Whoever does not answer is given up after some seconds."""
        if self._lifeline < 0:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        os.close(self._lifeline)
        self._lifeline = -1
        self._process.wait()

    def _read_messages(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = make_inert(line.decode(errors="replace").strip())[:_LONGEST]
            if not text.startswith(MESSAGE_PREFIX):
                self._said.append(text)
                continue
            match text.removeprefix(MESSAGE_PREFIX):
                case WorkerMark.READY:
                    self._seen, self._patience_s = time.monotonic(), _APPEAR_S
                case WorkerMark.BEGUN | WorkerMark.DONE as mark:
                    self._at_work = mark == WorkerMark.BEGUN
                case WorkerMark.PART_ENDED as why:
                    self._why = str(why)
                case told:
                    self._told.append(told)


def make_remote_command(
    member: LabMachine, arguments: Sequence[str], forwarded: Sequence[int] = ()
) -> list[str]:
    """The command line that runs guestmark with these arguments on a machine."""
    words = [*member.command, *arguments]
    if not member.ssh:
        return ["env", *(f"{name}={value}" for name, value in member.environment.items()), *words]
    settings = [f"{name}={value}" for name, value in member.environment.items()]
    there = shlex.join(["exec", "env", *settings, *words])
    tunnels = [part for port in forwarded for part in ("-R", f"127.0.0.1:{port}:127.0.0.1:{port}")]
    return [*ssh_command(), *_OPTIONS, *tunnels, "--", member.ssh, there]

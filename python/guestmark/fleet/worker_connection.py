"""Connects to the machines of a lab; at the other end of each connection is the engine's worker."""

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

import msgspec
from sqlalchemy.engine import make_url

from guestmark.agent.binary import build_supervise_command
from guestmark.core.errors import ExitStatus
from guestmark.fleet import parsl_engine
from guestmark.fleet.block_task import MESSAGE_PREFIX, WorkerMark
from guestmark.fleet.lab import LabMachine
from guestmark.fleet.worker import WorkerStart
from guestmark.ledger.postgres import read_parameters
from guestmark.page.text import make_inert
from guestmark.platforms.ssh.session import explain_refusal
from guestmark.platforms.ssh_command import UNATTENDED, build_ssh_command, is_final

_KEPT_LINES, _LONGEST = 20, 300
_STOP_S, _HEAR_S = 5.0, 1.0
# How long a worker may be silent: until it is set up, which may include an installation; from then until the engine
# knows it; and after that.
_COMING_S, _APPEAR_S, _ABSENT_S = 600.0, 90.0, 30.0
_SAYS = "guestmark: "  # prefix of error messages
# Exit statuses of a worker that has printed what is missing.
_ORDERLY = (ExitStatus.USAGE, ExitStatus.NOTHING_MEASURED)
# The exit statuses of ssh itself, and of a shell that lacks the program.
_SSH_FAILED, _NOT_FOUND = 255, 127
# The options of the platform `ssh:DEST`, but without a shared connection, because ports are forwarded.
_OPTIONS = (*UNATTENDED, "-o", "ControlPath=none")


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Addresses that a worker must reach: the engine's port on this host's loopback, and the ledger."""

    port: int
    ledger: str

    def list_forwarded_ports(self) -> list[int]:
        """Return the ports on this host's loopback that must be forwarded to another machine."""
        ports = [self.port]
        if "://" in self.ledger:
            given = read_parameters(make_url(self.ledger))
            if given["host"] in {"localhost", "127.0.0.1", "::1"}:
                ports.append(int(given["port"]))
        return ports


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """Why a connection ended, in one line; `final` if trying again cannot help."""

    text: str = ""
    final: bool = False


class WorkerLink:
    """A worker's connection, which lasts until the worker ends or `close` is called."""

    def __init__(
        self, member: LabMachine, reach: WorkerAddresses, keys: dict[str, str], arguments: list[str]
    ) -> None:
        self.member = member
        self._worker = arguments[arguments.index("--uid") + 1]
        self._seen, self._patience_s = time.monotonic(), _COMING_S
        # Whether the worker has begun a block and not finished it.
        self._at_work = False
        # The reason why the worker ended itself; it takes precedence over messages of the worker's processes.
        self._why = ""
        # When the worker was last known to be idle or to work on a block.
        self._in_order = time.monotonic()
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._told: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        lifeline, self._lifeline = os.pipe()
        try:
            self._process = subprocess.Popen(
                build_supervise_command(
                    make_remote_command(member, ["fleet", "worker"], reach.list_forwarded_ports()),
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
        """Return whether the connection, and so the worker, still exists."""
        return self._process.poll() is None

    def describe_end(self) -> LinkEnd:
        """Return why the connection has ended, as far as ssh or the worker has reported it."""
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
                f"cannot find {command}; install guestmark, or set its path in the lab's file: command = […]",
                True,
            )
        lines = [line for line in self._said if line]
        errors = [at for at, line in enumerate(lines) if line.startswith(_SAYS)]
        # An error has two lines: what is wrong, and what to do.
        if errors:
            return LinkEnd("; ".join(lines[errors[-1] :][:2]).removeprefix(_SAYS), status in _ORDERLY)
        return LinkEnd(lines[-1] if lines else "")

    def is_silent(self, present: Mapping[str, int]) -> bool:
        """Return whether the worker is overdue: unknown to the engine, or not working on the block that it has.

        `present` has the workers that the engine hears from, and the number of blocks that each was given. The engine
        itself notices neither a worker that is stopped before it gets a block, nor one that cannot start its block.
        """
        now, blocks = time.monotonic(), present.get(self._worker)
        if blocks is not None:
            self._seen, self._patience_s = now, _ABSENT_S
        if not blocks or self._at_work:
            self._in_order = now
        return now - self._seen > self._patience_s or now - self._in_order > _ABSENT_S

    def take_messages(self) -> list[str]:
        """Return the worker's messages for the user since the last call, such as those about waiting."""
        found = []
        while self._told:
            found.append(self._told.popleft())
        return found

    def close(self) -> None:
        """End the worker by closing its input; if it does not react, kill it after some seconds."""
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
    member: LabMachine, arguments: Sequence[str], forwarded_ports: Sequence[int] = ()
) -> list[str]:
    """Return the command line that runs guestmark with these arguments on a machine."""
    settings = [f"{name}={value}" for name, value in member.environment.items()]
    words = ["env", *settings, *member.command, *arguments]
    if not member.ssh:
        return words
    there = shlex.join(["exec", *words])
    tunnels = []
    for port in forwarded_ports:
        tunnels += ["-R", f"127.0.0.1:{port}:127.0.0.1:{port}"]
    return [*build_ssh_command(), *_OPTIONS, *tunnels, "--", member.ssh, there]

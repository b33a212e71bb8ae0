"""How a storm ends a run: by a signal, by its terminal, by stopping everything, or by the end of one of its helpers."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.framework.command_line import CommandLine
from tests.framework.processes import children, kill, started_at

_STOPPED_S = 0.5
_GUARD = b"while read -r word"  # of the script that destroys a machine of one's own
_HELPERS = {
    "virtiofsd": b"virtiofsd", "the storage daemon": b"qemu-storage-daemon", "a supervisor": b"\0supervise\0",
    "the keeper": b"\0keep\0", "an agent of the host": b"guestmark-agent\0serve", "QEMU": b"qemu-system",
    "UML": b"linux.uml", "a database server": b"mariadbd\0", "the HTTP server": b"netboot/serve.py",
    "guestfish": b"guestfish\0",
}  # fmt: skip


class Started:
    """A call of the command line whose output goes to a file, or to a terminal of its own; `user`: whose it is."""

    def __init__(
        self,
        line: CommandLine,
        words: tuple[str, ...],
        *,
        terminal: bool,
        user: int = 0,
        capabilities: str = "",
    ) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self.terminal = -1
        stdin, output = subprocess.DEVNULL, self._output.fileno()
        slave = -1
        if terminal:
            self.terminal, slave = pty.openpty()
            stdin = output = slave
        program = [sys.executable, "-m", "guestmark", *words]
        # Whose controlling terminal its standard input becomes.
        session = [] if not terminal else ["setsid", "--ctty", "--wait"]
        if user:
            session += ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            if capabilities:
                session += [f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
        try:
            self.process = subprocess.Popen(
                [*session, *program],
                env=line.environment, cwd=line.folder, stdin=stdin, stdout=output, stderr=output,
                start_new_session=not terminal,
            )  # fmt: skip
        finally:
            if slave >= 0:
                os.close(slave)

    def said(self) -> str:
        """All of its output; nothing of what went to a terminal."""
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def close_terminal(self) -> None:
        """As when a window is closed."""
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1

    def close(self) -> None:
        """Closes what is ours of it."""
        self.close_terminal()
        self._output.close()


@dataclass
class Running:
    """A call that is about to be ended."""

    started: Started
    random: random.Random
    seen: dict[int, int] = field(default_factory=dict)  # processes of it, with the moments of their starts

    @property
    def pid(self) -> int:
        """Of the program, or of what waits for it."""
        return self.started.process.pid


@dataclass(frozen=True)
class Way:
    """`strike` ends it and says what was ended; the run then has to end by itself `ends_within_s`, if that is given."""

    strike: Callable[[Running], str]
    ends_within_s: float = 0.0
    statuses: frozenset[int] = frozenset()  # any, if empty
    terminal: bool = False
    needs_another: bool = (
        False  # run of guestmark, where nobody is left who could remove anything, as no machine runs
    )
    aims: bool = False  # at the moment when a temporary thing is made, each kind of them in turn


def family(pid: int) -> dict[int, int]:
    """The descendants of a process, with the moments of their starts."""
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        for child in children(waiting.pop()):
            with contextlib.suppress(OSError):
                found[child] = started_at(child)
                waiting.append(child)
    return found


def _killed(running: Running) -> str:
    running.started.process.kill()
    running.started.process.wait()
    return "SIGKILL"


def _killed_with_keepers(running: Running) -> str:
    """Nobody is left who was told what to remove but those who supervise: no keeper, no guard of a machine."""
    found = family(running.pid)
    keepers = [pid for pid in found if any(sign in _command(pid) for sign in (b"\0keep\0", _GUARD))]
    kill([running.pid, *keepers], signal.SIGKILL)
    running.started.process.wait()
    return f"SIGKILL of it and {len(keepers)} keepers"


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _signalled(number: signal.Signals) -> Callable[[Running], str]:
    def strike(running: Running) -> str:
        running.started.process.send_signal(number)
        return number.name

    return strike


def _terminal_closed(running: Running) -> str:
    running.started.close_terminal()
    return "a closed terminal"


def _stopped_and_killed(running: Running) -> str:
    """Nothing of it can react when it is killed, and all of it goes on later."""
    pids = [running.pid, *family(running.pid)]
    kill(pids, signal.SIGSTOP)
    running.seen = family(running.pid)
    time.sleep(_STOPPED_S)
    _killed(running)
    kill(running.seen, signal.SIGCONT)
    return "SIGSTOP of everything, SIGKILL, SIGCONT"


def _stopped_for_a_while(running: Running) -> str:
    """As when the machine sleeps; then it is interrupted."""
    pids = [running.pid, *family(running.pid)]
    kill(pids, signal.SIGSTOP)
    time.sleep(_STOPPED_S)
    kill(pids, signal.SIGCONT)
    running.started.process.send_signal(signal.SIGINT)
    return "SIGSTOP of everything, SIGCONT, SIGINT"


def _helper_killed(running: Running) -> str:
    """One of its helpers, of a kind at random: it costs a trial at most, and the run goes on to its end."""
    kinds: dict[str, list[int]] = {}
    for pid in family(running.pid):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            for kind, sign in _HELPERS.items():
                if sign in command and (kind == "a supervisor" or b"\0supervise\0" not in command):
                    kinds.setdefault(kind, []).append(pid)
                    break
    if not kinds:
        return "no helper"
    kind = running.random.choice(sorted(kinds))
    kill([running.random.choice(kinds[kind])], signal.SIGKILL)
    return kind


_END_S = 20.0
WAYS = {
    "kill": Way(_killed),
    "keepers": Way(_killed_with_keepers, needs_another=True),
    "aimed": Way(_killed, aims=True),
    "interrupt": Way(_signalled(signal.SIGINT), _END_S),
    "hangup": Way(_signalled(signal.SIGHUP), _END_S),
    "terminate": Way(_signalled(signal.SIGTERM), _END_S),
    "terminal": Way(_terminal_closed, _END_S, terminal=True),
    "stop": Way(_stopped_and_killed),
    "sleep": Way(_stopped_for_a_while, _END_S),
    "helper": Way(_helper_killed, 240.0),
}

"""What QEMU and User-Mode Linux guests have in common: a supervised process, a channel, an agent that gets ready."""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guestmark.agent.client import Agent, CallError
from guestmark.disks.attached import AttachedDisk
from guestmark.errors import AgentError, AttestationError, MachineError
from guestmark.plan.model import Cell
from guestmark.platforms.base import LATE
from guestmark.platforms.process import SupervisedProcess

_CHANNEL_BUFFER = 4 << 20
_DYING_S = 1.0  # between the end of the channel and that of the process


@dataclass(slots=True)
class Guest:
    """A started guest. `facts_of_vmm` asks the hypervisor what it is running (empty for UML, which has no monitor)."""

    cell: Cell
    process: SupervisedProcess
    agent: Agent
    facts_of_vmm: Callable[[], Mapping[str, Any]]
    check: Callable[["Guest"], Mapping[str, Any]]
    phases: dict[str, float] = field(default_factory=dict)
    disks: tuple[AttachedDisk, ...] = ()
    query: Callable[[str], Any] | None = None  # asks the hypervisor's monitor, where there is one

    @property
    def command_line(self) -> tuple[str, ...]:
        """Full command line of the hypervisor."""
        return self.process.command

    @property
    def vmm_pid(self) -> int | None:
        """Process id of the hypervisor on the host."""
        return self.process.pid()

    def attest(self) -> Mapping[str, Any]:
        """What the guest really is. Raises `AttestationError` when it is not what the cell asked for."""
        facts = self.check(self)
        if not self.disks:
            return facts
        from guestmark.platforms.attest_disks import attest_disks

        return {**facts, "disks": attest_disks(self)}

    def console(self) -> str:
        """What the guest's kernel and the hypervisor printed."""
        return self.process.console.text()

    def vmm_stats(self) -> Mapping[str, float]:
        """Processor seconds and peak resident bytes of the hypervisor's process, from /proc; empty once it is gone."""
        pid = self.vmm_pid
        if pid is None:
            return {}
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return {}

        ticks = os.sysconf("SC_CLK_TCK")
        peak = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")), "0")
        return {
            "vmm_user_s": int(fields[11]) / ticks,
            "vmm_system_s": int(fields[12]) / ticks,
            "vmm_peak_bytes": int(peak) * 1024.0,
        }


def channel() -> tuple[socket.socket, socket.socket]:
    """A connected pair: ours, and the one the hypervisor inherits. Buffers are large, for bulk transfers."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _CHANNEL_BUFFER)
    return ours, theirs


def await_ready(
    agent: Agent, process: SupervisedProcess, deadline_s: float, phases: dict[str, float]
) -> None:
    """Waits for the agent's hello and notes the phases of the start.

    Raises `MachineError` with the console: the guest died, or was silent until the deadline.
    """
    try:
        hello = agent.hello(timeout_s=deadline_s)
    except AgentError as error:
        waited = time.monotonic() - process.started_at
        if not process.running() or process.wait(0.5) is not None:
            process.console.join()
            reason = f"the guest ended while starting, after {waited:.1f} s{_last_words(process)}"
        else:
            reason = f"the guest {LATE} {waited:.1f} s{_last_words(process)}"
        raise MachineError(reason, hint=error.hint, console=process.console.text()) from error
    phases["ready"] = time.monotonic() - process.started_at
    if process.console.first_output_at is not None:
        phases["first_output"] = process.console.first_output_at - process.started_at
    for phase in hello.phases:
        phases[f"guest_{phase.name}"] = phase.at_ns / 1e9


def _last_words(process: SupervisedProcess) -> str:
    """The most telling line of the console: the agent's or kernel's complaint, else the last one."""
    lines = [line.strip() for line in process.console.text().splitlines() if line.strip()]
    for mark in ("guestmark-agent: ", "Kernel panic", "qemu-system", "BUG:"):
        for line in lines:
            if mark in line:
                return f": {_without_option(line)[:400]}"
    return f": {lines[-1][:200]}" if lines else "; it printed nothing"


def _without_option(line: str) -> str:
    """QEMU repeats the whole option that it complains about; its name is enough."""
    program, _, rest = line.partition(": -")
    option, colon, message = rest.partition(": ")
    return f"{program}: -{option.split(' ')[0]}: {message}" if colon else line


@contextlib.contextmanager
def stopping(process: SupervisedProcess, *closers: Callable[[], None]) -> Iterator[None]:
    """Whatever happens inside, the closers are called and the process is ended with all that belongs to it.

    An agent that falls silent inside becomes a `MachineError` that says what became of the guest, with its console.
    """
    try:
        yield
    except CallError:
        raise
    except AgentError as error:
        ended = not process.running() or process.wait(_DYING_S) is not None
        if ended:
            process.console.join()
        became = "the guest ended" if ended else "the guest hangs"
        raise MachineError(
            f"{became}{_last_words(process)} ({error.message})",
            hint=error.hint,
            console=process.console.text(),
        ) from error
    finally:
        for close in closers:
            with contextlib.suppress(OSError):
                close()
        process.stop()


def mismatch(what: str, asked: object, found: object, guest: Guest) -> AttestationError:
    """The error for a guest that is not what was asked for, with both values."""
    return AttestationError(
        f"{what} is not what was asked for: asked {asked}, found {found}",
        console=guest.process.console.text(),
    )

"""The common part of all hypervisors' guests: a supervised process, a channel, and an agent that becomes ready."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

from guestmark.agent.client import Agent, CallError
from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import AgentError, AttestationError, MachineError
from guestmark.core.findings import Mount
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import GuestMachine, TemplateFacts
from guestmark.core.model import Cell
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.processes import find_field
from guestmark.page.text import list_filled_lines
from guestmark.platforms import confinement, counters
from guestmark.platforms import phases as steps
from guestmark.platforms.affinity import Seat
from guestmark.platforms.base import Machine, Platform, Unusable
from guestmark.platforms.network.trial_network import TrialNetwork
from guestmark.platforms.place import HERE, HypervisorProcess, Place

# Exit statuses if the hypervisor, or its supervisor, was killed.
_SIGKILLED = (128 + signal.SIGKILL, -signal.SIGKILL)
# The most seconds between the end of the channel and that of the process.
EXIT_DEADLINE_S = 5.0


@dataclass(slots=True)
class Guest:
    """A started guest; `check` compares it with what its cell requested."""

    cell: Cell
    process: HypervisorProcess
    agent: Agent
    check: Callable[[Guest], GuestMachine]
    phases: dict[str, float] = field(default_factory=dict)
    disks: tuple[AttachedDisk, ...] = ()
    # Sends a command to the hypervisor's monitor; None without a monitor.
    query: Callable[[str], Any] | None = None
    # Where the hypervisor runs.
    place: Place = HERE
    seat: Seat = field(default_factory=Seat)
    # The template that the guest was restored from; None if it was booted.
    restored: TemplateFacts | None = None
    network: TrialNetwork | None = None

    @property
    def started_at(self) -> float:
        """When the hypervisor was started, on this host's monotonic clock."""
        return self.process.started_at

    @property
    def groups(self) -> tuple[Path, ...]:
        """The control groups of the hypervisor; empty for a nested guest."""
        return self.process.groups if self.place is HERE else ()

    @property
    def command_line(self) -> tuple[str, ...]:
        """The full command line of the hypervisor."""
        return self.process.command

    @property
    def vmm_pid(self) -> int | None:
        """The process id of the hypervisor, in the place where it runs."""
        return self.process.pid()

    def attest(self) -> GuestMachine:
        """Returns facts about the guest. Raises `AttestationError` if it is not what the cell requested."""
        found = self.check(self)
        found.placement = self.seat.attest(self.vmm_pid)
        if self.place is HERE:
            found.confined = confinement.attest_with_helpers(self.process)
        if self.network is not None:
            found.network = self.network.attest()
        return found

    def shut_down(self, timeout_s: float) -> None:
        """Shuts the guest down, waits for its hypervisor to exit and records the phases of the shutdown.

        Raises `MachineError` if the hypervisor has not exited after `timeout_s`.
        """
        ordered, gone = self.process.end_after(lambda: self.agent.power_off(timeout_s), timeout_s)
        self.phases[steps.ORDERED] = ordered - self.process.started_at
        if gone is None:
            raise MachineError(
                f"the guest did not shut down within {timeout_s:.0f} s{_quote_console(self.process, hangs=True)}",
                console=self.console(),
            )
        self.process.console.wait_for_end()
        self.phases |= steps.collect_phases(self.process)
        self.phases[steps.GONE] = gone - self.process.started_at

    def remarks(self) -> list[str]:
        """Returns remarks about a guest that was not booted, and about its network."""
        found = []
        if self.network:
            found += self.network.remarks()
        if self.restored is not None:
            found.append("restored guests of a block share one layout of memory: they are copies of one boot")
        return found

    def console(self) -> str:
        """Returns the output of the guest's kernel and the hypervisor."""
        return self.process.console.read_text()

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns processor seconds and peak resident bytes of the hypervisor's process; empty if it has ended."""
        pid = self.vmm_pid
        if pid is None:
            return {}
        try:
            # The second field, the program's name, may contain spaces and parentheses, so fields are counted from its
            # end.
            fields = self.place.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
            status = self.place.read(f"/proc/{pid}/status")
        except OSError:
            return {}

        ticks = os.sysconf("SC_CLK_TCK")
        # `VmHWM:     1234 kB`; a zombie has no such line.
        peak = (find_field(status, "VmHWM") or "0").split()[0]
        return {
            "vmm_user_s": int(fields[11]) / ticks,
            "vmm_system_s": int(fields[12]) / ticks,
            "vmm_peak_bytes": int(peak) * 1024.0,
        }

    def counters(self) -> Mapping[str, float]:
        """Returns the hypervisor's counters, which explain times; see `platforms.counters`."""
        return counters.read_guest_counters(self.vmm_pid, self.query, self.place, self.process.scratch)


def await_ready(
    agent: Agent, process: HypervisorProcess, deadline_s: float, phases: dict[str, float]
) -> None:
    """Waits for the agent's hello and records the phases of the start.

    Raises `MachineError` with the console if the guest has ended or did not answer before the deadline.
    """
    try:
        hello = agent.hello(timeout_s=deadline_s)
    except AgentError as error:
        waited = time.monotonic() - process.started_at
        if ended := _find_ended_helper(process):
            message, cause = ended
            raise MachineError(
                message,
                hint=error.hint,
                cause=cause,
                console=process.console.read_text(),
                phases=steps.collect_phases(process),
            ) from error
        # The channel of a hypervisor closes before its process has ended.
        if not process.is_running() or process.wait(0.5) is not None:
            process.console.wait_for_end()
            _check_limits(process, " while starting")
            cause = Cause.KILLED if process.wait(0) in _SIGKILLED else Cause.ENDED
            reason = f"the guest {cause.words} while starting, after {waited:.1f} s{_quote_console(process)}"
            if classify_message(Speaker.QEMU, process.console.read_text()).cause is Cause.NO_ROOM:
                cause = Cause.NO_ROOM
        else:
            cause = Cause.LATE
            reason = f"the guest {cause.words} {waited:.1f} s{_quote_console(process, hangs=True)}"
        raise MachineError(
            reason,
            hint=error.hint,
            cause=cause,
            console=process.console.read_text(),
            phases=steps.collect_phases(process),
        ) from error
    phases[steps.READY] = time.monotonic() - process.started_at
    if process.console.first_output_at is not None:
        phases["first_output"] = process.console.first_output_at - process.started_at
    for phase in hello.phases:
        phases[f"guest_{phase.name}"] = phase.at_ns / 1e9
    phases |= steps.collect_phases(process)


def _check_limits(process: HypervisorProcess, when: str) -> None:
    """Raises `MachineError` if a process has ended because it reached a limit of its control groups."""
    if taken := confinement.explain_exhaustion(process.groups):
        raise MachineError(
            f"the guest ended{when}; {taken}",
            hint="give its guests less memory (--set memory=…), or end other programs",
            cause=Cause.ENDED,
            console=process.console.read_text(),
        )


def _find_ended_helper(process: HypervisorProcess) -> tuple[str, Cause] | None:
    """Returns a message about the first helper that has ended, and the cause; None if all of them run.

    A hypervisor ends with its helpers, so the helper's last line explains its end.
    """
    for name, helper in process.helpers.items():
        status = helper.wait(0.2)
        if status is not None:
            helper.console.wait_for_end()
            last_words = "; it printed nothing"
            if lines := list_filled_lines(helper.console.read_text()):
                last_words = f": {lines[-1][:400]}"
            if status in _SIGKILLED:
                return f"{name} {Cause.KILLED.words}", Cause.KILLED
            return f"{name} exited with status {status}{last_words}", classify_message(
                Speaker.ANY, last_words
            ).cause
    return None


def _quote_console(process: HypervisorProcess, *, hangs: bool = False) -> str:
    """Returns the most informative line of the console: an error of the agent or kernel, else the last line.

    For a guest that `hangs`, it is introduced as the last line, which may have nothing to do with the reason.
    """
    lines = list_filled_lines(process.console.read_text())
    for mark in ("guestmark-agent: ", "Kernel panic", "qemu-system", "BUG:"):
        for line in lines:
            if mark in line:
                return f": {_shorten_option(line)[:400]}"
    if not lines:
        return "; it printed nothing"
    if hangs:
        return f"; the last line of its console is {lines[-1][:200]!r}"
    return f": {lines[-1][:200]}"


def _shorten_option(line: str) -> str:
    """Shortens the option that QEMU repeats in an error message to the option's name."""
    program, _, rest = line.partition(": -")
    option, colon, message = rest.partition(": ")
    if not colon:
        return line
    return f"{program}: -{option.split(' ')[0]}: {message}"


@contextlib.contextmanager
def stop_on_exit(process: HypervisorProcess, *closers: Callable[[], None]) -> Iterator[None]:
    """Calls the closers and stops the process with everything that belongs to it when the context is left.

    If the agent stops responding, raises a `MachineError` with the reason and the guest's console.
    """
    try:
        yield
    except CallError:
        raise
    except AgentError as error:
        ended = not process.is_running() or process.wait(EXIT_DEADLINE_S) is not None
        if ended:
            process.console.wait_for_end()
            _check_limits(process, f" ({error.message})")
        cause = Cause.ENDED if ended else Cause.HANGS
        raise MachineError(
            f"the guest {cause.words}{_quote_console(process)} ({error.message})",
            hint=error.hint,
            cause=cause,
            console=process.console.read_text(),
        ) from error
    finally:
        for close in closers:
            with contextlib.suppress(OSError):
                close()
        process.stop()


def make_mismatch(what: str, asked: object, found: object, guest: Guest) -> AttestationError:
    """Returns the error for a guest that differs from what was requested, with both values."""
    return AttestationError(
        f"{what} is not what was asked for: asked for {asked}, found {found}",
        console=guest.process.console.read_text(),
    )


def narrow_machine(machine: Machine, cell: Cell, names: Collection[str]) -> Machine:
    """Returns a guest that several cells share as one of them sees it: only with the disks of these names."""
    if isinstance(machine, Guest):
        return _narrow_guest(machine, cell, names)
    if isinstance(machine, GuestWithin):
        within = copy.copy(machine)
        within.inner = _narrow_guest(machine.inner, cell, names)
        return cast("Machine", within)
    raise TypeError(f"{type(machine).__name__} cannot be shared")


def _narrow_guest(guest: Guest, cell: Cell, names: Collection[str]) -> Guest:
    disks = [replace(disk, facts=Mount()) for disk in guest.disks if disk.spec.name in names]

    def check(narrowed: Guest) -> GuestMachine:
        found = guest.check(narrowed)
        found.asked = {**found.asked, **cell.factors}
        return found

    return replace(guest, cell=cell, check=check, disks=tuple(disks))


class GuestPlatform(Platform, Protocol):
    """A platform of one layer whose guests can also be started inside another guest."""

    def start(
        self, cell: Cell, deadline_s: float | None = None, *, place: Place = HERE
    ) -> contextlib.AbstractContextManager[Guest]:
        """See `Platform.start`; the hypervisor runs at `place`, and the start may take `deadline_s`."""

    def find_missing(self, levels: Levels) -> Unusable | None:
        """Returns a finding about what has to be installed for guests with these levels; None if nothing is missing."""


class GuestWithin:
    """A guest inside another machine; `inner` is the guest as that machine sees it."""

    def __init__(self, inner: Guest) -> None:
        self.inner = inner
        self.cell = inner.cell

    @property
    def agent(self) -> Agent:
        """The guest's agent."""
        return self.inner.agent

    @property
    def started_at(self) -> float:
        """When the guest's hypervisor was started."""
        return self.inner.started_at

    @property
    def groups(self) -> tuple[Path, ...]:
        """Empty, because the hypervisor is in the control groups of the machine around it."""
        return ()

    @property
    def phases(self) -> dict[str, float]:
        """The guest's phases, from the start of its hypervisor."""
        return self.inner.phases

    @property
    def process(self) -> HypervisorProcess:
        """The guest's hypervisor."""
        return self.inner.process

    @property
    def disks(self) -> tuple[AttachedDisk, ...]:
        """The guest's disks, whose images are in the machine around it."""
        return self.inner.disks

    @property
    def network(self) -> TrialNetwork | None:
        """The guest's network, whose peer is in the machine around it."""
        return self.inner.network

    @property
    def query(self) -> Callable[[str], Any] | None:
        """A function that sends a command to the hypervisor's monitor."""
        return self.inner.query

    def shut_down(self, timeout_s: float) -> None:
        """Shuts the guest down; see `Guest.shut_down`."""
        self.inner.shut_down(timeout_s)

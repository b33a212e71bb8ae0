"""Platforms without a machine of their own: an agent as in guests, as a child of this process, in what is around it.

So both are timed by the same code. `host` is one with nothing around it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.core.cause import of_errno
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, UsageError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import HostMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.own_program import agent_binary
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.platform_spec import HOST, Layer, PlatformSpec
from guestmark.disks import loop
from guestmark.disks.attached import AttachedDisk, attach_on_host
from guestmark.platforms.affinity import Seat, starting_machine, take_seat
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.place import HERE, Place
from guestmark.setting.base import DiskKind, is_disk_setting
from guestmark.setting.disk import Disks, DiskSpec

_READY_DEADLINE_S = 10.0
_STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an agent is started inside of.

    `command` becomes the agent that is named behind it, such as `unshare --mount`, or in it (`named`), and inherits the
    descriptors in `passed`. `begin` is called when it has been started: it lets the command go on where that was made
    to wait, and returns when the machine's start began, on the monotonic clock. `groups` are control groups that it is
    in, `console` the file that holds what it says beside the agent's answers.
    """

    command: Sequence[str] = ()
    agent_in_command: bool = False
    passed: tuple[int, ...] = ()
    begin: Callable[[], float] | None = None
    groups: tuple[Path, ...] = ()
    console: Path | None = None

    def read_console(self) -> str:
        """What is in `console`."""
        if self.console is not None:
            with contextlib.suppress(OSError):
                return self.console.read_text(errors="replace")
        return ""


@dataclass(slots=True)
class Host:
    """The host as a machine; only the agent is started and stopped."""

    agent: Agent
    command_line: tuple[str, ...]
    phases: dict[str, float] = field(default_factory=dict)
    vmm_pid: int | None = None
    disks: tuple[AttachedDisk, ...] = ()
    query: None = None
    place: Place = HERE
    seat: Seat = field(default_factory=Seat)
    pid: int | None = None  # of the agent, or of what it is started inside of
    within: Surroundings = field(default_factory=Surroundings)
    started_at: float = 0.0

    @property
    def groups(self) -> tuple[Path, ...]:
        """Those of what the agent is started inside of."""
        return self.within.groups

    def attest(self) -> HostMachine:
        """The host's kernel as the agent sees it. Raises `AttestationError` when it is not this process's own."""
        hello = self.agent.hello()
        here = os.uname()
        if (hello.kernel, hello.arch) != (here.release, here.machine):
            raise AttestationError(
                f"the agent does not run on this host: asked {here.release} {here.machine}, "
                f"found {hello.kernel} {hello.arch}"
            )
        return HostMachine(
            kernel=hello.kernel,
            arch=hello.arch,
            boot_id=hello.boot_id,
            processors=self.seat.placement.processors if self.seat.placement else os.cpu_count(),
            placement=self.seat.attest(self.pid),
        )

    def console(self) -> str:
        """Nothing on the host itself; what a runtime around the agent said."""
        return self.within.read_console()

    def vmm_stats(self) -> Mapping[str, float]:
        """Nothing: there is no hypervisor."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Nothing: there is no hypervisor."""
        return {}


class HostLike:
    """A platform on this host's kernel: every trial gets an agent, and a process tree, of its own.

    A subclass says what the agent is started inside of (`surroundings`), which machine that is (`machine`), and what it
    cannot be given (`check`).
    """

    def __init__(self, layer: Layer) -> None:
        self.name = str(layer)

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `UsageError` or `PlatformUnusableError` for a cell that cannot be started."""

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """What the agent is started inside of; what that needs is there inside the context."""
        yield Surroundings()

    def make_agent(self, transport: Transport) -> Agent:
        """The client of the agent."""
        return Agent(transport)

    def make_machine(self, agent: Agent, command: tuple[str, ...], seat: Seat, pid: int) -> Host:
        """The machine, whose agent has answered."""
        return Host(agent, command, seat=seat, pid=pid)

    def explain_silence(self, error: MachineError, within: Surroundings) -> MachineError:
        """The error for an agent that did not answer."""
        return error

    @contextlib.contextmanager
    def start(self, cell: Cell) -> Iterator[Host]:
        """Starts an agent for `cell`; leaving the context ends it with everything it runs.

        Raises what `check` does, and `MachineError` when the agent does not answer in time.
        """
        disks = cell.view(Disks)
        self.check_cell(cell, disks)
        with contextlib.ExitStack() as stack:
            within = stack.enter_context(self.enter_surroundings(cell, disks))
            begin = time.monotonic()
            command = (*within.command, *(() if within.agent_in_command else (str(agent_binary()), "serve")))
            seat = stack.enter_context(take_seat(cell, emulator=False))
            # What logs an image is mounted before the agent's namespace is made: it would not be seen there.
            made = stack.enter_context(attach_on_host(disks)) if any(disk.logged for disk in disks) else None
            try:
                with starting_machine():
                    process, transport = start_host_agent(
                        within.command,
                        hold=(*keeper().handles, *within.passed),
                        named=within.agent_in_command,
                    )
            except OSError as error:
                raise MachineError(
                    f"{command[0]} cannot be started: {error.strerror}", cause=of_errno(error.errno)
                ) from error
            stack.callback(_stop_agent, process)
            if within.begin is not None:
                begin = within.begin()
            agent = self.make_agent(transport)
            stack.callback(agent.close)
            try:
                agent.hello(timeout_s=_READY_DEADLINE_S)
            except MachineError as error:
                raise self.explain_silence(error, within) from error
            host = self.make_machine(agent, command, seat, process.pid)
            host.phases["ready"] = time.monotonic() - begin
            host.started_at = begin
            host.within = within
            host.disks = stack.enter_context(attach_on_host(disks)) if made is None else made
            yield host

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] | None = None
    ) -> Usable | Unusable:
        """Starts an agent and attests the machine; that takes no longer than `start`."""
        try:
            with self.start(Cell("probe", WorkloadSpec("probe"), PlatformSpec.read(self.name))) as machine:
                machine.attest()
                return Usable(machine.phases["ready"])
        except GuestmarkError as error:
            return Unusable.from_error(error)


def _stop_agent(process: subprocess.Popen[bytes]) -> None:
    """The end of its channel ends the agent and what it runs; if not, a signal does."""
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class HostPlatform(HostLike):
    """`host`: no machine is booted. Its disks are directories, or images that are mounted where only its agent is."""

    def __init__(self, layer: Layer = HOST.inner) -> None:
        super().__init__(layer)

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `UsageError` for factors, which a host cannot be given."""
        looped = any(disk.loop for disk in disks)
        others = [
            name
            for name in cell.factors
            if not (looped and is_disk_setting(name, DiskKind.LOOP))
            and is_machine_factor(name)
            and not HOST.takes_factor(name)
        ]
        if others:
            raise UsageError(
                f"the host cannot be given {', '.join(sorted(others))}", hint="factors are for guests"
            )

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Mounts of its own, where it has images to mount."""
        looped = any(disk.loop for disk in disks)
        if looped:
            loop.check_loop()
        yield Surroundings(loop.PRIVATE_MOUNTS if looped else ())

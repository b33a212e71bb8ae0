"""Platforms on this host's kernel: the same agent as in guests, run as a child of this process inside some command.

So the same code times hosts and guests. `host` is the platform with no command around the agent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.core.cause import classify_errno
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, UsageError
from guestmark.core.keeper import keeper
from guestmark.core.machine_facts import HostMachine, NetworkFacts
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_kind import is_machine_factor
from guestmark.core.platform_spec import HOST, Layer, PlatformSpec
from guestmark.disks import loop
from guestmark.disks.attached import AttachedDisk, attach_on_host
from guestmark.platforms.affinity import Seat, mark_machine_start, take_seat
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.network.host_link import make_command_prefix, open_host_network
from guestmark.platforms.network.trial_network import TrialNetwork
from guestmark.platforms.place import HERE, Place
from guestmark.setting.base import DiskKind, is_disk_setting
from guestmark.setting.disk import Disks, DiskSpec

_READY_DEADLINE_S = 10.0
_STOP_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings in which an agent is started, such as namespaces or a container.

    `command` executes the agent whose path follows it, like `unshare --mount`, or contains the agent itself
    (`agent_in_command`). It inherits the descriptors in `passed`. `begin` is called once it has been started: it
    releases a command that waits for this, and returns the monotonic time at which the machine's start began.
    `groups` are its control groups; `console` is the file with its output other than the agent's messages.
    """

    command: Sequence[str] = ()
    agent_in_command: bool = False
    passed: tuple[int, ...] = ()
    begin: Callable[[], float] | None = None
    groups: tuple[Path, ...] = ()
    console: Path | None = None

    def read_console(self) -> str:
        """Returns the content of the console's file; empty if there is none."""
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
    # Process id of the agent, or of the command in which it is started.
    pid: int | None = None
    within: Surroundings = field(default_factory=Surroundings)
    started_at: float = 0.0
    network: TrialNetwork | None = None

    @property
    def groups(self) -> tuple[Path, ...]:
        """The control groups of the command in which the agent is started."""
        return self.within.groups

    def attest(self) -> HostMachine:
        """Returns the host's kernel as the agent sees it. Raises `AttestationError` if it is not this process's own."""
        hello = self.agent.hello()
        here = os.uname()
        if (hello.kernel, hello.arch) != (here.release, here.machine):
            raise AttestationError(
                f"the agent does not run on this host: expected {here.release} {here.machine}, "
                f"found {hello.kernel} {hello.arch}"
            )
        return HostMachine(
            kernel=hello.kernel,
            arch=hello.arch,
            boot_id=hello.boot_id,
            processors=self.seat.count_processors(os.cpu_count()),
            placement=self.seat.attest(self.pid),
            network=self._attest_own_network(),
        )

    def _attest_own_network(self) -> NetworkFacts | None:
        """Returns what was attested of the machine's network; None if it uses the host's."""
        if self.network is None:
            return None
        return self.network.attest()

    def remarks(self) -> list[str]:
        """Returns remarks about its network."""
        return self.network.remarks() if self.network else []

    def console(self) -> str:
        """Returns the output of a runtime around the agent; empty on the host itself."""
        return self.within.read_console()

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns nothing, because there is no hypervisor."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Returns nothing, because there is no hypervisor."""
        return {}


class HostLike:
    """A platform on this host's kernel: every trial has a separate agent and process tree.

    A subclass defines in what the agent is started (`enter_surroundings`), the machine that results (`make_machine`),
    and which cells it rejects (`check_cell`).
    """

    def __init__(self, layer: Layer) -> None:
        self.name = str(layer)

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `UsageError` or `PlatformUnusableError` for a cell that cannot be started."""

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Yields the surroundings of the agent, which exist until the context is left."""
        yield Surroundings()

    def make_agent(self, transport: Transport) -> Agent:
        """Returns the client of the agent."""
        return Agent(transport)

    def make_machine(self, agent: Agent, command: tuple[str, ...], seat: Seat, pid: int) -> Host:
        """Returns the machine once its agent has answered."""
        return Host(agent, command, seat=seat, pid=pid)

    def explain_silence(self, error: MachineError, within: Surroundings) -> MachineError:
        """Returns the error for an agent that did not answer."""
        return error

    @contextlib.contextmanager
    def start(self, cell: Cell) -> Iterator[Host]:
        """Starts an agent for `cell`; leaving the context ends it with everything it runs.

        Raises the errors of `check_cell`, and `MachineError` if the agent does not answer in time.
        """
        disks = cell.view(Disks)
        self.check_cell(cell, disks)
        with contextlib.ExitStack() as stack:
            network = stack.enter_context(open_host_network(self.name, cell.levels))
            within = stack.enter_context(self.enter_surroundings(cell, disks))
            if network is not None:
                within = _enter_network(within, network)
            begin = time.monotonic()
            command = tuple(within.command)
            if not within.agent_in_command:
                command += (str(find_agent_binary()), "serve")
            seat = stack.enter_context(take_seat(cell, emulator=False))
            # The filesystem that logs writes to an image is mounted before the agent gets its own mount namespace, in
            # which a later mount would not be visible.
            made = stack.enter_context(attach_on_host(disks)) if any(disk.logged for disk in disks) else None
            try:
                with mark_machine_start():
                    process, transport = start_host_agent(
                        within.command,
                        hold=(*keeper().handles, *within.passed),
                        named=within.agent_in_command,
                    )
            except OSError as error:
                raise MachineError(
                    f"{command[0]} cannot be started: {error.strerror}", cause=classify_errno(error.errno)
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
            if network is not None:
                network.connect(agent)
                network.list_ends = lambda: (process.pid,)
                host.network = network
            host.disks = stack.enter_context(attach_on_host(disks)) if made is None else made
            yield host

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] | None = None
    ) -> Usable | Unusable:
        """Starts an agent and attests the machine, which takes no longer than `start`."""
        try:
            with self.start(Cell("probe", WorkloadSpec("probe"), PlatformSpec.read(self.name))) as machine:
                machine.attest()
                return Usable(machine.phases["ready"])
        except GuestmarkError as error:
            return Unusable.from_error(error)


def _enter_network(within: Surroundings, network: TrialNetwork) -> Surroundings:
    """Returns surroundings that are started inside the machine's network namespace."""
    # A command that contains the agent may create user namespaces itself, for which it has to be root here.
    command = make_command_prefix(network, as_caller=not within.agent_in_command)
    passed = (*within.passed, *network.namespaces.list_descriptors())
    return replace(within, command=(*command, *within.command), passed=passed)


def _stop_agent(process: subprocess.Popen[bytes]) -> None:
    """Waits for the agent, which ends with all that it runs when its channel closes; kills it if it does not."""
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class HostPlatform(HostLike):
    """`host`: no machine is booted. Disks are directories, or images that are mounted only for the agent."""

    def __init__(self, layer: Layer = HOST.inner) -> None:
        super().__init__(layer)

    def check_cell(self, cell: Cell, disks: Sequence[DiskSpec]) -> None:
        """Raises `UsageError` for factors that the host does not support."""
        looped = any(disk.loop for disk in disks)
        others = []
        for name in filter(is_machine_factor, cell.factors):
            of_loop = looped and is_disk_setting(name, DiskKind.LOOP)
            if not of_loop and not HOST.takes_factor(name):
                others.append(name)
        if others:
            raise UsageError(
                f"the host does not support {', '.join(sorted(others))}",
                hint="leave out factors that apply only to guests",
            )

    @contextlib.contextmanager
    def enter_surroundings(self, cell: Cell, disks: Sequence[DiskSpec]) -> Iterator[Surroundings]:
        """Yields a mount namespace for the agent if it has images to mount, else nothing."""
        if any(disk.loop for disk in disks):
            loop.check_loop()
            yield Surroundings(loop.PRIVATE_MOUNTS)
        else:
            yield Surroundings(())

"""The host itself: the same agent as in guests, as a child over a socket, so both are timed by the same code."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from guestmark.agent.binary import agent_binary, start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.keeper import keeper
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError, UsageError
from guestmark.core.machine_facts import HostMachine
from guestmark.core.model import Cell
from guestmark.core.platform_kind import of_machines
from guestmark.core.platform_spec import HOST, Layer
from guestmark.disks import loop
from guestmark.disks.attached import AttachedDisk, directories
from guestmark.platforms.affinity import Seat, placed, starting
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.place import HERE, Place
from guestmark.setting.base import On, is_disk_setting
from guestmark.setting.disk import DiskSpec, disks_of

READY_DEADLINE_S = 10.0
_STOP_DEADLINE_S = 2.0


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
    pid: int | None = None  # of the agent

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
        """Nothing: a host has no console."""
        return ""

    def vmm_stats(self) -> Mapping[str, float]:
        """Nothing: there is no hypervisor."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Nothing: there is no hypervisor."""
        return {}


class HostPlatform:
    """`host`: no machine is booted; every trial gets an agent, and a process tree, of its own."""

    def __init__(self, layer: Layer = HOST.inner) -> None:
        self.name = str(layer)

    @contextlib.contextmanager
    def start(self, cell: Cell) -> Iterator[Host]:
        """Starts an agent for `cell`; leaving the context ends it with everything it runs.

        Raises `UsageError` for factors, which a host cannot be given, and `MachineError` when the agent does not
        answer in time.
        """
        disks = disks_of(cell)
        _check_factors(cell, disks)
        within = loop.PRIVATE_MOUNTS if any(disk.loop for disk in disks) else ()
        if within:
            loop.check()
        begin = time.monotonic()
        command = (*within, str(agent_binary()), "serve")
        with contextlib.ExitStack() as stack:
            seat = stack.enter_context(placed(cell, emulator=False))
            # What logs an image is mounted before the agent's namespace is made: it would not be seen there.
            made = stack.enter_context(directories(disks)) if any(disk.logged for disk in disks) else None
            try:
                with starting():
                    process, transport = start_host_agent(within, hold=(keeper().lifeline,))
            except OSError as error:
                raise MachineError(f"{command[0]} cannot be started: {error.strerror}") from error
            stack.callback(stop, process)
            agent = Agent(transport)
            stack.callback(agent.close)
            agent.hello(timeout_s=READY_DEADLINE_S)
            host = Host(agent, command, {"ready": time.monotonic() - begin}, seat=seat, pid=process.pid)
            host.disks = stack.enter_context(directories(disks)) if made is None else made
            yield host

    def probe(self) -> Usable | Unusable:
        """Starts an agent and waits for its greeting."""
        from guestmark.core.model import WorkloadSpec

        try:
            with self.start(Cell("probe", WorkloadSpec("probe"), HOST)) as host:
                host.attest()
                return Usable(host.phases["ready"])
        except GuestmarkError as error:
            return Unusable(error.message, error.hint)


def _check_factors(cell: Cell, disks: Sequence[DiskSpec]) -> None:
    looped = any(disk.loop for disk in disks)
    others = [
        name
        for name in cell.factors
        if not (looped and is_disk_setting(name, On.LOOP)) and of_machines(name) and not HOST.takes(name)
    ]
    if others:
        raise UsageError(
            f"the host cannot be given {', '.join(sorted(others))}", hint="factors are for guests"
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """The end of its channel ends the agent and what it runs; if not, a signal does."""
    try:
        process.wait(_STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

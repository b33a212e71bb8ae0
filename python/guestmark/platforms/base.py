"""The interface of platforms and machines, on which workloads run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from guestmark.core.cause import Cause

if TYPE_CHECKING:
    from pathlib import Path

    from guestmark.agent.client import Agent
    from guestmark.core.context import Caller
    from guestmark.core.errors import GuestmarkError
    from guestmark.core.machine_facts import MachineFacts, NetworkFacts
    from guestmark.core.model import Cell
    from guestmark.disks.attached import AttachedDisk
    from guestmark.platforms.place import Place


@dataclass(frozen=True, slots=True)
class Usable:
    """A machine of this platform was started here; `ready_s` is the time from its start to the agent's hello.

    `confined` names what prevents its hypervisor from changing the host; empty for the host itself.
    """

    ready_s: float
    confined: str = ""


@dataclass(frozen=True, slots=True)
class Unusable:
    """The reason why this platform cannot be used here, and what the user can do about it."""

    reason: str
    hint: str = ""
    cause: Cause = Cause.OTHER

    @classmethod
    def from_error(cls, error: GuestmarkError) -> Unusable:
        """Returns a finding from the error that prevented a machine from starting."""
        return cls(error.message, error.hint, error.cause)


class BareMachine(Protocol):
    """A started machine, with or without an agent."""

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds since the start was requested, on the host's monotonic clock, by phase name."""

    @property
    def command_line(self) -> tuple[str, ...]:
        """Full command line of the hypervisor, or of the agent on the host."""

    @property
    def vmm_pid(self) -> int | None:
        """Process id of the hypervisor on the host; None on the host itself."""

    @property
    def disks(self) -> tuple[AttachedDisk, ...]:
        """The cell's disks, in the order of `Disks`."""

    @property
    def place(self) -> Place:
        """The place where the hypervisor runs, which has its processes and files."""

    @property
    def query(self) -> Callable[[str], Any] | None:
        """A function that sends a command to the hypervisor's monitor (QMP); None without a monitor."""

    def attest(self) -> MachineFacts:
        """Returns facts about the machine. Raises `AttestationError` if it is not what the cell requested."""

    def console(self) -> str:
        """Returns everything that the machine has printed so far (empty on the host)."""

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns counters of the hypervisor's process: processor seconds, resident bytes, run-queue delay."""

    def counters(self) -> Mapping[str, float]:
        """Returns the innermost hypervisor's counters since its start, which explain times; see `platforms.counters`.

        Raises `MachineError` if the hypervisor does not answer.
        """


class Machine(BareMachine, Protocol):
    """One started platform: a booted guest, or the host itself, with an agent answering on it."""

    @property
    def agent(self) -> Agent:
        """The agent that answers on the machine."""


@runtime_checkable
class HasInnerMachine(Protocol):
    """Additional members of machines inside another guest."""

    # The same machine as seen from the outer guest, with that guest's process ids and paths.
    inner: Machine


@runtime_checkable
class StartedHere(Protocol):
    """Additional members of machines that this host starts."""

    @property
    def started_at(self) -> float:
        """When its hypervisor or runtime (on the host, its agent) was executed, on the host's monotonic clock."""

    @property
    def groups(self) -> tuple[Path, ...]:
        """The control groups that hold the machine and nothing else; empty if it has none."""


class MachineNetwork(Protocol):
    """A machine's network, with one other machine, its peer: usually in a separate network namespace."""

    @property
    def peer(self) -> Agent:
        """The agent that answers on the peer."""

    @property
    def peer_address(self) -> str:
        """IPv4 address at which the machine reaches the peer, or `vsock:CID`."""

    @property
    def listen_address(self) -> str:
        """Address at which servers on the peer listen; as `peer_address` in form."""

    @property
    def machine_address(self) -> str | None:
        """IPv4 address at which the peer reaches the machine; None if only the machine can connect."""

    @property
    def machine_ports(self) -> range:
        """Ports at which servers on the machine can be reached, and that the peer must not use."""

    def reach_machine(self, port: int) -> tuple[str, int]:
        """Returns the address and port at which the peer reaches a server on the machine.

        Raises `PlatformUnusableError` if the peer cannot reach it.
        """

    @property
    def is_here(self) -> bool:
        """Whether the peer is a process of this host, and not of an outer guest."""

    @property
    def kernel_pid(self) -> int | None:
        """The process on this host that is the machine's kernel and handles packets itself; None if there is none."""

    def read_mover_s(self) -> float:
        """Returns the processor seconds, so far, of movers on this host other than peer, hypervisor and that kernel."""

    def attest(self) -> NetworkFacts:
        """Returns facts about the network. Raises `AttestationError` if it is not what the cell requested."""


@runtime_checkable
class TimesAnswer(Protocol):
    """An additional member of machines about which more is asked between their first answer and their first use."""

    @property
    def answered_at(self) -> float:
        """When the first answer came, on the monotonic clock."""


@runtime_checkable
class HasNetwork(Protocol):
    """Additional members of machines that can have a network."""

    @property
    def network(self) -> MachineNetwork | None:
        """The machine's network; None with `network=none`."""


@runtime_checkable
class ListsProcesses(Protocol):
    """Additional members of machines whose processes on this host do not all descend from one process."""

    def list_pids(self) -> list[int]:
        """Returns the processes of this host that the machine consists of; none if unknown."""


@runtime_checkable
class MakesRemarks(Protocol):
    """Additional members of machines that have remarks at the end of a trial."""

    def remarks(self) -> list[str]:
        """Returns remarks, for instance about clocks that disagree. May also complete the attested facts."""


@runtime_checkable
class LoggedIn(Protocol):
    """Additional members of machines on which commands run as another user, in another environment."""

    @property
    def scratch(self) -> str:
        """A private directory on the machine, removed with it."""

    def caller(self) -> Caller:
        """Returns that user, with environment and home directory."""


def find_login(machine: Machine) -> LoggedIn | None:
    """Returns the innermost machine, or else this one, if commands on it run as another user; else None."""
    for each in (find_innermost(machine), machine):
        if isinstance(each, LoggedIn):
            return each
    return None


@runtime_checkable
class KeepsRemoteFiles(Protocol):
    """Additional members of platforms that keep files on other machines for later runs."""

    def clean_up(self, *, dry_run: bool) -> list[str]:
        """Removes files kept there and files left by crashes; returns the paths.

        With `dry_run` it removes nothing.
        """


def find_innermost(machine: Machine) -> Machine:
    """Returns the innermost machine, as seen from the host that runs its hypervisor."""
    return machine.inner if isinstance(machine, HasInnerMachine) else machine


class Platform(Protocol):
    """Where a workload can run."""

    name: str

    def start(self, cell: Cell) -> AbstractContextManager[Machine]:
        """Starts a fresh machine for `cell`; leaving the context stops it and leaves nothing behind.

        Raises `MachineError` with the console if it is not ready before its deadline.
        """

    def probe(self) -> Usable | Unusable:
        """Returns whether the platform can be used; finds out by starting a machine, not just by looking for files."""

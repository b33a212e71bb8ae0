"""Sets up and describes interfaces of a machine or its peer, through the agent there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.wire import LinkState, VsockState
from guestmark.core.errors import MachineError, WorkloadError
from guestmark.setting.network import Offloads

# An emulated guest on a busy host takes long to start a program.
_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class LinkSetup:
    """Settings of an interface; those that are None or empty are not changed."""

    address: str = ""
    mtu: int | None = None
    offloads: Offloads | None = None
    queues: int | None = None
    ring: int | None = None

    def format_options(self) -> list[str]:
        """Returns the options of the agent's `network link`."""
        given = {
            "address": self.address or None,
            "mtu": self.mtu,
            "offloads": self.offloads,
            "queues": self.queues,
            "ring": self.ring,
        }
        return [f"--{name}={value}" for name, value in given.items() if value is not None]


def set_up_link(agent: Agent, setup: LinkSetup, *, mac: str = "", name: str = "") -> LinkState:
    """Sets up the interface with a hardware address, or with a name if it has none, and returns its new state.

    Raises `MachineError`.
    """
    which = f"--name={name}"
    if mac:
        which = f"--mac={mac}"
    return _ask_agent(agent, [which, *setup.format_options()])


def describe_link(agent: Agent, name: str) -> LinkState:
    """Returns the state of the interface with this name. Raises `MachineError`."""
    return _ask_agent(agent, [f"--name={name}"])


def switch_offloads(agent: Agent, name: str, level: Offloads) -> None:
    """Switches all offloads of an interface that can be changed. Raises `MachineError`."""
    _ask_agent(agent, [f"--name={name}", *LinkSetup(offloads=level).format_options()])


def describe_link_towards(agent: Agent, address: str) -> LinkState:
    """Returns the state of the interface from which an IPv4 address is reached. Raises `MachineError`."""
    return _ask_agent(agent, [f"--towards={address}"])


def describe_vsock(agent: Agent) -> VsockState:
    """Returns the state of a guest's device for sockets to its hypervisor. Raises `MachineError`."""
    hint = "the guest's kernel needs the module vmw_vsock_virtio_transport; or use network=tap"
    return msgspec.msgpack.decode(_run_agent(agent, ["vsock"], hint), type=VsockState)


def _ask_agent(agent: Agent, options: Sequence[str]) -> LinkState:
    hint = "omit the factor that its card or kernel does not support, or use another network or nic"
    return msgspec.msgpack.decode(_run_agent(agent, ["link", *options], hint), type=LinkState)


def _run_agent(agent: Agent, words: Sequence[str], hint: str) -> bytes:
    try:
        done = agent.exec([PROGRAM, "network", *words], timeout_s=_LIMIT_S)
    except WorkloadError as error:
        raise MachineError(
            f"the machine's network cannot be set up: {error.message}", cause=error.cause
        ) from error
    if not done.ok:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        raise MachineError(
            f"the machine's network cannot be set up: {said[-1].removeprefix('guestmark-agent: ')}",
            hint=hint,
        )
    return done.stdout

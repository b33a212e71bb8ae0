"""Creates the network namespaces of a trial, and starts programs in them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.own_program import find_agent_binary
from guestmark.core.user_namespaces import explain_how_to_allow
from guestmark.setting.network import Offloads

_SETUP_S = 20.0
_MOST_DESCRIPTORS = 32
MACHINE_INTERFACE = "net0"
# The namespaces are private, so any address can be used.
PEER_ADDRESS, MACHINE_ADDRESS, PREFIX = "10.0.6.1", "10.0.6.2", 24


class LinkKind(Enum):
    """The part of the connection that is created with the namespaces."""

    NOTHING = auto()
    # The peer's namespace has a dummy interface, because passt needs one.
    DUMMY_INTERFACE = auto()
    # The machine also has a namespace, which a program will connect to the peer's; that has a dummy interface, too.
    PROGRAM_JOINS = auto()
    VETH = auto()
    TAP = auto()


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Settings of the interfaces; None stands for the kernel's default.

    The peer's interface has a unique name, by which its descriptors are recognized.
    """

    name: str
    mtu: int | None = None
    offloads: Offloads = Offloads.ON
    queues: int = 1
    # Whether a tap's packets have a virtio header; without it there are no offloads.
    headers: bool = False
    # Whether a program in its namespace opens the tap by name, instead of inheriting a descriptor.
    named: bool = False
    # Whether the machine's end of a veth pair has an address; otherwise the guest's kernel has it.
    addressed: bool = True

    def name_tap(self, joint: LinkKind) -> str:
        """Returns the name of the tap; empty if the ends are connected in another way."""
        if joint is LinkKind.TAP:
            return self.name
        return ""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Open descriptors of namespaces and of the queues of a tap."""

    peer: int
    # The machine's network namespace, if it has one.
    machine: int | None
    # The user namespace in which this user is root; None for root.
    users: int | None
    taps: tuple[int, ...]

    @property
    def of_machine(self) -> int:
        """The namespace with the machine's end of the link: its own, or else the peer's."""
        if self.machine is None:
            return self.peer
        return self.machine

    def list_descriptors(self) -> tuple[int, ...]:
        """Returns the descriptors that a program inherits to enter one of the namespaces."""
        return tuple(fd for fd in (self.users, self.peer, self.machine) if fd is not None)

    def make_command_prefix(self, namespace: int, *, as_caller: bool = False) -> list[str]:
        """Returns the command prefix that runs a command in a namespace.

        With `as_caller` a user other than root keeps that user id there, instead of being root in the namespace.
        """
        words = [str(find_agent_binary()), "network", "enter", f"--net={namespace}"]
        if self.users is not None:
            words.append(f"--users={self.users}")
            if as_caller:
                words.append(f"--as={os.geteuid()}:{os.getegid()}")
        return [*words, "--"]


@contextlib.contextmanager
def open_namespaces(joint: LinkKind, options: LinkOptions) -> Iterator[Namespaces]:
    """Creates the namespaces and the link between them. Raises `PlatformUnusableError` if this user may not."""
    words = [str(find_agent_binary()), "network", "make"]
    own_users = os.geteuid() != 0
    if own_users:
        words.append("--own-users")
    words += format_link_kind(joint, options)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_SETUP_S)
        try:
            done = subprocess.run(
                [*words, f"--channel={theirs.fileno()}"],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SETUP_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PlatformUnusableError(
                "the network was not set up in time", hint="run it again; see guestmark doctor"
            ) from None
        if done.returncode:
            raise _explain_failure(done.stderr.decode(errors="replace"), joint)
        _, descriptors, _, _ = socket.recv_fds(ours, 16, _MOST_DESCRIPTORS)
    try:
        yield _name_descriptors(descriptors, joint, own_users=own_users)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def format_link_kind(joint: LinkKind, options: LinkOptions) -> list[str]:
    """Returns the options of the agent's `network make`."""
    if joint is LinkKind.NOTHING:
        return []
    if joint is LinkKind.DUMMY_INTERFACE:
        return ["--dead-end"]
    if joint is LinkKind.PROGRAM_JOINS:
        return ["--dead-end", "--second"]
    words = [f"--peer={PEER_ADDRESS}/{PREFIX}", f"--queues={options.queues}"]
    if options.mtu is not None:
        words.append(f"--mtu={options.mtu}")
    if joint is LinkKind.TAP:
        words.append(f"--tap={options.name}")
        if options.headers:
            words.append("--headers")
        if options.named:
            words.append("--stays")
        return words
    words += ["--veth", options.name, MACHINE_INTERFACE]
    if options.addressed:
        words.append(f"--machine={MACHINE_ADDRESS}/{PREFIX}")
    if options.offloads is Offloads.OFF:
        words.append("--offloads=off")
    return words


def _name_descriptors(descriptors: Sequence[int], joint: LinkKind, *, own_users: bool) -> Namespaces:
    left = list(descriptors)
    users = machine = None
    if own_users:
        users = left.pop(0)
    peer = left.pop(0)
    if joint in (LinkKind.PROGRAM_JOINS, LinkKind.VETH):
        machine = left.pop(0)
    return Namespaces(peer, machine, users, tuple(left))


def _explain_failure(said: str, joint: LinkKind) -> PlatformUnusableError:
    """Returns the error for a failed set-up, with a hint at what this user needs."""
    lines = said.strip().splitlines() or ["no reason given"]
    reason = lines[-1].removeprefix("guestmark-agent: ")
    hint = "it needs root, or unprivileged user namespaces"
    if joint is LinkKind.TAP:
        hint += " and /dev/net/tun (module tun)"
    if os.geteuid() != 0:
        hint = explain_how_to_allow() or hint
    return PlatformUnusableError(f"the machine's network cannot be set up: {reason}", hint=hint)

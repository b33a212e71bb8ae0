"""Programs that connect a machine to its peer by sockets in the peer's namespace: pasta, slirp4netns, passt."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guestmark.core.distribution import make_install_hint
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_kind import Program
from guestmark.page.text import list_filled_lines
from guestmark.platforms.network.namespaces import (
    MACHINE_ADDRESS,
    MACHINE_INTERFACE,
    PEER_ADDRESS,
    PREFIX,
    Namespaces,
)
from guestmark.platforms.process import SupervisedProcess
from guestmark.setting.network import Network

PASST, PASTA, SLIRP4NETNS = (
    Program("passt", "passt"),
    Program("pasta", "passt"),
    Program("slirp4netns", "slirp4netns"),
)
# Servers on a machine behind such a program are reached through these ports on the peer's loopback.
FORWARDED = range(20000, 20016)
# The addresses of libslirp and, with slirp4netns, of the machine.
SLIRP_PEER, SLIRP_MACHINE = "10.0.2.2", "10.0.2.100"
_READY_S = 10.0
_STEP_S = 0.001


@dataclass(frozen=True, slots=True)
class Joined:
    """A program that connects the machine's namespace to the peer's, and the addresses of both ends."""

    peer_address: str
    machine_address: str
    forwards: bool
    process: SupervisedProcess


def find_program(program: Program, level: Network) -> str:
    """Returns the path of a program. Raises `PlatformUnusableError` if it is not installed."""
    if program.path is None:
        raise PlatformUnusableError(
            f"network={level} needs {program.name}, which is not installed",
            hint=make_install_hint(program.package),
        )
    return program.path


def _format_passt(program: str, mtu: int, namespaces: Namespaces) -> list[str]:
    """Returns the common options of passt and pasta: the addresses, and the ports that they forward."""
    ports = f"{FORWARDED[0]}-{FORWARDED[-1]}"
    words = [
        program, "--foreground", "--stderr", "--ipv4-only", "--address", MACHINE_ADDRESS, "--netmask", str(PREFIX),
        "--gateway", PEER_ADDRESS, "--mtu", str(mtu), "--tcp-ports", ports, "--udp-ports", ports,
    ]  # fmt: skip
    if namespaces.users is None:
        # As the user nobody it could not enter the machine's namespace, and would be no better confined.
        words += ["--runas", "0:0"]
    return words


@contextlib.contextmanager
def join_namespace(level: Network, namespaces: Namespaces, mtu: int) -> Iterator[Joined]:
    """Starts pasta or slirp4netns between the machine's namespace and the peer's. Raises `PlatformUnusableError`."""
    assert namespaces.machine is not None, "the machine has no namespace"
    path = f"/proc/self/fd/{namespaces.machine}"
    if level is Network.PASTA:
        program = find_program(PASTA, level)
        command = [
            *_format_passt(program, mtu, namespaces), "--config-net", "--ns-ifname", MACHINE_INTERFACE,
            "--tcp-ns", "none", "--udp-ns", "none", "--netns-only", "--netns", path,
        ]  # fmt: skip
        ends, forwards = (PEER_ADDRESS, MACHINE_ADDRESS), True
    else:
        program = find_program(SLIRP4NETNS, level)
        command = [
            program, "--configure", f"--mtu={mtu}", "--disable-dns", "--netns-type=path", path, MACHINE_INTERFACE,
        ]  # fmt: skip
        ends, forwards = (SLIRP_PEER, SLIRP_MACHINE), False
    with run_helper(level, command, namespaces) as process:
        _wait_for_address(process, level, namespaces)
        yield Joined(*ends, forwards, process)


@contextlib.contextmanager
def serve_guest(namespaces: Namespaces, mtu: int) -> Iterator[tuple[int, SupervisedProcess]]:
    """Starts passt; yields the descriptor of QEMU's socket to it, and its process. Raises `PlatformUnusableError`."""
    program = find_program(PASST, Network.PASST)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [*_format_passt(program, mtu, namespaces), "--one-off", "--fd", str(theirs.fileno())]
        with run_helper(Network.PASST, command, namespaces, theirs.fileno()) as process:
            theirs.close()
            yield ours.fileno(), process


@contextlib.contextmanager
def run_helper(
    level: Network, command: Sequence[str], namespaces: Namespaces, *descriptors: int
) -> Iterator[SupervisedProcess]:
    """Runs a program in the peer's namespace until the context is left.

    It is not confined like hypervisors, because it confines itself, which an outer Landlock ruleset would prevent.
    """
    process = SupervisedProcess(str(level), None)
    try:
        inherited = (*namespaces.list_descriptors(), *descriptors)
        process.start(command, inherited, within=namespaces.make_command_prefix(namespaces.peer))
        yield process
    finally:
        process.stop()


def _wait_for_address(process: SupervisedProcess, level: Network, namespaces: Namespaces) -> None:
    """Waits until a program has given the machine its interface and address.

    Raises `PlatformUnusableError` with its last line if it ends, or does not do so in time.
    """
    assert namespaces.machine is not None, "the machine has no namespace"
    # A single process polls, because starting one for each check would take processor time from the program.
    command = [
        *namespaces.make_command_prefix(namespaces.machine), str(find_agent_binary()), "network", "link",
        f"--name={MACHINE_INTERFACE}", f"--wait={_READY_S * 1e3:.0f}",
    ]  # fmt: skip
    with subprocess.Popen(
        command, pass_fds=namespaces.list_descriptors(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as look:  # fmt: skip
        try:
            while look.poll() is None and process.is_running():
                time.sleep(_STEP_S)
        finally:
            look.kill()
    if look.returncode == 0 and process.is_running():
        return
    process.console.wait_for_end()
    lines = list_filled_lines(process.console.read_text())
    # passt complains about a missing system log after the lines that matter.
    said = [line for line in lines if "syslog" not in line] or ["it printed nothing"]
    raise PlatformUnusableError(
        f"network={level} cannot be used here: {said[-1][:200]}",
        hint="install a newer version of this program, or use network=veth",
    )

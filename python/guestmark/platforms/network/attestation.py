"""Determines what connects a machine and its peer, and compares it with the cell's factors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guestmark.agent.binary import PROGRAM
from guestmark.agent.client import Agent
from guestmark.agent.traffic import ANY_ADDRESS
from guestmark.agent.wire import LinkState, NetworkProcess
from guestmark.core.errors import AttestationError
from guestmark.core.levels import Levels
from guestmark.core.machine_facts import LinkEnd, Mover, NetworkFacts, VsockEnd
from guestmark.platforms.network.links import describe_link, describe_vsock
from guestmark.platforms.network.movers import (
    Roots,
    Surroundings,
    count_vhost_ns,
    describe_movers,
    name_ties,
)
from guestmark.setting.base import Check
from guestmark.setting.network import MTU, NETWORK, NIC_QUEUES, NIC_RING, OFFLOADS, Network, Offloads

PROBE_BYTES = 256 << 10
_VSOCK_DRIVER = "vmw_vsock_virtio_transport"
_CARRIER_S = 6.0
_PAUSE_S = 0.1
_PROBE_S = 30.0
# The beginning of libslirp's hardware address, before its IPv4 address.
_OF_LIBSLIRP = "52:55:"
_BY_LIBSLIRP = (Network.USER, Network.SLIRP4NETNS)
_BY_PASST = (Network.PASST, Network.PASTA)
# If one of these offloads is off, each packet is segmented or checksummed separately.
_DECISIVE = ("tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-tcp-segmentation")


@dataclass(frozen=True, slots=True)
class End:
    """One end of a network: its agent, its interface's name, and the address at which the other end reaches it."""

    agent: Agent
    interface: str
    address: str


@dataclass(frozen=True, slots=True)
class Path:
    """A network, described for its attestation.

    `drivers` are those that may drive the machine's interface. `direct` is true if packets of one kernel reach the
    other, `offloads` if both ends can leave checksums and segmentation to each other. `counts` is false if the
    machine's kernel may be one that counts no bytes. The peer `listens` at an address of its own. `by_kernel` is true
    if threads of the kernel move the bytes for the hypervisor. `serial_program` is the program that it starts
    to carry the packets of a serial line.
    """

    levels: Levels
    surroundings: Surroundings
    machine: End
    peer: End
    peer_pid: int
    roots: Roots
    drivers: tuple[str, ...] = ()
    direct: bool = True
    offloads: bool = True
    tap: str = ""
    counts: bool = True
    listens: str = ANY_ADDRESS
    by_kernel: bool = False
    serial_program: str = ""

    @property
    def level(self) -> Network:
        """The requested kind of network."""
        return self.levels[NETWORK]


def attest_network(path: Path) -> NetworkFacts:
    """Returns the facts of a network. Raises `AttestationError` with both values if they are not as requested."""
    machine_before = _wait_for_carrier(path.machine)
    peer_before = describe_link(path.peer.agent, path.peer.interface)
    probed = _watch_probe(path)
    machine = describe_link(path.machine.agent, path.machine.interface)
    peer = describe_link(path.peer.agent, path.peer.interface)
    for check in (
        *_check_links(path, machine, peer),
        *_check_offloads(path, machine, peer),
        *_check_counters(path, (machine_before, machine), (peer_before, peer)),
        *_check_program(path, machine),
    ):
        _require(check)
    _require_carriers(path, probed)
    return NetworkFacts(
        network=path.level,
        machine=describe_end(machine),
        peer=describe_end(peer),
        movers=probed.movers,
        vhost=probed.vhost,
        peer_processors=probed.peer_processors,
        probe_bytes=PROBE_BYTES,
    )


def attest_vsock(path: Path, cid: int) -> NetworkFacts:
    """Returns the facts of a guest's sockets to the kernel of its hypervisor.

    Raises `AttestationError` if the device does not have the context identifier `cid`, or that kernel did not move the
    bytes.
    """
    state = describe_vsock(path.machine.agent)
    _require(Check("the driver", _VSOCK_DRIVER, state.driver))
    _require(Check("the context identifier of the machine", cid, state.cid))
    probed = _watch_probe(path)
    _require_carriers(path, probed)
    return NetworkFacts(
        network=path.level,
        vsock=VsockEnd(driver=state.driver, cid=state.cid, virtio=_list_set_bits(state.virtio)),
        movers=probed.movers,
        vhost=probed.vhost,
        peer_processors=probed.peer_processors,
        probe_bytes=PROBE_BYTES,
    )


@dataclass(frozen=True, slots=True)
class _Probed:
    """Who moved a probe's bytes; `vhost` is true if a thread of the kernel did."""

    movers: list[Mover]
    vhost: bool
    peer_processors: str


def _watch_probe(path: Path) -> _Probed:
    """Sends some bytes and returns who moved them. Raises `AttestationError` if they do not arrive."""
    around = path.surroundings.find_processes(path.roots, path.tap)
    _require_no_strangers(around)
    before = {process.pid: process.worked_ns for process in around}
    vhost_before = count_vhost_ns(around)
    send_probe(path.machine.agent, path.peer.agent, path.peer.address, path.listens, direct=path.direct)
    around = path.surroundings.find_processes(path.roots, path.tap)
    vhost = (count_vhost_ns(around) or 0) > (vhost_before or 0)
    return _Probed(describe_movers(around, before), vhost, _find_processors(around, path.peer_pid))


def _require(check: Check) -> None:
    if check.asked != check.found:
        raise AttestationError(
            f"the machine's network is not what was asked for: {check.what}: "
            f"asked for {check.asked}, found {check.found}"
        )


def _require_no_strangers(around: list[NetworkProcess]) -> None:
    """Raises `AttestationError` if the network contains a process that was not started for it."""
    for process in around:
        if not (process.is_end or process.is_joiner):
            program = process.program or f"process {process.pid}"
            tie = " and ".join(name_ties(process))
            _require(
                Check(f"processes in the network, found by their {tie}", "machine and peer only", program)
            )


def _find_processors(around: list[NetworkProcess], pid: int) -> str:
    """Returns the processors that a process may use, as a list in text; empty if it is not in the network."""
    for process in around:
        if process.pid == pid:
            return process.processors
    return ""


def _wait_for_carrier(end: End) -> LinkState:
    """Returns the state of an interface once its link is up, or after some seconds: e1000e's link needs two."""
    deadline = time.monotonic() + _CARRIER_S
    state = describe_link(end.agent, end.interface)
    # An interface without a driver, such as gVisor's, has no link either.
    while state.up and state.driver and not state.carrier and time.monotonic() < deadline:
        time.sleep(_PAUSE_S)
        state = describe_link(end.agent, end.interface)
    return state


def _require_carriers(path: Path, probed: _Probed) -> None:
    """Raises `AttestationError` unless the kernel and as many processes moved the bytes as the network needs."""
    _require(Check("whether a vhost thread of the kernel moved bytes", path.by_kernel, probed.vhost))
    needed = len(path.roots.joiners) + bool(path.serial_program)
    programs = sorted(mover.program for mover in probed.movers)
    names = ", ".join(programs) or "none"
    if len(programs) != needed:
        _require(Check("processes that move the network's bytes", needed, f"{len(programs)} ({names})"))
    if path.serial_program and path.serial_program not in programs:
        _require(Check("the program that carries the packets", path.serial_program, names))


def send_probe(machine: Agent, peer: Agent, address: str, listen_address: str, *, direct: bool) -> None:
    """Sends some bytes from the machine to the peer. Raises `AttestationError` if they do not arrive.

    The machine reaches the peer at `address`, where the peer listens at `listen_address`. If packets of one kernel
    reach the other (`direct`), the peer refuses packets that passed a router.
    """
    words = [f"--bytes={PROBE_BYTES}"]
    if direct:
        words.append("--direct")
    sink = peer.background([PROGRAM, "network", "sink", f"{listen_address}:0", *words])
    sink.wait(_PROBE_S, lambda output: output.endswith(b"\n"))
    port = sink.read_text().strip()
    if not port.isdecimal():
        raise AttestationError(
            f"the machine's network cannot be tested: {port or 'the peer does not listen'}"
        )
    target = f"{address}:{port}"
    done = machine.exec([PROGRAM, "network", "burst", target, *words], timeout_s=_PROBE_S)
    if not done.ok:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no answer in time"]
        raise AttestationError(
            f"the machine cannot reach its peer: {said[-1].removeprefix('guestmark-agent: ')}"
        )
    if not sink.wait(_PROBE_S) or sink.ended is None or sink.ended.status != 0:
        raise AttestationError("the machine reaches something at its peer's address, but not its peer")


def _check_links(path: Path, machine: LinkState, peer: LinkState) -> Iterator[Check]:
    """Yields the checks of both interfaces."""
    levels = path.levels
    if path.drivers:
        found = machine.driver.replace("-", "_")
        asked = " or ".join(path.drivers)
        if found in [name.replace("-", "_") for name in path.drivers]:
            found = asked
        yield Check("the driver", asked, found)
    if (mtu := levels.get(MTU)) is not None:
        yield Check("the MTU of the machine", mtu, machine.mtu)
    if path.direct:
        yield Check("the MTU of the peer, which must be the machine's", machine.mtu, peer.mtu)
        yield Check("the bridges of machine and peer", (None, None), (machine.master, peer.master))
        routed = (machine.routed, peer.routed)
        yield Check("whether machine and peer have a route out of the network", (False, False), routed)
    if (queues := levels.get(NIC_QUEUES)) is not None:
        yield Check("the queues of the machine", queues, machine.channels or 1)
    if (ring := levels.get(NIC_RING)) is not None:
        yield Check("the receive ring of the machine", ring, machine.rx_ring)
    # gVisor's kernel has its own interface in front of the pair's.
    if path.level is Network.VETH and not path.roots.joiners:
        ends = (machine.index, peer.index)
        yield Check("the other ends of the veth pair", ends, (peer.other_end, machine.other_end))


def _check_offloads(path: Path, *links: LinkState) -> Iterator[Check]:
    """Yields checks that offloads are on, or that all changeable offloads are off, at both ends."""
    if path.levels[OFFLOADS] is Offloads.OFF:
        for end, link in zip(("the machine", "the peer"), links, strict=True):
            yield Check(f"offloads of {end}", "none", ", ".join(link.offloads) or "none")
        return
    if not path.offloads:
        return
    for end, link in zip(("the machine", "the peer"), links, strict=True):
        off = [name for name in _DECISIVE if name not in (*link.offloads, *link.fixed)]
        yield Check(f"offloads that are off at {end}", "none", ", ".join(off) or "none")


def _check_counters(
    path: Path, machine: tuple[LinkState, LinkState], peer: tuple[LinkState, LinkState]
) -> Iterator[Check]:
    """Yields checks that the probe's bytes passed both interfaces."""
    sent = machine[1].tx_bytes - machine[0].tx_bytes
    received = peer[1].rx_bytes - peer[0].rx_bytes
    if path.counts or machine[1].tx_bytes:
        yield Check("whether bytes left through the machine's interface", True, sent >= PROBE_BYTES)
    yield Check("whether bytes arrived at the peer's interface", True, received >= PROBE_BYTES)


def _check_program(path: Path, machine: LinkState) -> Iterator[Check]:
    """Yields a check that the right program answers for the peer; libslirp is recognized by its hardware address."""
    macs = [neighbour.mac for neighbour in machine.neighbours if neighbour.address == path.peer.address]
    if path.level in (*_BY_LIBSLIRP, *_BY_PASST):
        asked = "passt"
        if path.level in _BY_LIBSLIRP:
            asked = "libslirp"
        yield Check(
            "the program that answers for the peer, by hardware address", asked, _identify_program(macs)
        )


def _identify_program(macs: Sequence[str]) -> str:
    if not macs:
        return "none"
    if any(mac.startswith(_OF_LIBSLIRP) for mac in macs):
        return "libslirp"
    return "passt"


def describe_end(link: LinkState) -> LinkEnd:
    """Returns the facts of one end."""
    return LinkEnd(
        driver=link.driver,
        mtu=link.mtu,
        offloads=list(link.offloads),
        fixed=list(link.fixed),
        queues=link.channels or 1,
        ring=link.rx_ring,
        interrupts=list(link.interrupts),
        virtio=_list_set_bits(link.virtio) or None,
        congestion_control=link.congestion_control,
        ipv6=link.ipv6,
    )


def _list_set_bits(bits: str) -> list[int]:
    return [number for number, bit in enumerate(bits) if bit == "1"]

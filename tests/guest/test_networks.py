"""Networks of machines: that bytes pass, what attestation finds, and that nothing beyond the peer is reachable."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from guestmark.agent.binary import PROGRAM
from guestmark.agent.traffic import measure_traffic, serve_traffic
from guestmark.agent.wire import TrafficTask, TrafficTest
from guestmark.core.errors import (
    AttestationError,
    GuestmarkError,
    MachineError,
    PlatformUnusableError,
    UsageError,
    WorkloadError,
)
from guestmark.core.machine_facts import MachineFacts, NestedMachine, NetworkFacts
from guestmark.core.platform_kind import index_platform_kinds
from guestmark.core.procfs import list_processes
from guestmark.platforms.base import HasNetwork, Machine
from guestmark.platforms.network import helpers
from guestmark.platforms.network.trial_network import TrialNetwork
from guestmark.platforms.qemu.nested.place import InnerProcess
from guestmark.platforms.vmm.platform import HYPERVISORS
from tests.framework.guests import start
from tests.framework.marks import long
from tests.framework.processes import wait_until

BYTES = 3 << 20
# A machine with a network, by what moves its bytes.
WAYS = [
    ("host", "veth", ()),
    ("host", "host", ()),
    ("host", "pasta", ("passt",)),
    ("host", "slirp4netns", ("slirp4netns",)),
    ("bwrap", "veth", ()),
    long("crun", "veth", ()),
    long("runc", "veth", ()),
    long("podman", "pasta", ("passt",)),
    long("gvisor", "veth", ("runsc",)),
    ("uml", "tap", ("linux.uml",)),
    long("uml", "raw", ("linux.uml",)),
    long("uml", "hybrid", ("linux.uml",)),
    long("uml", "slirp", ("linux.uml", "slirp-fullbolt")),
    ("tcg", "tap", ("qemu-system",)),
    long("tcg", "user", ("qemu-system",)),
    long("tcg", "passt", ("qemu-system", "passt")),
]


@contextmanager
def networked(platform: str, level: str, **factors: str) -> Iterator[tuple[Machine, TrialNetwork]]:
    if any(program.path is None for program in index_platform_kinds()[platform].programs[:1]):
        pytest.skip(f"{platform} is not installed")
    with start(platform, network=level, **factors) as machine:
        assert isinstance(machine, HasNetwork)
        assert isinstance(machine.network, TrialNetwork)
        yield machine, machine.network


def attest(machine: Machine) -> NetworkFacts:
    found = machine.attest()
    assert isinstance(found, MachineFacts)
    assert found.network is not None
    return found.network


def send(machine: Machine, network: TrialNetwork) -> None:
    """Moves some bytes from the machine to the peer, and where that can be from the peer to the machine."""
    ways = [(network.peer, machine.agent, 0)]
    if network.machine_address:
        ways.append((machine.agent, network.peer, network.machine_ports[0]))
    for receiver, sender, port in ways:
        sink = receiver.background([PROGRAM, "network", "sink", f"0.0.0.0:{port}", f"--bytes={BYTES}"])
        assert sink.wait(20, lambda output: output.endswith(b"\n"))
        listening = int(sink.read_text())
        address = network.reach_machine(listening) if port else (network.peer_address, listening)
        target = f"{address[0]}:{address[1]}"
        done = sender.exec([PROGRAM, "network", "burst", target, f"--bytes={BYTES}"], timeout_s=60)
        assert done.ok, done.stderr
        assert sink.wait(20)


def refused_from(machine: Machine, addresses: list[str], port: int) -> None:
    for address in addresses:
        done = machine.agent.exec(
            [PROGRAM, "network", "burst", f"{address}:{port}", "--bytes=1"], timeout_s=2
        )
        assert not done.ok, f"{address}:{port} of this host is reachable"


def own_addresses() -> list[str]:
    done = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True)
    return [address for address in done.stdout.split() if "." in address]


@pytest.mark.parametrize(("platform", "level", "programs"), WAYS)
def test_bytes_pass_who_moves_them_is_found_and_the_host_is_out_of_reach(
    platform: str, level: str, programs: tuple[str, ...]
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, networked(platform, level) as (machine, network):
        facts = attest(machine)
        send(machine, network)
        refused_from(machine, [network.peer_address, "127.0.0.1", *own_addresses()], server.getsockname()[1])
    assert facts.network == level
    movers = [os.path.basename(mover.program) for mover in facts.movers]
    assert len(movers) == len(programs)
    for program in programs:
        assert any(mover.startswith(program) for mover in movers), (program, movers)
    for mover in facts.movers:
        assert mover.cpu_s > 0
        # slirp has no option that prints its version.
        assert mover.version or mover.program.endswith("slirp-fullbolt")
    assert facts.machine is not None
    assert facts.peer is not None
    assert facts.machine.congestion_control
    assert not facts.vhost


def test_a_machine_without_a_network_has_none_and_pays_nothing() -> None:
    with start("bwrap") as machine:
        assert isinstance(machine, HasNetwork)
        assert machine.network is None
        found = machine.attest()
        assert found.network is None


@pytest.mark.parametrize(
    ("nic", "driver"),
    [
        long("e1000", "e1000"), long("e1000e", "e1000e"), long("pcnet", "pcnet32"), long("rtl8139", "8139cp"),
        long("vmxnet3", "vmxnet3"),
    ],
)  # fmt: skip
def test_each_card_has_its_driver(nic: str, driver: str) -> None:
    with networked("tcg", "tap", nic=nic) as (machine, network):
        facts = attest(machine)
        send(machine, network)
    assert facts.machine is not None
    assert facts.machine.driver == driver
    assert facts.machine.virtio is None


@pytest.mark.long
def test_what_the_factors_ask_for_is_what_the_guest_has() -> None:
    factors = {"nic_queues": "2", "smp": "2", "nic_ring": "512", "mtu": "4000", "offloads": "off"}
    with networked("tcg", "tap", **factors) as (machine, _):
        facts = attest(machine)
    for end in (facts.machine, facts.peer):
        assert end is not None
        assert end.mtu == 4000
        assert not end.offloads
    assert facts.machine is not None
    assert (facts.machine.queues, facts.machine.ring) == (2, 512)
    # VIRTIO_NET_F_CSUM and VIRTIO_NET_F_HOST_TSO4 are not negotiated; VIRTIO_NET_F_MQ is.
    assert facts.machine.virtio is not None
    assert not {0, 11} & set(facts.machine.virtio)
    assert 22 in facts.machine.virtio


@pytest.mark.parametrize("level", ["tap", "user", "passt"])
def test_a_network_that_a_host_cannot_have_is_refused_in_one_line(level: str) -> None:
    with pytest.raises(UsageError, match=f"host cannot have network={level}"), start("host", network=level):
        pass


def test_offloads_are_refused_where_there_are_none() -> None:
    with pytest.raises(UsageError, match="no offloads"), start("host", network="pasta", offloads="off"):
        pass


# --- inside another guest

INSIDE = [
    ("tcg/kvm", "tap"),
    # In tcg/tcg it is the same path, four minutes long.
    ("tcg/kvm", "vhost"),
    ("tcg/kvm", "user"),
    ("tcg/uml", "tap"),
    ("tcg/uml", "slirp"),
]
# Firecracker and Cloud Hypervisor are not packaged.
SMALL = [f"tcg/{name}" for name, hypervisor in HYPERVISORS.items() if hypervisor.program.path]


@pytest.mark.long
@pytest.mark.parametrize(("platform", "level"), [*INSIDE, *((name, "tap") for name in SMALL)])
def test_a_guest_inside_another_one_has_its_peer_there(platform: str, level: str) -> None:
    with start(platform, network=level) as machine:
        assert isinstance(machine, HasNetwork)
        network = machine.network
        assert isinstance(network, TrialNetwork)
        found = machine.attest()
        assert isinstance(found, NestedMachine)
        facts = found.inner.network
        assert facts is not None
        send(machine, network)
        refused_from(machine, [network.peer_address, *own_addresses()], 22)
        assert not network.is_here
    assert facts.vhost is (level == "vhost")
    assert len(facts.movers) == (2 if level == "slirp" else 1)
    assert all(mover.cpu_s > 0 for mover in facts.movers)
    assert facts.machine is not None
    of_uml = "uml-netdev" if level == "slirp" else "uml-vector"
    assert facts.machine.driver == (of_uml if platform.endswith("uml") else "virtio_net")


def change_hypervisor(monkeypatch: pytest.MonkeyPatch, asked: str, given: str) -> None:
    """Starts inner hypervisors with `given` where the expression `asked` matches, behind guestmark's back."""
    start_hypervisor = InnerProcess.start

    def start_changed(process: InnerProcess, command: Sequence[str], **options: Any) -> None:
        changed = [re.sub(asked, given, word) for word in command]
        assert changed != list(command)
        start_hypervisor(process, changed, **options)

    monkeypatch.setattr(InnerProcess, "start", start_changed)


@pytest.mark.long
def test_a_vhost_that_is_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hypervisor serves the card itself, as it does where vhost cannot be started."""
    change_hypervisor(monkeypatch, ",vhost=on", ",vhost=off")
    wrong = pytest.raises(AttestationError, match=r"vhost thread .* asked for True, found False")
    with start("tcg/kvm", network="vhost") as machine, wrong:
        machine.attest()


@pytest.mark.parametrize(("level", "device"), [("vhost", "vhost-net"), ("vsock", "vhost-vsock")])
def test_without_vhost_one_line_says_what_is_needed(level: str, device: str) -> None:
    if os.path.exists(f"/dev/{device}"):
        pytest.skip(f"this host has {device}")
    refused = pytest.raises(PlatformUnusableError, match=f"needs /dev/{device}")
    with refused as error, start("tcg", network=level):
        pass
    assert error.value.hint is not None
    assert f"module {device.replace('-', '_')}" in error.value.hint


@pytest.mark.long
@pytest.mark.parametrize("platform", ["tcg/kvm", *SMALL])
def test_sockets_of_a_guest_reach_the_machine_around_it(platform: str) -> None:
    """QEMU has the kernel answer; Firecracker and Cloud Hypervisor do so themselves."""
    task = TrafficTask(
        test=TrafficTest.UPLOAD, time_ns=200_000_000, flows=2, request=100, response=1000, size=0
    )
    tasks = [
        msgspec.structs.replace(task, test=test)
        for test in TrafficTest
        if test not in (TrafficTest.DATAGRAMS_UP, TrafficTest.DATAGRAMS_DOWN)
    ]
    with start(platform, network="vsock") as machine:
        assert isinstance(machine, HasNetwork)
        network = machine.network
        assert isinstance(network, TrialNetwork)
        found = machine.attest()
        assert isinstance(found, NestedMachine)
        facts = found.inner.network
        with serve_traffic(network.peer, address=network.listen_address) as ports:
            sections = list(
                measure_traffic(
                    machine.agent, network.peer_address, ports, tasks, counters=dict, timeout_s=120
                )
            )
            datagrams = [msgspec.structs.replace(task, test=TrafficTest.DATAGRAMS_UP, size=64)]
            with pytest.raises(WorkloadError, match="vsock carries no datagrams"):
                list(
                    measure_traffic(
                        machine.agent, network.peer_address, ports, datagrams, counters=dict, timeout_s=120
                    )
                )
        with pytest.raises(PlatformUnusableError, match="cannot reach port"):
            network.reach_machine(5000)
    assert facts is not None
    assert facts.vsock is not None
    by_kernel = platform == "tcg/kvm"
    assert (facts.vhost, facts.machine) == (by_kernel, None)
    assert facts.vsock.driver == "vmw_vsock_virtio_transport"
    program = "qemu-system-x86_64" if by_kernel else platform.removeprefix("tcg/")
    assert [os.path.basename(mover.program) for mover in facts.movers] == [program]
    for section in sections:
        moved = sum(flow.bytes for flow in section.result.flows)
        answered = section.result.times.count if section.result.times else 0
        assert moved or answered, section.task
        assert all(flow.sender is None for flow in section.result.flows)


@pytest.mark.long
@pytest.mark.parametrize("name", HYPERVISORS)
def test_a_program_beside_a_small_hypervisor_is_found(name: str, tmp_path: Path) -> None:
    """It was started by the same script, so it is a descendant of the process that should move the bytes."""
    script = tmp_path / "beside"
    vmm = HYPERVISORS[name].program.path
    if vmm is None:
        pytest.skip(f"{name} is not installed")
    script.write_text(f'#!/bin/sh\n[ "$1" = --version ] || while :; do :; done &\nexec {vmm} "$@"\n')
    script.chmod(0o755)
    wrong = pytest.raises(AttestationError, match=r"processes that move the network's bytes: .* found 2")
    with start(f"tcg/{name}", network="tap", vmm=str(script)) as machine, wrong:
        machine.attest()


@pytest.mark.long
def test_another_guest_s_sockets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    change_hypervisor(monkeypatch, "guest-cid=[0-9]+", "guest-cid=77")
    wrong = pytest.raises(AttestationError, match=r"context identifier .* found 77")
    with start("tcg/kvm", network="vsock") as machine, wrong:
        machine.attest()


@pytest.mark.parametrize(
    "factors",
    [{"mtu": "1400"}, {"nic": "e1000"}, {"nic_queues": "2"}, {"nic_ring": "256"}, {"offloads": "off"}],
    ids=str,
)
def test_sockets_have_no_settings_of_packets(factors: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="network=vsock"), start("tcg", network="vsock", **factors):
        pass


def test_vhost_is_refused_for_a_card_that_is_not_virtio() -> None:
    with pytest.raises(UsageError, match="needs nic=virtio-net"), start("tcg", network="vhost", nic="e1000"):
        pass


# --- lies


def order_peer(network: TrialNetwork, *options: str) -> None:
    """Changes the peer's interface behind guestmark's back."""
    done = network.peer.exec(
        [PROGRAM, "network", "link", f"--name={network.peer_name}", *options], timeout_s=20
    )
    assert done.ok, done.stderr


def test_an_offload_that_is_off_at_one_end_is_found() -> None:
    with networked("host", "veth") as (machine, network):
        order_peer(network, "--offloads=off")
        with pytest.raises(AttestationError, match="offloads that are off at the peer"):
            machine.attest()


def test_another_mtu_at_one_end_is_found() -> None:
    with networked("host", "veth") as (machine, network):
        order_peer(network, "--mtu=1400")
        with pytest.raises(AttestationError, match="MTU of the peer"):
            machine.attest()


def test_a_process_in_between_is_found() -> None:
    with networked("host", "veth") as (machine, network):
        spaces = network.namespaces
        command = [*spaces.make_command_prefix(spaces.peer), "sleep", "60"]
        with subprocess.Popen(command, pass_fds=spaces.list_descriptors()) as relay:
            try:
                while os.readlink(f"/proc/{relay.pid}/exe").endswith("guestmark-agent"):
                    pass
                with pytest.raises(AttestationError, match="in the network, found by their namespace"):
                    machine.attest()
            finally:
                relay.kill()
        attest(machine)


def test_a_process_that_shares_the_tap_is_found() -> None:
    with networked("uml", "tap") as (machine, network):
        spaces = network.namespaces
        code = (
            "import fcntl, os, struct, sys; tap = os.open('/dev/net/tun', os.O_RDWR)\n"
            "try: fcntl.ioctl(tap, 0x400454CA, struct.pack('16sH22x', sys.argv[1].encode(), 0x5002))\n"
            "except OSError as error: print(error, flush=True)\n"
            "else: print('has it', flush=True)\n"
            "sys.stdin.read()"
        )
        program = ["python3", "-c", code, network.tap]
        command = [*spaces.make_command_prefix(spaces.peer), *program]
        with subprocess.Popen(
            command, pass_fds=spaces.list_descriptors(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as thief:
            assert thief.stdout is not None
            thief.stdout.readline()
            with pytest.raises(AttestationError, match="processes in the network"):
                machine.attest()


@pytest.mark.long
def test_packets_that_came_through_a_router_are_not_taken_for_direct_ones() -> None:
    with networked("host", "veth") as (machine, network):
        spaces = network.namespaces
        assert spaces.machine is not None
        # As if each had passed one.
        command = [*spaces.make_command_prefix(spaces.machine), "sysctl", "-qw", "net.ipv4.ip_default_ttl=63"]
        subprocess.run(command, pass_fds=spaces.list_descriptors(), check=True)
        with pytest.raises(AttestationError, match="cannot reach its peer"):
            machine.attest()


def order_in(pid: int, *words: str) -> None:
    """Runs a command in the network namespace of a process."""
    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *words], check=True)


@contextlib.contextmanager
def router() -> Iterator[int]:
    """Yields a process in a network namespace that forwards packets."""
    script = "sysctl -qw net.ipv4.ip_forward=1; echo ready; exec sleep 60"
    with subprocess.Popen(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
def test_a_machine_in_the_middle_is_found() -> None:
    """Packets go through a third network, which forwards them."""
    with networked("host", "veth") as (machine, network), router() as hop:
        ends = (network.list_ends()[0], network.peer_pid)
        for pid, net in zip(ends, ("10.9.1", "10.9.2"), strict=True):
            near, far = f"near{net[-1]}", f"far{net[-1]}"
            order_in(pid, "ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", str(hop))
            for place, name, address in ((pid, near, f"{net}.1/24"), (hop, far, f"{net}.2/24")):
                order_in(place, "ip", "address", "add", address, "dev", name)
                order_in(place, "ip", "link", "set", name, "up")
        attest(machine)
        order_in(hop, "ip", "route", "add", network.peer_address, "via", "10.9.2.1")
        order_in(ends[1], "ip", "route", "add", "10.9.1.0/24", "via", "10.9.2.2")
        order_in(ends[0], "ip", "route", "add", network.peer_address, "via", "10.9.1.2")
        with pytest.raises(AttestationError, match="cannot reach its peer"):
            machine.attest()


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="binutils is not installed")
def test_a_program_that_was_built_to_be_debugged_is_named(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real pasta, with what a compiler leaves in a program that it was not asked to optimise."""
    if helpers.PASTA.path is None:
        pytest.skip("passt is not installed")
    folder = tmp_path_factory.mktemp("debug")
    (folder / "producer").write_bytes(b"GNU C17 12.2.0 -mtune=generic -g -O0\0")
    program = os.path.realpath(helpers.PASTA.path)
    words = ["objcopy", "--add-section", f".debug_str={folder / 'producer'}", program, str(folder / "pasta")]
    subprocess.run(words, check=True)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    with networked("host", "pasta") as (machine, network):
        facts = attest(machine)
        (remark,) = network.remarks()
    assert [mover.debug for mover in facts.movers] == [True]
    assert "is a debug build" in remark


def test_slirp4netns_under_the_name_of_pasta_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it has the addresses that pasta would have."""
    if helpers.SLIRP4NETNS.path is None or helpers.PASTA.path is None:
        pytest.skip("slirp4netns and passt are not installed")
    script = tmp_path_factory.mktemp("lie") / "pasta"
    script.write_text(
        "#!/bin/sh\nfor word; do case $before in --netns) space=$word ;; esac; before=$word; done\n"
        'exec slirp4netns --configure --mtu=65520 --disable-dns --cidr=10.0.6.0/24 --netns-type=path "$space" net0\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(helpers, "PEER_ADDRESS", "10.0.6.2")
    with networked("host", "pasta") as (machine, network):
        network.peer_address = "10.0.6.2"
        with pytest.raises(AttestationError, match="asked for passt, found libslirp"):
            machine.attest()


# --- faults


def test_nothing_is_left_of_a_network_whose_owner_is_killed() -> None:
    code = (
        "import os, sys, time\nfrom tests.framework.guests import start\n"
        "with start('host', network='veth') as machine:\n"
        "    spaces = machine.network.namespaces\n"
        "    print(*(os.fstat(fd).st_ino for fd in (spaces.peer, spaces.machine)), flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        inodes = set(map(int, owner.stdout.readline().split()))
        assert len(inodes) == 2
        assert inodes <= list_network_namespaces()
        owner.kill()
    assert wait_until(lambda: not inodes & list_network_namespaces(), 20)


def list_network_namespaces() -> set[int]:
    """Returns the network namespaces of all processes; one without a process, descriptor or name is gone."""
    found = set()
    for pid in list_processes():
        with contextlib.suppress(OSError):
            found.add(os.stat(f"/proc/{pid}/ns/net").st_ino)
    return found


def test_without_tun_one_line_says_what_is_needed() -> None:
    code = (
        "from guestmark.core.errors import GuestmarkError\nfrom tests.framework.guests import start\n"
        "try:\n    with start('uml', network='tap'): print('started')\n"
        "except GuestmarkError as error: print(f'{error.message} | {error.hint}')\n"
    )
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"]
    done = subprocess.run([*hidden, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the machine's network cannot be set up: /dev/net/tun" in done.stdout
    assert "module tun" in done.stdout


@pytest.mark.long
def test_a_link_that_goes_down_is_told_from_a_slow_one() -> None:
    with networked("host", "veth") as (machine, network):
        spaces = network.namespaces
        command = [*spaces.make_command_prefix(spaces.peer), "ip", "link", "set", network.peer_name, "down"]
        subprocess.run(command, pass_fds=spaces.list_descriptors(), check=True)
        with pytest.raises(GuestmarkError, match="cannot reach its peer"):
            machine.attest()


FIREWALL = "for chain in INPUT OUTPUT FORWARD; do iptables -P $chain DROP; done"
NO_IPV6 = "for kind in all default; do sysctl -qw net.ipv6.conf.$kind.disable_ipv6=1; done"


@pytest.mark.skipif(shutil.which("iptables") is None, reason="iptables is not installed")
@pytest.mark.parametrize("level", ["veth", "pasta", "slirp4netns"])
@pytest.mark.parametrize("rules", [FIREWALL, NO_IPV6], ids=["firewall", "no IPv6"])
def test_what_a_host_does_to_its_own_network_is_no_matter(rules: str, level: str) -> None:
    """In a namespace that plays the host: nothing passes there, but machine and peer do without it."""
    code = (
        "from tests.guest.test_networks import attest, networked, send\n"
        f"with networked('host', '{level}') as (machine, network):\n"
        "    facts = attest(machine)\n"
        "    send(machine, network)\n"
        "    print(facts.network, facts.machine.ipv6, facts.peer.ipv6)\n"
    )
    host = ["unshare", "--net", "sh", "-c", f'{rules} && exec "$@"', "sh"]
    done = subprocess.run([*host, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split()[0] == level, done.stderr
    assert done.stdout.split()[1:] == ["False", "False"]


@pytest.mark.long
def test_an_mtu_that_a_card_does_not_have_is_said() -> None:
    wrong = pytest.raises(MachineError, match="an MTU of 9000")
    with wrong, start("tcg", network="tap", nic="pcnet", mtu="9000"):
        pass


@pytest.mark.long
@pytest.mark.parametrize("test", [TrafficTest.UPLOAD, TrafficTest.DOWNLOAD, TrafficTest.REQUEST])
def test_a_link_that_goes_down_in_the_middle_costs_one_line(test: TrafficTest) -> None:
    with networked("host", "veth") as (machine, network), serve_traffic(network.peer) as ports:

        def cut() -> dict[str, float]:
            order_in(network.peer_pid, "ip", "link", "set", network.peer_name, "down")
            return {}

        task = TrafficTask(test=test, time_ns=10**9, flows=2, request=1, response=1, size=0)
        # The cut may come before the last connection.
        with pytest.raises(WorkloadError, match=r"the other end was silent for 20 s|No route to host"):
            list(
                measure_traffic(
                    machine.agent, network.peer_address, ports, [task], counters=cut, timeout_s=60
                )
            )


@pytest.mark.parametrize("test", [TrafficTest.UPLOAD, long(TrafficTest.DOWNLOAD)])
def test_two_hundred_streams_are_all_counted(test: TrafficTest) -> None:
    with networked("host", "veth") as (machine, network), serve_traffic(network.peer) as ports:
        task = TrafficTask(test=test, time_ns=3 * 10**8, flows=200, request=1, response=1, size=0)
        (section,) = measure_traffic(
            machine.agent, network.peer_address, ports, [task], counters=dict, timeout_s=60
        )
    assert len(section.result.flows) == 200
    assert sum(flow.bytes for flow in section.result.flows)


def test_without_namespaces_one_line_says_what_is_needed() -> None:
    """In a user namespace that allows no others; to guestmark it is another user's, whose root cannot help."""
    code = (
        "import os; os.geteuid = lambda: 1000\n"
        "from guestmark.core.errors import GuestmarkError\nfrom tests.framework.guests import start\n"
        "try:\n    with start('host', network='veth'): print('started')\n"
        "except GuestmarkError as error: print(f'{error.message} | {error.hint}')\n"
    )
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert "the machine's network cannot be set up: a user namespace cannot be created" in line
    assert not line.endswith("| ")

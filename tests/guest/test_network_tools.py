"""What others say of the same network: ethtool about its ends, ss about a stream, iperf3 about its speed."""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from guestmark.agent.client import Agent
from guestmark.agent.traffic import measure_traffic, serve_traffic
from guestmark.agent.wire import TrafficFlow, TrafficPorts, TrafficResult, TrafficTask, TrafficTest
from guestmark.core.machine_facts import LinkEnd, MachineFacts, NetworkFacts
from guestmark.platforms.base import HasNetwork, Machine
from guestmark.platforms.network.trial_network import TrialNetwork
from tests.framework.guests import start
from tests.framework.marks import long

LIMIT = 60.0
# What ethtool calls otherwise than the kernel does.
ETHTOOL_NAMES = {
    "rx-checksumming": "rx-checksum",
    "generic-segmentation-offload": "tx-generic-segmentation",
    "generic-receive-offload": "rx-gro",
    "large-receive-offload": "rx-lro",
    "rx-vlan-offload": "rx-vlan-hw-parse",
    "tx-vlan-offload": "tx-vlan-hw-insert",
    "ntuple-filters": "rx-ntuple-filter",
    "receive-hashing": "rx-hashing",
}
# Work on packets that is left to a card or to the other end.
OFFLOAD = re.compile(r"tx-checksum-ip.*|tx-(generic|tcp.*|udp)-segmentation|rx-(gro|lro|gro-hw)")
# A path so slow that no processor decides: whoever counts right finds its rate.
RATE = 200e6
SLOW = ("tbf", "rate", f"{RATE:.0f}bit", "burst", "32kb", "latency", "20ms")


@contextmanager
def networked(
    platform: str, level: str, **factors: str
) -> Iterator[tuple[Machine, TrialNetwork, NetworkFacts]]:
    with start(platform, network=level, **factors) as machine:
        assert isinstance(machine, HasNetwork)
        assert isinstance(machine.network, TrialNetwork)
        facts = machine.attest()
        assert isinstance(facts, MachineFacts)
        assert facts.network is not None
        yield machine, machine.network, facts.network


def ask(agent: Agent, *words: str) -> str:
    done = agent.exec(list(words), timeout_s=LIMIT)
    assert done.ok, done.stderr
    return done.stdout.decode()


def require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def check_end(agent: Agent, name: str, end: LinkEnd) -> None:
    """Compares an attested end with what ethtool, ip and sysctl say of it."""
    switched, unchangeable = set(), set()
    for line in ask(agent, "ethtool", "-k", name).splitlines()[1:]:
        feature, _, state = line.strip().partition(": ")
        feature = ETHTOOL_NAMES.get(feature, feature)
        # Kernels have more than the table has, such as segments for a congestion control of their own.
        if not OFFLOAD.fullmatch(feature) or "accecn" in feature:
            continue
        if state.startswith("on"):
            switched.add(feature)
        if state.endswith("[fixed]"):
            unchangeable.add(feature)
    assert set(end.offloads) == switched
    assert set(end.fixed) == unchangeable
    driver = re.search(r"^driver: (\S+)", ask(agent, "ethtool", "-i", name), re.MULTILINE)
    assert driver is not None
    assert end.driver == driver[1]
    assert f" mtu {end.mtu} " in ask(agent, "ip", "link", "show", "dev", name)
    assert ask(agent, "sysctl", "-n", "net.ipv4.tcp_congestion_control").strip() == end.congestion_control


@pytest.mark.parametrize(
    ("platform", "level", "factors"),
    [
        ("host", "veth", {}),
        ("host", "veth", {"offloads": "off", "mtu": "1400"}),
        long("tcg", "tap", {"nic_ring": "512", "mtu": "4000"}),
        long("tcg", "tap", {"nic": "e1000e"}),
        long("uml", "tap", {}),
    ],
)
def test_ethtool_says_of_both_ends_what_is_attested(
    platform: str, level: str, factors: dict[str, str]
) -> None:
    require("ethtool")
    with networked(platform, level, **factors) as (machine, network, facts):
        assert facts.machine is not None
        assert facts.peer is not None
        check_end(machine.agent, network.machine_name, facts.machine)
        check_end(network.peer, network.peer_name, facts.peer)
        if "nic_ring" in factors:
            said = ask(machine.agent, "ethtool", "-g", network.machine_name).partition("Current")[2]
            assert re.search(rf"^RX:\s+{facts.machine.ring}$", said, re.MULTILINE)


def measured(
    machine: Machine, network: TrialNetwork, ports: TrafficPorts, test: TrafficTest, *, seconds: float
) -> TrafficResult:
    task = TrafficTask(test=test, time_ns=int(seconds * 1e9), flows=1, request=14, response=14, size=0)
    (section,) = measure_traffic(
        machine.agent, network.peer_address, ports, [task], counters=dict, timeout_s=LIMIT
    )
    return section.result


def rate_of(flow: TrafficFlow) -> float:
    return flow.bytes * 8e9 / flow.elapsed_ns


# Prints, every 20 ms, the moment and how much each connection's other end has acknowledged.
WATCH = r"""
import re, subprocess, time
print("begun", flush=True)
while True:
    said = subprocess.run(["ss", "-tinH"], capture_output=True, text=True).stdout
    for found in re.finditer(r"^\s+(\w+) .*bytes_acked:(\d+)", said, re.MULTILINE):
        print(time.monotonic(), found[1], found[2], re.search(r" mss:(\d+)", found[0])[1], flush=True)
    time.sleep(0.02)
"""


def test_ss_sees_the_same_stream() -> None:
    """By its samples the stream had our rate in a part of it that is as long as the one we counted."""
    require("ss")
    with (
        networked("host", "veth") as (machine, network, _),
        serve_traffic(network.peer) as ports,
    ):
        watcher = machine.agent.background(["python3", "-c", WATCH])
        assert watcher.wait(LIMIT, lambda output: b"begun" in output)
        (flow,) = measured(machine, network, ports, TrafficTest.UPLOAD, seconds=1.0).flows
        seen = [line.split() for line in watcher.read_text().splitlines()[1:]]
        watcher.send_signal(9)
    assert flow.sender is not None
    # Other connections of the same test carry a few bytes.
    most = max(int(row[2]) for row in seen)
    assert most >= flow.bytes
    samples: list[tuple[float, int]] = []
    for moment, control, acknowledged, segment in seen:
        if samples and int(acknowledged) < samples[-1][1]:
            continue
        samples.append((float(moment), int(acknowledged)))
        if int(acknowledged) == most:
            assert control == flow.sender.congestion_control
            assert int(segment) == flow.sender.segment
    rates = []
    for (begin, first), (end, last) in itertools.combinations(samples, 2):
        if abs((end - begin) * 1e9 / flow.elapsed_ns - 1) < 0.15:
            rates.append((last - first) * 8 / (end - begin))
    assert rates
    assert min(rates) / 1.05 <= rate_of(flow) <= max(rates) * 1.05


def narrow(network: TrialNetwork) -> None:
    """Plants a path of a known rate, in both directions."""
    spaces = network.namespaces
    assert spaces.machine is not None
    for namespace, name in ((spaces.peer, network.peer_name), (spaces.machine, network.machine_name)):
        command = [*spaces.make_command_prefix(namespace), "tc", "qdisc", "add", "dev", name, "root", *SLOW]
        subprocess.run(command, pass_fds=spaces.list_descriptors(), check=True)


@pytest.mark.parametrize(("test", "more"), [(TrafficTest.UPLOAD, ()), (TrafficTest.DOWNLOAD, ("-R",))])
def test_iperf3_finds_the_same_rate(test: TrafficTest, more: Sequence[str]) -> None:
    require("iperf3", "tc")
    with (
        networked("host", "veth") as (machine, network, _),
        serve_traffic(network.peer) as ports,
    ):
        narrow(network)
        server = network.peer.background(["iperf3", "-s", "-1", "--forceflush"])
        assert server.wait(LIMIT, lambda output: b"listening" in output)
        words = ["iperf3", "-c", network.peer_address, "-J", "-t", "1", "-O", "0.5", *more]
        theirs = json.loads(ask(machine.agent, *words))["end"]["sum_received"]["bits_per_second"]
        (flow,) = measured(machine, network, ports, test, seconds=1.0).flows
    assert rate_of(flow) == pytest.approx(theirs, rel=0.05)
    # Payload: headers of 66 bytes with each 1514 take 4.4 % of the rate.
    # Beside other tests a flow falls short of the link's rate; it never exceeds it.
    assert 0.85 <= rate_of(flow) / (RATE * 1448 / 1514) <= 1.03

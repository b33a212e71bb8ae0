"""Compare our streams and requests with those of iperf3 and sockperf, over the host's `network=veth`.

`python -m bench.network [ROUNDS]`; needs iperf3 and sockperf (Debian packages). Every round runs all of them in random
order, between the same two network namespaces. Fails when our stream carries less than 0.95 of iperf3's, either way, or
when the median of our request takes more than 1.05 of sockperf's.

`python -m bench.network start [ROUNDS]` starts machines with and without a network in turn. Fails when a network adds
more than 30 ms to the median start of a kind.
"""

import functools
import json
import re
import shutil
import statistics
import sys
import time

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.agent.client import Agent
from guestmark.agent.traffic import measure_traffic, serve_traffic
from guestmark.agent.wire import TrafficPorts, TrafficResult, TrafficTask, TrafficTest
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.base import HasNetwork

SECONDS = 2
LEAST_STREAM, MOST_REQUEST = 0.95, 1.05
MOST_ADDED_S = 0.030
_STARTED = (("host", "veth"), ("bwrap", "veth"), ("uml", "tap"), ("tcg", "tap"))
_MEDIAN = re.compile(r"percentile 50\.000 *= *([0-9.]+)")
# A contender returns seconds: a stream's are those of 10^9 bits.
_GBIT = 1e9


class Contenders:
    """Each method measures once, between the two namespaces."""

    def __init__(self, agent: Agent, peer: str, ports: TrafficPorts) -> None:
        self._agent = agent
        self._peer = peer
        self._ports = ports

    def _ours(self, test: TrafficTest) -> TrafficResult:
        task = TrafficTask(test=test, time_ns=SECONDS * 10**9, flows=1, request=14, response=14, size=0)
        sections = measure_traffic(
            self._agent, self._peer, self._ports, [task], counters=dict, timeout_s=60.0
        )
        return next(iter(sections)).result

    def stream(self, test: TrafficTest) -> float:
        """Return the seconds that our stream takes for 10^9 bits."""
        (flow,) = self._ours(test).flows
        return flow.elapsed_ns / flow.bytes / 8 / 1e9 * _GBIT

    def request(self) -> float:
        """Return the median of our requests."""
        times = self._ours(TrafficTest.REQUEST).times
        assert times is not None
        return times.p50_ns / 1e9

    def iperf3(self, *more: str) -> float:
        """Return the seconds that iperf3's stream takes for 10^9 bits. As in ours, its beginning does not count."""
        command = ["iperf3", "-c", self._peer, "-J", "-t", str(SECONDS), "-O", "1", *more]
        done = self._agent.exec(command, timeout_s=60.0)
        return _GBIT / float(json.loads(done.stdout)["end"]["sum_received"]["bits_per_second"])

    def sockperf(self) -> float:
        """Return the median round trip of sockperf, whose smallest message has 14 bytes."""
        command = ["sockperf", "ping-pong", "--tcp", "--full-rtt", "-i", self._peer, "-m", "14"]
        done = self._agent.exec([*command, "-t", str(SECONDS)], timeout_s=60.0)
        found = _MEDIAN.search(done.stdout.decode())
        assert found is not None, done.stdout
        return float(found[1]) / 1e6


def _start_machine(platform: str, level: str) -> float:
    """Return the seconds until a machine can be used."""
    spec = PlatformSpec.read(platform)
    cell = Cell("bench", WorkloadSpec("network"), spec, {"network": level})
    begin = time.monotonic()
    with registry.get_platform(platform).start(cell) as machine:
        machine.agent.ping(1)
        return time.monotonic() - begin


def _compare_starts(rounds: int) -> int:
    late = 0
    for platform, level in _STARTED:
        values = measure_contenders(
            {name: functools.partial(_start_machine, platform, name) for name in (level, "none")}, rounds, 1
        )
        contenders_table(f"Until {platform} can be used", values, ["none"], "ms")
        more_s = statistics.median(a - b for a, b in zip(values[level], values["none"], strict=True))
        late += more_s > MOST_ADDED_S
        print(
            f"{platform}: network={level} adds {1e3 * more_s:.1f} ms (aim: {1e3 * MOST_ADDED_S:.0f} or less)"
        )
    return int(late > 0)


def main() -> int:
    """Compare, print a table, and return 1 when an aim is missed."""
    if sys.argv[1:2] == ["start"]:
        return _compare_starts(int(sys.argv[2]) if len(sys.argv) > 2 else 20)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    if missing := [name for name in ("iperf3", "sockperf") if shutil.which(name) is None]:
        print(f"bench.network needs {' and '.join(missing)}")
        return 2
    cell = Cell("bench", WorkloadSpec("network"), HOST, {"network": "veth"})
    with registry.get_platform("host").start(cell) as machine:
        assert isinstance(machine, HasNetwork)
        network = machine.network
        assert network is not None
        for command in (["iperf3", "-s"], ["sockperf", "server", "--tcp", "-i", network.peer_address]):
            network.peer.background(command)
        with serve_traffic(network.peer) as ports:
            both = Contenders(machine.agent, network.peer_address, ports)
            # The other tools' servers have begun to listen by then.
            time.sleep(1.0)
            values = measure_contenders(
                {
                    "stream up": lambda: both.stream(TrafficTest.UPLOAD),
                    "iperf3 up": both.iperf3,
                    "stream down": lambda: both.stream(TrafficTest.DOWNLOAD),
                    "iperf3 down": lambda: both.iperf3("-R"),
                    "request": both.request,
                    "sockperf": both.sockperf,
                },
                rounds,
                1,
            )
    contenders_table("seconds for 10^9 bits, and of a request", values, ["iperf3 up", "sockperf"], "µs")
    good = True
    for ours, theirs in (("stream up", "iperf3 up"), ("stream down", "iperf3 down")):
        share = median_ratio(values[theirs], values[ours])
        good &= share >= LEAST_STREAM
        print(f"{ours}: {share:.3f} of {theirs} (aim: {LEAST_STREAM} or more)")
    ratio = median_ratio(values["request"], values["sockperf"])
    good &= ratio <= MOST_REQUEST
    print(f"request: {ratio:.3f} of sockperf (aim: {MOST_REQUEST} or less)")
    return not good


if __name__ == "__main__":
    sys.exit(main())

"""The workload `network`: throughput and latency between a machine and its peer on this host.

Rates count content, without headers. Times of requests are medians unless their name says otherwise.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from guestmark.agent.wire import TrafficTest
from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.params import Params, param
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common.parsers import check_duration, order_names

_SHORTEST_S, _LONGEST_S = 0.01, 60.0
# A datagram begins with a header of 16 bytes; the largest of IPv4 has 65,507.
_SMALLEST_SIZE, _LARGEST_SIZE = 16, 65_507

UPLOAD = Metric("upload", "bit/s", Better.HIGHER)
DOWNLOAD = Metric("download", "bit/s", Better.HIGHER)
# Processor time on this host for 10^9 bytes: the hypervisor's, or the machine's program's, and the peer's.
UPLOAD_CPU = Metric("upload_cpu_s/GB", "s")
DOWNLOAD_CPU = Metric("download_cpu_s/GB", "s")
REQUEST = Metric("request_s", "s")
REQUEST_P99 = Metric("request_p99_s", "s")
REQUEST_P999 = Metric("request_p999_s", "s")
REQUESTS = Metric("requests/s", "1/s", Better.HIGHER)
REQUEST_CPU = Metric("request_cpu_s", "s")  # processor time on this host for one request
# A connection for each request: connect, request, response, close.
TRANSACTION = Metric("transaction_s", "s")
TRANSACTIONS = Metric("transactions/s", "1/s", Better.HIGHER)
# A connection without any request.
CONNECT = Metric("connect_s", "s")
CONNECTS = Metric("connects/s", "1/s", Better.HIGHER)
# A request while streams fill one or both directions.
IN_UPLOAD = Metric("request_in_upload_s", "s")
IN_UPLOAD_P99 = Metric("request_in_upload_p99_s", "s")
IN_DOWNLOAD = Metric("request_in_download_s", "s")
IN_DOWNLOAD_P99 = Metric("request_in_download_p99_s", "s")
IN_BOTH = Metric("request_in_both_s", "s")
IN_BOTH_P99 = Metric("request_in_both_p99_s", "s")


class TimesMetrics(msgspec.Struct, frozen=True):
    """The metrics of a repeated operation; None for those that are not measured."""

    median: Metric
    p99: Metric | None = None
    p999: Metric | None = None
    rate: Metric | None = None
    cpu: Metric | None = None

    @property
    def all(self) -> tuple[Metric, ...]:
        """The metrics that are measured."""
        return tuple(
            metric for metric in (self.median, self.p99, self.p999, self.rate, self.cpu) if metric is not None
        )


STREAMS = {
    TrafficTest.UPLOAD: (UPLOAD, UPLOAD_CPU),
    TrafficTest.DOWNLOAD: (DOWNLOAD, DOWNLOAD_CPU),
}
TIMES = {
    TrafficTest.REQUEST: TimesMetrics(REQUEST, REQUEST_P99, REQUEST_P999, REQUESTS, REQUEST_CPU),
    TrafficTest.TRANSACTION: TimesMetrics(TRANSACTION, rate=TRANSACTIONS),
    TrafficTest.CONNECT: TimesMetrics(CONNECT, rate=CONNECTS),
    TrafficTest.REQUEST_IN_UPLOAD: TimesMetrics(IN_UPLOAD, IN_UPLOAD_P99),
    TrafficTest.REQUEST_IN_DOWNLOAD: TimesMetrics(IN_DOWNLOAD, IN_DOWNLOAD_P99),
    TrafficTest.REQUEST_IN_BOTH: TimesMetrics(IN_BOTH, IN_BOTH_P99),
}
# Datagram tests, with the word for their direction in metric names.
DATAGRAMS = {TrafficTest.DATAGRAMS_UP: "up", TrafficTest.DATAGRAMS_DOWN: "down"}
# Tests that can be captured.
CAPTURED = (TrafficTest.UPLOAD, TrafficTest.DOWNLOAD, TrafficTest.REQUEST)
UNDER_LOAD = (
    TrafficTest.REQUEST_IN_UPLOAD,
    TrafficTest.REQUEST_IN_DOWNLOAD,
    TrafficTest.REQUEST_IN_BOTH,
)


def make_datagram_metrics(test: TrafficTest, size: int) -> tuple[Metric, Metric]:
    """Returns the metrics of datagrams of one size: the rate of arrivals, and the share that was lost."""
    stem = f"datagrams_{DATAGRAMS[test]}_{size}"
    return Metric(f"{stem}/s", "1/s", Better.HIGHER), Metric(f"{stem}_lost", "ratio")


def _check_time(time: str) -> str:
    return check_duration(time, _SHORTEST_S, _LONGEST_S)


def _order_tests(tests: list[str]) -> list[str]:
    return order_names("test", tests, list(TrafficTest))


def _check_sizes(sizes: list[int]) -> list[int]:
    for size in sizes:
        if not _SMALLEST_SIZE <= size <= _LARGEST_SIZE:
            raise ValueError(
                f"{size} is not a valid size of a datagram ({_SMALLEST_SIZE} to {_LARGEST_SIZE} bytes)"
            )
    if not sizes or len(set(sizes)) != len(sizes):
        raise ValueError("sizes must be one or more different numbers")
    return sizes


class NetworkParams(Params, frozen=True, kw_only=True):
    """Each of `tests` runs for `time`, except those of datagrams after a quarter of it that is not counted. The machine
    opens every connection; up means from the machine to its peer.
    """

    tests: Annotated[list[str], param("tests to run", "names", parse=_order_tests)] = msgspec.field(
        default_factory=lambda: [*TrafficTest]
    )
    time: Annotated[str, param("how long each test is measured", "duration", parse=_check_time)] = "500ms"
    flows: Annotated[int, param("parallel streams of `upload` and `download`", ge=1, le=256)] = 1
    load: Annotated[int, param("streams in each direction during requests", ge=1, le=256)] = 4
    request: Annotated[int, param("bytes per request", ge=1, le=1 << 20)] = 1
    response: Annotated[int, param("bytes per response", ge=1, le=1 << 20)] = 1
    sizes: Annotated[list[int], param("bytes per datagram", "numbers", parse=_check_sizes)] = msgspec.field(
        default_factory=lambda: [64, 1400]
    )
    capture: Annotated[
        bool,
        param(
            "repeat `upload`, `download` and `request` with captures at both ends, to find what they waited for"
        ),
    ] = False


class StreamRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One stream: the bytes that arrived, and statistics of its sender's TCP."""

    upload: bool
    bits_per_s: float
    congestion_control: str | None = None
    retransmits: int | None = None
    rtt_s: float | None = None
    window: int | None = None
    # Shares of the time in which the sender had data to send.
    receiver_share: float | None = None
    buffer_share: float | None = None


class MeasuredTest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One test of a trial. Processor times cover the whole test and are None if unknown."""

    test: str
    size: int | None = None
    elapsed_s: float
    client_cpu_s: float  # the program on the machine, as its kernel accounts it
    peer_cpu_s: float
    hypervisor_cpu_s: float | None = None
    # Programs between the two that move bytes, such as passt.
    mover_cpu_s: float | None = None
    # All of the guest's processors, including interrupts.
    guest_cpu_s: float | None = None
    # Bytes, requests or datagrams in the timed part.
    count: int
    # The shortest time, p50, p90, p99, p99.9, the longest.
    times_s: list[float] | None = None
    streams: list[StreamRecord] = msgspec.field(default_factory=list)
    sent: int | None = None
    # Datagrams that the receiver's socket dropped because its program was too slow.
    overflowed: int | None = None
    # What its connections waited for, found by repeating the test with captures at both ends.
    cause: str | None = None
    # Counts of the hypervisor during the test (`platforms.counters`).
    counted: dict[str, float] = msgspec.field(default_factory=dict)


class NetworkTests(Fact, kw_only=True):
    """All tests of one iteration, in order."""

    tests: list[MeasuredTest] = msgspec.field(name="network_tests")


class NetworkWorkload(Workload[NetworkParams]):
    """Exchanges streams, requests, connections and datagrams between a machine and its peer."""

    name = "network"
    help = (
        "streams, requests, connections and datagrams between a machine and its peer, and latency under load"
    )
    agent_is_enough = True

    @classmethod
    def list_metrics(cls, params: NetworkParams) -> tuple[Metric, ...]:
        """Returns the metrics of the tests that are named."""
        found: list[Metric] = []
        for test in map(TrafficTest, params.tests):
            if test in STREAMS:
                found += STREAMS[test]
            elif test in TIMES:
                found += TIMES[test].all
            else:
                for size in params.sizes:
                    found += make_datagram_metrics(test, size)
        return tuple(found)

    @classmethod
    def describe_params(cls, params: NetworkParams) -> str:
        """Names the tests, unless all are run."""
        if len(params.tests) == len(TrafficTest):
            return "network"
        return f"network: {', '.join(params.tests)}"

    @classmethod
    def trial_class(cls) -> type[Workload[NetworkParams]]:
        """Imports and returns the class of its trials; done late because it imports the agent's client."""
        from guestmark.workloads.network.trial import NetworkTrial

        return NetworkTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the processor time spent on the bytes, and the delay that a queue adds to a request."""
        from guestmark.workloads.network.sections import render_network

        return (render_network,)

"""Network tests between the trial's machine and its peer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from guestmark.agent.traffic import TrafficSection, measure_traffic, serve_traffic
from guestmark.agent.wire import TrafficFlow, TrafficPorts, TrafficTask, TrafficTest, TrafficTimes
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan
from guestmark.core.units import parse_duration
from guestmark.platforms import counters
from guestmark.platforms.base import Machine, MachineNetwork
from guestmark.platforms.counters import read_processor_s
from guestmark.setting.network import NETWORK, Network
from guestmark.workloads.common.both_ends import capture_both_ends
from guestmark.workloads.common.flushes import read_guest_cpu_s
from guestmark.workloads.common.metrics import to_measurements
from guestmark.workloads.common.networks import find_network, require_network
from guestmark.workloads.common.program import warn_of_clocks_between
from guestmark.workloads.network import (
    CAPTURED,
    DATAGRAMS,
    STREAMS,
    TIMES,
    UNDER_LOAD,
    MeasuredTest,
    NetworkParams,
    NetworkTests,
    NetworkWorkload,
    StreamRecord,
    make_datagram_metrics,
)

# guestmark's own counters besides the hypervisor's.
_HYPERVISOR, _GUEST, _MOVER = "hypervisor_cpu_s", "guest_cpu_s", "mover_cpu_s"
_GB = 1e9


class NetworkTrial(NetworkWorkload):
    """Runs the server on the peer, and all tests from the machine."""

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` for a cell without a network, or with one that carries none of its tests."""
        require_network(cells, of_its_own=False)
        for cell in cells:
            if cell.levels[NETWORK] is not Network.VSOCK:
                continue
            params: NetworkParams = cls.params_of(cell.workload)
            if not set(params.tests) - set(DATAGRAMS):
                raise UsageError(
                    f"{cell.id}: network=vsock carries no datagrams, and no other tests are named",
                    hint="add other tests, e.g. upload, or use network=tap",
                )
            if params.capture:
                raise UsageError(
                    f"{cell.id}: network=vsock has no packets that could be captured",
                    hint="leave out capture, or use network=tap",
                )

    def run(self, machine: Machine) -> list[Measurement]:
        """Runs all tests once. Raises `WorkloadError` if the machine has no network, or a test fails."""
        network = find_network(machine)
        before = machine.agent.ping()
        with serve_traffic(network.peer, address=network.listen_address) as ports:
            sections = list(
                measure_traffic(
                    machine.agent,
                    network.peer_address,
                    ports,
                    self._list_tasks(),
                    counters=lambda: self._count_processor_use(machine, network),
                    timeout_s=self.limit_s,
                )
            )
            if warning := warn_of_clocks_between(before, machine.agent.ping()):
                self.warnings.append(warning)
            tests = [describe_measured(section) for section in sections]
            if self.params.capture:
                self._find_causes(machine, network, ports, tests)
        self.facts.add(NetworkTests(tests=tests))
        values: list[tuple[Metric, float]] = []
        for section in sections:
            values += self._measure(section, peer_is_here=network.is_here)
        return to_measurements(values)

    def _find_causes(
        self, machine: Machine, network: MachineNetwork, ports: TrafficPorts, tests: list[MeasuredTest]
    ) -> None:
        """Repeats some tests with captures at both ends; their figures are not used, as capturing slows them."""
        for task, record in zip(self._list_tasks(), tests, strict=True):
            if task.test not in CAPTURED:
                continue
            with capture_both_ends(machine.agent, network.peer, (ports.main,)) as ends:
                again = measure_traffic(
                    machine.agent,
                    network.peer_address,
                    ports,
                    [task],
                    counters=dict,
                    timeout_s=self.limit_s,
                )
                list(again)
            record.cause = ends.description

    def _list_tasks(self) -> list[TrafficTask]:
        tasks = []
        for test in map(TrafficTest, self.params.tests):
            if test in DATAGRAMS and self.cell.levels[NETWORK] is Network.VSOCK:
                continue
            sizes = self.params.sizes if test in DATAGRAMS else (0,)
            for size in sizes:
                tasks.append(
                    TrafficTask(
                        test=test,
                        time_ns=round(parse_duration(self.params.time) * 1e9),
                        flows=self.params.load if test in UNDER_LOAD else self.params.flows,
                        request=self.params.request,
                        response=self.params.response,
                        size=size,
                    )
                )
        return tasks

    def _count_processor_use(self, machine: Machine, network: MachineNetwork) -> Mapping[str, float]:
        found = dict(machine.counters())
        if others := network.read_mover_s():
            found[_MOVER] = others
        # A kernel of gVisor's kind accounts less to its programs than it uses of the host.
        if (spent := read_processor_s(network.kernel_pid or machine.vmm_pid)) is not None:
            found[_HYPERVISOR] = spent
        if self.cell.platform.is_guest and (busy := read_guest_cpu_s(machine)) is not None:
            found[_GUEST] = busy
        return found

    def _measure(self, section: TrafficSection, *, peer_is_here: bool) -> Iterator[tuple[Metric, float]]:
        """Yields the metrics of one test."""
        test, result = section.task.test, section.result
        machine_is_here = self.cell.platform.uses_this_host
        cpu_s = _sum_host_cpu_s(section, machine_is_here=machine_is_here, peer_is_here=peer_is_here)
        if test in STREAMS:
            rate, cpu = STREAMS[test]
            bits_per_s = math.fsum(map(_compute_flow_rate, result.flows))
            yield rate, bits_per_s
            # Processor time covers the whole test, in which more was sent than in the timed part.
            moved = bits_per_s / 8 * result.elapsed_ns / 1e9
            yield cpu, cpu_s / moved * _GB
        elif (metrics := TIMES.get(test)) is not None and result.times is not None:
            times = result.times
            if not times.count:
                raise WorkloadError(
                    f"network: not a single request of {test} was answered in {self.params.time}"
                )
            yield metrics.median, times.p50_ns / 1e9
            if metrics.p99 is not None:
                yield metrics.p99, times.p99_ns / 1e9
            if metrics.p999 is not None:
                yield metrics.p999, times.p999_ns / 1e9
            rate_per_s = times.count / times.elapsed_ns * 1e9
            if metrics.rate is not None:
                yield metrics.rate, rate_per_s
            if metrics.cpu is not None:
                yield metrics.cpu, cpu_s / (rate_per_s * result.elapsed_ns / 1e9)
        elif result.datagrams is not None:
            arrived, lost = make_datagram_metrics(test, section.task.size)
            counted = result.datagrams
            yield arrived, counted.received / counted.elapsed_ns * 1e9
            yield lost, 1 - counted.received / max(counted.sent, 1)


def describe_measured(section: TrafficSection) -> MeasuredTest:
    """Returns one test in the form that the trial stores."""
    task, result = section.task, section.result
    counted = counters.drop_restarted(section.counted)
    count = sum(flow.bytes for flow in result.flows)
    if result.times is not None:
        count = result.times.count
    sent = overflowed = None
    if result.datagrams is not None:
        count, sent = result.datagrams.received, result.datagrams.sent
        overflowed = result.datagrams.overflowed
    return MeasuredTest(
        test=task.test.value,
        size=task.size or None,
        elapsed_s=result.elapsed_ns / 1e9,
        client_cpu_s=result.cpu_ns / 1e9,
        peer_cpu_s=result.peer_cpu_ns / 1e9,
        hypervisor_cpu_s=counted.pop(_HYPERVISOR, None),
        guest_cpu_s=counted.pop(_GUEST, None),
        mover_cpu_s=counted.pop(_MOVER, None),
        count=count,
        times_s=None if result.times is None else list_times_s(result.times),
        streams=[describe_stream(flow) for flow in result.flows],
        sent=sent,
        overflowed=overflowed,
        counted=counted,
    )


def list_times_s(times: TrafficTimes) -> list[float]:
    """Returns the shortest time, p50, p90, p99, p99.9 and the longest."""
    quantiles = (times.p50_ns, times.p90_ns, times.p99_ns, times.p999_ns)
    return [ns / 1e9 for ns in (times.lowest_ns, *quantiles, times.highest_ns)]


def describe_stream(flow: TrafficFlow) -> StreamRecord:
    """Returns one stream in the form that the trial stores."""
    sender = flow.sender
    if sender is None:
        return StreamRecord(upload=flow.upload, bits_per_s=_compute_flow_rate(flow))
    record = StreamRecord(
        upload=flow.upload,
        bits_per_s=_compute_flow_rate(flow),
        congestion_control=sender.congestion_control,
        retransmits=sender.retransmits,
        rtt_s=sender.rtt_us / 1e6,
        window=sender.window,
    )
    if sender.busy_us:
        record.receiver_share = (sender.receiver_us or 0) / sender.busy_us
        record.buffer_share = (sender.buffer_us or 0) / sender.busy_us
    return record


def _compute_flow_rate(flow: TrafficFlow) -> float:
    return flow.bytes * 8 / flow.elapsed_ns * 1e9


def _sum_host_cpu_s(section: TrafficSection, *, machine_is_here: bool, peer_is_here: bool) -> float:
    """Returns the processor seconds of peer, hypervisor (or else program) and programs between them on this host.

    Everything inside another machine is part of the outer hypervisor's time.
    """
    counted, result = section.counted, section.result
    peer_s = result.peer_cpu_ns / 1e9 if peer_is_here else 0.0
    machine_s = counted.get(_HYPERVISOR, result.cpu_ns / 1e9) if machine_is_here else 0.0
    return machine_s + counted.get(_MOVER, 0.0) + peer_s

"""The report's part on networks: who spent processor time, and how long a request waits behind streams."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from guestmark.agent.wire import TrafficTest
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Bullets, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.setting.network import NETWORK, Network
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.common.facts import list_facts, pair_with_cells
from guestmark.workloads.network import CAPTURED, STREAMS, UNDER_LOAD, MeasuredTest, NetworkTests

# Indices of p50 and p99 in `times_s`.
_MEDIAN, _P99 = 1, 3
_GB = 1e9
_ABSENT = make_figure_cell("–")
_DIRECTIONS = {TrafficTest.UPLOAD: "up", TrafficTest.DOWNLOAD: "down"}
_LOADS = {
    TrafficTest.REQUEST_IN_UPLOAD: "streams up",
    TrafficTest.REQUEST_IN_DOWNLOAD: "streams down",
    TrafficTest.REQUEST_IN_BOTH: "both",
}
_LEGEND = (
    "p50 and p99 of requests made one at a time; adds: increase of the median over that of requests alone; up: behind "
    "the queue from the machine to its peer; down: behind the queue in the other direction"
)

_HEADING = (
    "processor seconds per GB; what TCP waited for, in % of the time it had data to send; retransmissions"
)

_Found = Mapping[str, list[MeasuredTest]]


def render_network(workload: WorkloadResult, _run: StoredRun) -> Sequence[Node]:
    """Renders requests beside streams as a table, and a sentence for each cell and direction; nothing without tests."""
    found = pair_with_cells(workload, collect_tests)
    if not found:
        return []
    loaded = []
    for result, tests in found:
        if any(test in tests for test in UNDER_LOAD):
            loaded.append((result, tests))
    nodes: list[Node] = []
    if loaded:
        nodes.append(_build_load_table(loaded))
    sentences: list[Inline] = []
    for result, tests in found:
        sentences += _describe_streams(result, tests)
    if sentences:
        heading = spans(Span("Cost of the streams", Tone.STRONG), f" ({_HEADING}):")
        nodes.append(Bullets(heading, tuple(sentences)))
    return nodes


def collect_tests(result: CellResult) -> _Found:
    """Returns the records of each test over the cell's good trials, by the test's name."""
    found: dict[str, list[MeasuredTest]] = {}
    for facts in list_facts(result.good_trials, NetworkTests):
        for test in facts.tests:
            found.setdefault(test.test, []).append(test)
    return found


def _build_load_table(found: Sequence[tuple[CellResult, _Found]]) -> Table:
    loads = []
    for test in _LOADS:
        if any(test in tests for _, tests in found):
            loads.append(test)
    columns = [Column("alone", (Align.RIGHT,))]
    for test in loads:
        columns += [Column(_LOADS[test], (Align.RIGHT,)), Column("adds", (Align.RIGHT,))]
    rows = []
    for result, tests in found:
        alone = _compute_median_time(tests.get(TrafficTest.REQUEST, ()), _MEDIAN)
        cells = [_render_times(tests.get(TrafficTest.REQUEST, ()))]
        for test in loads:
            records = tests.get(test, ())
            loaded = _compute_median_time(records, _MEDIAN)
            cells.append(_render_times(records))
            if loaded is None or alone is None:
                cells.append(_ABSENT)
            else:
                cells.append(make_figure_cell(_format_time(max(0.0, loaded - alone))))
        rows.append(Row(RowName((result.cell.id,), id=result.cell.id), tuple(cells)))
    return Table(
        "Request latency, alone and beside streams",
        ("",),
        tuple(columns),
        tuple(rows),
        divisible=True,
        legend=(line(_LEGEND),),
        heading="Latency under load:",
    )


def _render_times(records: Sequence[MeasuredTest]) -> Cell:
    median, p99 = _compute_median_time(records, _MEDIAN), _compute_median_time(records, _P99)
    if median is None or p99 is None:
        return _ABSENT
    return make_figure_cell(f"{_format_time(median)}, {_format_time(p99)}")


def _compute_median_time(records: Iterable[MeasuredTest], place: int) -> float | None:
    times = [record.times_s[place] for record in records if record.times_s is not None]
    return statistics.median(times) if times else None


def _format_time(seconds: float) -> str:
    if not seconds:
        return "0"
    unit = figures.choose_unit("s", [seconds])
    return f"{figures.format_three_digits(seconds / unit.size)} {unit.name}"


def _describe_streams(result: CellResult, tests: _Found) -> list[Inline]:
    sentences = []
    for test, direction in _DIRECTIONS.items():
        assert test in STREAMS
        records = tests.get(test, [])
        if records:
            name = Span(f"{result.cell.id}, {direction}: ", Tone.STRONG)
            said = _describe_processors(records)
            if result.cell.levels.get(NETWORK) is not Network.VSOCK:
                said = f"{said}; {_describe_tcp(records)}"
            sentences.append(spans(name, said))
    for test in CAPTURED:
        causes = [record.cause for record in tests.get(test, []) if record.cause]
        if causes:
            name = Span(f"{result.cell.id}, {test.value}, captured at both ends: ", Tone.STRONG)
            sentences.append(spans(name, causes[-1]))
    return sentences


def _describe_processors(records: Sequence[MeasuredTest]) -> str:
    """Returns the processor time that each program spent on 10^9 bytes, by its kernel's own accounting."""
    inside = [record.guest_cpu_s for record in records]
    by_program = [record.client_cpu_s for record in records]
    if any(inside):
        by_program = []
    owners = (
        ("hypervisor", [record.hypervisor_cpu_s for record in records]),
        ("in the guest", inside),
        ("program", by_program),
        ("forwarding", [record.mover_cpu_s for record in records]),
        ("peer", [record.peer_cpu_s for record in records]),
    )
    moved = statistics.fmean(_count_traffic_bytes(record) for record in records)
    parts = []
    for owner, spent in owners:
        known = [seconds for seconds in spent if seconds is not None]
        if known:
            parts.append(f"{owner} {figures.format_three_digits(statistics.fmean(known) / moved * _GB)}")
    return ", ".join(parts)


def _count_traffic_bytes(record: MeasuredTest) -> float:
    """Returns the bytes of the whole test, extrapolated from the rate of its timed part."""
    rate = sum(stream.bits_per_s for stream in record.streams) / 8
    return max(rate * record.elapsed_s, 1.0)


def _describe_tcp(records: Sequence[MeasuredTest]) -> str:
    """Returns what the sender's TCP reports to have waited for, and how many segments it sent again."""
    streams, retransmits = [], []
    for record in records:
        streams += record.streams
        retransmits.append(sum(stream.retransmits or 0 for stream in record.streams))
    controls = sorted({stream.congestion_control for stream in streams if stream.congestion_control})
    if not controls:
        return "its TCP reports no statistics"
    again = statistics.fmean(retransmits)
    words = ["/".join(controls)]
    receiver = [stream.receiver_share for stream in streams if stream.receiver_share is not None]
    own = [stream.buffer_share for stream in streams if stream.buffer_share is not None]
    if receiver:
        words.append(f"receiver's window {100 * statistics.fmean(receiver):.0f} %")
    if own:
        words.append(f"send buffer {100 * statistics.fmean(own):.0f} %")
    words.append(f"{figures.format_number(again, 0)} retransmitted")
    return ", ".join(words)

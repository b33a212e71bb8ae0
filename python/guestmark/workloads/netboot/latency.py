"""Captured connections: response latencies of both endpoints of every cell, and one connection in time."""

from collections.abc import Sequence

import msgspec

from guestmark.capture.model import Endpoint, Trace
from guestmark.ledger.model import StoredRun
from guestmark.page.charts import Picture
from guestmark.page.nodes import Chart, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, figure, words
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.netboot.found import latest_first


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """The latencies as a table and as a picture, of the last good trial of each cell; nothing without captures."""
    traces = [(result, trace) for result in workload.shown if (trace := _trace(result)) is not None]
    endpoints = [
        (result, endpoint)
        for result, trace in traces
        for endpoint in trace.endpoints
        if endpoint.histogram and endpoint.response.p50_s is not None
    ]
    if not endpoints:
        return []
    caption = "From the last packet of the peer to the endpoint’s next one; of each cell’s last trial."
    table = Table(
        caption,
        ("cell", "endpoint"),
        (
            Column("responses", (Align.RIGHT,)),
            Column("median", (Align.RIGHT, Align.LEFT)),
            Column("99 %", (Align.RIGHT, Align.LEFT)),
            Column("share of the time", (Align.RIGHT,)),
        ),
        tuple(_row(result, endpoint) for result, endpoint in endpoints),
        heading="Response latency of each endpoint",
    )
    renamed = [
        msgspec.structs.replace(endpoint, address=_short(result), port=None) for result, endpoint in endpoints
    ]
    said = "; ".join(f"{' '.join(row.name.parts)} {row.cells[1].text}" for row in table.rows)
    chart = Chart(
        "Response latencies",
        caption,
        f"Median response latencies: {said}.",
        Picture("distributions", lambda: _distributions(renamed)),
    )
    baseline = next((trace for result, trace in traces if result.cell.baseline), traces[0][1])
    return [table, chart, *_sequence(baseline)]


def _row(result: CellResult, endpoint: Endpoint) -> Row:
    from guestmark.capture.units import percent

    response = endpoint.response
    return Row(
        RowName((result.cell.id, endpoint.role or "client")),
        (
            figure(f"{response.count}"),
            _duration(response.p50_s),
            _duration(response.p99_s),
            figure(str(percent(response.share))),
        ),
    )


def _duration(seconds: float | None) -> Cell:
    from guestmark.capture.units import duration

    return words("–") if seconds is None else figure(*duration(seconds).split(" ", 1))


def _sequence(trace: Trace) -> list[Chart]:
    if trace.sequence is None or not trace.sequence.points:
        return []
    return [
        Chart(
            "Time and sequence",
            "One connection of the baseline’s last trial: what each side sent, and when it was acknowledged.",
            "Bytes sent by each side over time.",
            Picture("sequence", lambda: _sequences(trace)),
        )
    ]


def _distributions(endpoints: Sequence[Endpoint]) -> str:
    from guestmark.capture import picture

    return picture.distributions(endpoints)


def _sequences(trace: Trace) -> str:
    from guestmark.capture import picture

    return picture.sequences(trace)


def _trace(result: CellResult) -> Trace | None:
    return next((found.picture for found in latest_first(result) if found.picture is not None), None)


def _short(result: CellResult) -> str:
    """The cell's levels, which fit beside the drawing better than its whole id."""
    words = [word.partition("=")[2] or word for word in result.cell.id.split()]
    return " ".join(words)

"""The report's part on network boots: phases, where connections spend their time, latencies, and rounds."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np

from guestmark.capture import picture, verdict
from guestmark.capture.model import Endpoint, Trace
from guestmark.capture.units import format_percent, format_seconds
from guestmark.core.model import Trial, TrialStatus
from guestmark.core.units import format_share
from guestmark.ledger.model import StoredRun
from guestmark.page.charts import Picture
from guestmark.page.nodes import Bullets, Chart, Node, Note, Paragraph
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell, make_word_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.estimands import arrange_iterations
from guestmark.stats.repetition import estimate_scatter, find_best_iterations
from guestmark.workloads.common.phase_bars import average_phase_seconds, draw_phase_bars
from guestmark.workloads.netboot import DOWNLOAD, HANDOVER, KERNEL, SCRIPT, START, Lease, Netboot

_NAMES = (*(metric.name.removesuffix("_s") for metric in START), "files", "kernel", "handover")
_LETTERS = "RLDSFKH"


def render_phases(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders a stacked bar for each cell, and the messages of its last lease.

    Returns nothing for workloads without phases.
    """
    shown = [result for result in workload.shown_cells if SCRIPT.name in result.summary]
    if not shown:
        return []
    is_handed_over = any(HANDOVER.name in result.summary for result in shown)
    end = "the kernel's first answer" if is_handed_over else "the last file of a round"
    chart = draw_phase_bars(
        workload,
        [(result, _average_phases(result)) for result in shown],
        _NAMES,
        _LETTERS,
        title="Phases of the boot",
        caption=f"From QEMU's start through firmware and ROM, link, DHCP and script to {end}; means over the trials, "
        "which are also listed among the further metrics.",
        summary=lambda said: f"From QEMU's start to {end}: {said}.",
    )
    leases = []
    for result in shown:
        lease = _read_lease(result)
        if lease is not None:
            leases.append(spans(Span(result.cell.id, Tone.NAME), f"  {describe_lease(lease)}"))
    if not leases:
        return [chart]
    return [chart, Bullets(line("How addresses were assigned (last trial):", Tone.STRONG), tuple(leases))]


def describe_lease(lease: Lease) -> str:
    """Describes a lease, for instance `discover 0 ms, offer 1 ms, request 1 s, ack 1 s: client 1 s, server 2 ms`."""
    steps = ", ".join(f"{step.kind} {format_seconds(step.at_s)}" for step in lease.steps)
    text = f"{steps}: client {format_seconds(lease.client_s)}, server {format_seconds(lease.server_s)}"
    if lease.recovery_s:
        text += f", waiting to repeat {format_seconds(lease.recovery_s)}"
    return text


def _average_phases(result: CellResult) -> list[float]:
    files = _find_file_count(result)
    download = _read_mean(result, DOWNLOAD.name)
    return [
        *average_phase_seconds(result, START),
        files * download,
        *average_phase_seconds(result, (KERNEL, HANDOVER)),
    ]


def _find_file_count(result: CellResult) -> int:
    for found in iterate_latest_first(result):
        if found.files:
            return found.files
    return 0


def _read_mean(result: CellResult, metric: str) -> float:
    """Returns the mean of a metric; 0 for a cell that lacks it."""
    if metric not in result.summary:
        return 0.0
    return result.summary[metric].mean


def _read_lease(result: CellResult) -> Lease | None:
    for found in iterate_latest_first(result):
        if found.lease is not None:
            return found.lease
    return None


CLIENT, SERVER, REPEATED = "client_share", "server_share", "retransmitted_bytes"
_HALF = 0.5


def render_shares(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders an item for each cell with its time by cause and by response latency, and the slow side.

    The verdict is by cause, from the last trial's capture. Response latency is the measure of the published experiment,
    which blames the side that sends next; it is shown as well, under its name. A run without causes has only this.
    Returns nothing for workloads without captures.
    """
    rows = [
        result for result in workload.shown_cells if CLIENT in result.summary and SERVER in result.summary
    ]
    if not rows:
        return []
    items = tuple(spans(Span(result.cell.id, Tone.NAME), f"  {_describe_shares(result)}") for result in rows)
    return [Bullets(line("Where the time goes:", Tone.STRONG), items), Paragraph(_describe_slow_side(rows))]


def _describe_shares(result: CellResult) -> str:
    client, server = (round(100 * result.summary[name].mean) for name in (CLIENT, SERVER))
    rest = max(0, 100 - client - server)
    latency = f"by response latency alone: client {client} %, server or the network to it {server} %, neither {rest} %"
    causes = _describe_causes(result)
    text = f"{causes}; {latency}" if causes else latency
    repeated = _read_mean(result, REPEATED)
    # Less than this would be shown as 0.0 MB.
    if repeated < 5e4:
        return text
    waited = ", after waiting for it" if server > client else ""
    return f"{text} ({repeated / 1e6:.1f} MB lost and sent again{waited})"


def _describe_causes(result: CellResult) -> str | None:
    trace = _read_trace(result)
    if trace is None:
        return None
    return verdict.describe_causes(trace.causes)


def _describe_slow_side(rows: Sequence[CellResult]) -> Inline:
    by_cause = {}
    for result in rows:
        who = _find_main_cause(result)
        if who is not None:
            by_cause[result.cell.id] = who
    # The published experiment has latencies only, as have runs whose captures were not analysed by cause.
    if by_cause:
        return line(f"Slow side (more than half of the time, by cause): {_group_by_side(by_cause)}.")
    by_latency = {result.cell.id: _name_slow_part(result) for result in rows}
    return line(
        f"Slow side (more than half of the time, by response latency alone): {_group_by_side(by_latency)}."
    )


def _find_main_cause(result: CellResult) -> str | None:
    """Returns the cause of more than half of the time, or `nothing alone`; None if causes are unknown."""
    trace = _read_trace(result)
    if trace is None:
        return None
    main = verdict.find_main_cause(trace.causes)
    if main is None:
        return None
    return f"the {main.name.removeprefix('the ')}" if main.share > _HALF else "nothing alone"


def _name_slow_part(result: CellResult) -> str:
    sides = {"the client": result.summary[CLIENT].mean, "the server": result.summary[SERVER].mean}
    who = max(sides, key=lambda name: sides[name])
    return who if sides[who] > _HALF else "neither"


def _group_by_side(slow: Mapping[str, str]) -> str:
    """Returns `the client in tcg; the server in kvm`, from cells and the slow side in each."""
    cells: dict[str, list[str]] = {}
    for cell, who in slow.items():
        cells.setdefault(who, []).append(cell)
    parts = []
    for who, at in cells.items():
        where = "all" if len(at) == len(slow) else ", ".join(at)
        parts.append(f"{who} in {where}")
    return "; ".join(parts)


def render_latencies(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders the latencies of each cell's last good trial as a table and a chart; nothing without captures."""
    traces = []
    endpoints = []
    for result in workload.shown_cells:
        trace = _read_trace(result)
        if trace is None:
            continue
        traces.append((result, trace))
        for endpoint in trace.endpoints:
            # An endpoint that never had to respond has no latency.
            if endpoint.histogram and endpoint.response.p50_s is not None:
                endpoints.append((result, endpoint))
    if not endpoints:
        return []
    caption = "From the peer’s last packet to the endpoint’s next one, in each cell’s last trial."
    table = Table(
        caption,
        ("cell", "endpoint"),
        (
            Column("responses", (Align.RIGHT,)),
            Column("median", (Align.RIGHT, Align.LEFT)),
            Column("99 %", (Align.RIGHT, Align.LEFT)),
            Column("share of the time", (Align.RIGHT,)),
        ),
        tuple(_build_latency_row(result, endpoint) for result, endpoint in endpoints),
        heading="Response latency of each endpoint",
    )
    renamed = []
    for result, endpoint in endpoints:
        name = _shorten_cell_name(result)
        renamed.append(msgspec.structs.replace(endpoint, address=name, port=None))
    said = "; ".join(f"{' '.join(row.name.parts)} {row.cells[1].text}" for row in table.rows)
    chart = Chart(
        "Response latencies",
        caption,
        f"Median response latencies: {said}.",
        Picture("distributions", lambda: _draw_distributions(renamed)),
    )
    return [table, chart, *_build_sequence_charts(_find_baseline_trace(traces))]


def _find_baseline_trace(traces: Sequence[tuple[CellResult, Trace]]) -> Trace:
    """Returns the baseline's packets; those of the first cell if the baseline has none."""
    for result, trace in traces:
        if result.cell.baseline:
            return trace
    return traces[0][1]


def _build_latency_row(result: CellResult, endpoint: Endpoint) -> Row:
    response = endpoint.response
    return Row(
        RowName((result.cell.id, endpoint.role or "client")),
        (
            make_figure_cell(f"{response.count}"),
            _render_duration(response.p50_s),
            _render_duration(response.p99_s),
            make_figure_cell(str(format_percent(response.share))),
        ),
    )


def _render_duration(seconds: float | None) -> Cell:
    if seconds is None:
        return make_word_cell("–")
    return make_figure_cell(*format_seconds(seconds).split(" ", 1))


def _build_sequence_charts(trace: Trace) -> list[Chart]:
    if trace.sequence is None or not trace.sequence.points:
        return []
    return [
        Chart(
            "Time and sequence",
            "One connection of the baseline’s last trial: bytes sent by each side, and their acknowledgement.",
            "Bytes sent by each side over time.",
            Picture("sequence", lambda: _draw_sequences(trace)),
        )
    ]


def _draw_distributions(endpoints: Sequence[Endpoint]) -> str:
    return picture.draw_distributions(endpoints)


def _draw_sequences(trace: Trace) -> str:
    return picture.draw_sequences(trace)


def _read_trace(result: CellResult) -> Trace | None:
    for found in iterate_latest_first(result):
        if found.picture is not None:
            return found.picture
    return None


def _shorten_cell_name(result: CellResult) -> str:
    """Returns the cell's levels, which fit beside the drawing better than its full id."""
    words = [word.partition("=")[2] or word for word in result.cell.id.split()]
    return " ".join(words)


# With fewer boots the scatter is practically unknown.
_STARTS = 4
# Within this factor of the optimum the cost hardly differs, because the optimum is flat.
_TIMES = 2


def render_rounds(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders the scatter of rounds and of boots, and the best number of rounds per boot; nothing if unknown."""
    cells = [result for result in workload.shown_cells if result.trials]
    trials: list[Trial] = []
    for result in cells:
        trials += result.trials
    blocks = sorted({trial.block for trial in trials})
    row = {block: number for number, block in enumerate(blocks)}
    matrices = []
    for result in cells:
        matrix = arrange_iterations(DOWNLOAD.name, result.trials, row)
        if matrix is not None:
            matrices.append(matrix)
    good = [trial for trial in trials if trial.status is TrialStatus.OK and trial.run_s]
    # The scatters of cells are pooled, except for cells without iterations.
    scatter = estimate_scatter(matrices) if len(matrices) == len(cells) else None
    if scatter is None or scatter.starts < _STARTS:
        return []
    each_s = fmean(fmean(trial.run_s) for trial in good)
    start_s = fmean(max(trial.duration_s - sum(trial.run_s), 0.0) for trial in good)
    best, held = find_best_iterations(scatter, start_s, each_s), matrices[0].shape[1]
    said = (
        f"rounds of one boot scatter by {format_share(np.sqrt(scatter.within), 1)}, boots by "
        f"{format_share(np.sqrt(scatter.between), 1)}; a boot takes {start_s:.1f} s and a round {each_s:.1f} s: "
        f"{best} rounds per boot give the most precise result in a given time"
    )
    if best >= _TIMES * held or held >= _TIMES * best:
        said += f" (--iterations {best}; this run has {held})"
    return [Note(line(said))]


def iterate_latest_first(result: CellResult) -> Iterator[Netboot]:
    """Yields the findings of trials that fetched files, the last one first; if nested, those from the outer guest."""
    for trial in reversed(result.good_trials):
        found = trial.facts.find_fact(Netboot)
        if found is not None:
            yield found.inner.facts if found.inner is not None else found

"""The picture of captured connections in a run's page: response latencies of every variant, one connection in time."""

import msgspec

from guestmark.capture.excerpt import PICTURE, read
from guestmark.capture.model import Trace
from guestmark.stats.analysis import CellResult, WorkloadResult

_STYLE = """<style>.captures{--ink:#1b1f24;--soft:#6a737d;--line:#d8dee4;--client:#c2410c;
--server:#1d4ed8;--bad:#be123c}
@media (prefers-color-scheme:dark){.captures{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--client:#fb923c;
--server:#60a5fa;--bad:#fb7185}}.captures .tick text,.captures .soft-text,
.captures .soft{fill:var(--soft);color:var(--soft)}
.captures .grid{stroke:var(--line)}.captures .client{fill:var(--client)}.captures .server{fill:var(--server)}
.captures .bars{opacity:.75}.captures .repeated{fill:var(--bad)}.captures .mark{stroke:var(--ink);stroke-width:1.5}
.captures .ack{fill:none;stroke:var(--soft)}</style>"""


def latencies(workload: WorkloadResult) -> str:
    """A section of HTML, of the last good trial of each cell; empty for workloads without captures."""
    traces = [(result, trace) for result in workload.shown if (trace := _trace(result)) is not None]
    if not traces:
        return ""
    from guestmark.capture import picture

    endpoints = [
        msgspec.structs.replace(endpoint, address=_short(result), port=None)
        for result, trace in traces
        for endpoint in trace.endpoints
        if endpoint.histogram
    ]
    baseline = next((trace for result, trace in traces if result.cell.baseline), traces[0][1])
    parts = [
        "<h3>Response latency of each endpoint</h3>",
        '<p class="soft">From the last packet of the peer to the endpoint’s next one; of each cell’s last trial.</p>',
        picture.distributions(endpoints) if endpoints else "",
        *(picture.sequences(baseline) if baseline.sequence and baseline.sequence.points else ()),
    ]
    return f'<section class="captures">{_STYLE}{"".join(parts)}</section>'


def _trace(result: CellResult) -> Trace | None:
    for trial in reversed(result.trials):
        facts = trial.attestation
        inner = facts.get("inner")  # of a nested platform
        kept = facts.get(PICTURE) or (
            inner.get("facts", {}).get(PICTURE) if isinstance(inner, dict) else None
        )
        if kept:
            return read(kept)
    return None


def _short(result: CellResult) -> str:
    """The cell by its levels, which fit beside the drawing better than its whole id."""
    words = [word.partition("=")[2] or word for word in result.cell.id.split()]
    return " ".join(words)

"""Where the time of connections goes, in words, from the shares in the capture analysis.

The packets are captured at the card, beside the client: nothing lies between, so the client's response latency is its
own, slow acknowledgements with it. The causes of `guestmark capture` are for captures from anywhere, and call an
acknowledgement that is always slow the network's; of them only those that no side's distance explains are told here.
"""

from collections.abc import Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Bullets, Node, Paragraph
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.netboot.found import latest_first

CLIENT, SERVER, REPEATED = "client_share", "server_share", "retransmitted_bytes"
_CERTAIN = {
    "window": "receive window closed",
    "client_receive_buffer": "client's receive buffer",
    "server_send_buffer": "server's send buffer",
    "recovery": "loss recovery",
    "idle": "idle",
}


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """An item for each cell whose shares were measured: client, server and the rest in percent; then who is slow.

    Nothing for workloads without captures.
    """
    rows = [result for result in workload.shown if CLIENT in result.summary and SERVER in result.summary]
    if not rows:
        return []
    items = tuple(spans(Span(result.cell.id, Tone.NAME), f"  {_said(result)}") for result in rows)
    return [Bullets(line("Where the time goes:", Tone.STRONG), items), Paragraph(_slow(rows))]


def _said(result: CellResult) -> str:
    client, server = (round(100 * result.summary[name].mean) for name in (CLIENT, SERVER))
    rest = max(0, 100 - client - server)
    text = f"client {client} %, server or the network to it {server} %, neither answering {rest} %{_causes(result)}"
    repeated = result.summary[REPEATED].mean if REPEATED in result.summary else 0.0
    if repeated < 5e4:
        return text
    waited = ", after waiting for it" if server > client else ""
    return f"{text} ({repeated / 1e6:.1f} MB lost and sent again{waited})"


def _causes(result: CellResult) -> str:
    """What of the last trial's time was spent on, as far as a capture at the card tells it for certain."""
    from guestmark.capture.verdict import percents

    trace = next((found.picture for found in latest_first(result) if found.picture is not None), None)
    if trace is None:
        return ""
    known = dict(percents(trace.causes))
    told = [f"{name} {known[cause]} %" for cause, name in _CERTAIN.items() if known.get(cause)]
    return f"; of all, {', '.join(told)}" if told else ""


def _slow(rows: Sequence[CellResult]) -> Inline:
    slow: dict[str, list[str]] = {"the client": [], "the server": [], "neither": []}
    for result in rows:
        shares = {"the client": result.summary[CLIENT].mean, "the server": result.summary[SERVER].mean}
        who = max(shares, key=lambda name: shares[name])
        slow[who if shares[who] > 0.5 else "neither"].append(result.cell.id)
    parts = [
        f"{who} in {'all' if len(cells) == len(rows) else ', '.join(cells)}"
        for who, cells in slow.items()
        if cells
    ]
    return line(f"Slow (more than half of the time) is {'; '.join(parts)}.")

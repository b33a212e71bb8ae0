"""Where the time of connections goes, in words, from the shares in the capture analysis."""

from collections.abc import Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Bullets, Node, Paragraph
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult

CLIENT, SERVER, REPEATED = "client_share", "server_share", "retransmitted_bytes"


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
    text = f"client {client} %, server {server} %, network/unknown {max(0, 100 - client - server)} %"
    repeated = result.summary[REPEATED].mean if REPEATED in result.summary else 0.0
    if repeated < 5e4:
        return text
    waited = ", after waiting for it" if server > client else ""
    return f"{text} ({repeated / 1e6:.1f} MB lost and sent again{waited})"


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

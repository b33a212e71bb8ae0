"""Where the time of connections goes, in words: from the shares that the analysis of captures measured."""

from collections.abc import Sequence

from rich.text import Text

from guestmark.stats.analysis import CellResult, WorkloadResult

CLIENT, SERVER, REPEATED = "client_share", "server_share", "retransmitted_bytes"


def where_time_goes(workload: WorkloadResult) -> list[Text]:
    """One line for each cell whose shares were measured: client, server and the rest in percent, who is slow first.

    Empty for workloads without captures.
    """
    rows = [one for one in workload.shown if CLIENT in one.summary and SERVER in one.summary]
    if not rows:
        return []
    lines = [Text("Where the time goes:", style="bold")]
    room = max(len(one.cell.id) for one in rows)
    for one in rows:
        line = Text(f"  {one.cell.id:<{room}}  ", style="bold magenta")
        line.append(_said(one), style="not bold default")
        lines.append(line)
    return [*lines, _slow(rows)]


def _said(one: CellResult) -> str:
    client, server = (round(100 * one.summary[name].mean) for name in (CLIENT, SERVER))
    text = f"client {client} %, server {server} %, network/unknown {max(0, 100 - client - server)} %"
    repeated = one.summary[REPEATED].mean if REPEATED in one.summary else 0.0
    if repeated < 5e4:
        return text
    waited = ", after waiting for it" if server > client else ""
    return f"{text} ({repeated / 1e6:.1f} MB lost and sent again{waited})"


def _slow(rows: Sequence[CellResult]) -> Text:
    slow: dict[str, list[str]] = {"the client": [], "the server": [], "neither": []}
    for one in rows:
        shares = {"the client": one.summary[CLIENT].mean, "the server": one.summary[SERVER].mean}
        who = max(shares, key=lambda name: shares[name])
        slow[who if shares[who] > 0.5 else "neither"].append(one.cell.id)
    parts = [
        f"{who} in {'all' if len(cells) == len(rows) else ', '.join(cells)}"
        for who, cells in slow.items()
        if cells
    ]
    return Text(f"Slow (more than half of the time) is {'; '.join(parts)}.")

"""Shows the answer in a terminal: a table, a sentence on which side is slow, and what limits that verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from guestmark.capture import verdict
from guestmark.capture.model import (
    Connection,
    Endpoint,
    Exchange,
    Request,
    Response,
    RoundTrips,
    Served,
    Shares,
    Trace,
)
from guestmark.capture.startup import describe_startup
from guestmark.capture.units import format_percent, format_seconds, format_size
from guestmark.page.text import make_inert

_CAPTURED = {"no-start": "no start", "no-end": "no end", "middle": "no start, no end"}
# Screen widths in columns that show all headings, or the four most important ones; the width of the widest table.
WIDE, MIDDLE, WIDEST = 160, 100, 220
# Marks that are explained once, below the table.
_SAID_ONCE = {"offload"}
_MOST_LINES = 12  # exchanges that are listed
_TEXTS = {"client → server", "endpoint", "role", "remarks", "main cause", "longest wait"}
_MOST_SERVERS, _MOST_REQUESTS = 10, 5
_PLURAL = {"http": "requests", "tls": "handshakes", "dns": "queries"}
# Response codes of DNS (RFC 1035, 4.1.1).
_CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def describe_shares(shares: Shares) -> str:
    """Return text such as `client 94 %, server 3 %, network/unknown 3 %`, which adds up to 100."""
    client, server = (round(100 * (share or 0.0)) for share in (shares.client, shares.server))
    return f"client {client} %, server {server} %, network/unknown {max(100 - client - server, 0)} %"


def format_host_port(address: str, port: int | None) -> str:
    """Return `10.0.6.1:8000` or `[::1]:80`; without a port the address.

    In captures that Wireshark exported an address may be any text.
    """
    address = make_inert(address)
    if port is None:
        return address
    # Brackets tell the colons of an IPv6 address from that of the port, as in URLs (RFC 3986).
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def render_trace(trace: Trace, by: str, *, named: bool, width: int = WIDE) -> RenderableType:
    """Return everything about one trace; `named` puts the file's name first; `by` is connection or endpoint.

    In fewer columns than `WIDE` the less important ones are left out, and remarks follow below the table.
    """
    parts: list[RenderableType] = []
    if named:
        parts.append(Text(make_inert(trace.file), style="bold"))
    if trace.connection_count:
        if by == "endpoint":
            parts.append(_make_endpoint_table(trace, width))
        else:
            parts.append(_make_connection_table(trace, width))
        parts += [*_make_remarks_below(trace, by, width), Text()]
    more = trace.connection_count - len(trace.connections)
    if by == "connection" and more > 0 and trace.connections:
        parts.append(Text(f"… and {more:,} that waited less (--top to see more)", style="dim"))
    if trace.connection_count or not trace.error:
        parts += _make_verdict_sentences(trace)
    parts += [Text(line) for line in describe_exchanges(trace)]
    if line := describe_startup(trace):
        parts.append(Text(line))
    for limit in trace.limits:
        parts.append(Text(f"note: {limit.count:,} {make_inert(limit.text)}", style="yellow"))
    # At offset 0 nothing was read, and the command has already said so.
    if trace.error and trace.error.offset:
        parts.append(
            Text(
                f"incomplete: reading stopped at byte {trace.error.offset}: {make_inert(trace.error.reason)}",
                style="red",
            )
        )
    return Group(*parts)


def _create_table(headings: Sequence[str], shown: set[int]) -> Table:
    """Return a table without rows, with those of the `headings` whose numbers are `shown`."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim", show_edge=False
    )
    for number, heading in enumerate(headings):
        if number not in shown:
            continue
        numeric = heading not in _TEXTS
        table.add_column(
            heading, justify="right" if numeric else "left", overflow="fold", no_wrap=heading != "remarks"
        )
    return table


def _add_row(table: Table, cells: Sequence[str | Text], shown: set[int]) -> None:
    """Add those of the `cells` whose numbers are `shown`."""
    row = []
    for number, cell in enumerate(cells):
        if number not in shown:
            continue
        # Rich would take square brackets in a string for markup.
        if isinstance(cell, str):
            row.append(Text(cell))
        else:
            row.append(cell)
    table.add_row(*row)


_CONNECTION_HEADINGS = (
    "client → server", "duration", "main cause", "longest wait", "bytes", "bytes/s", "round trip", "window",
    "client mean", "p99", "server mean", "p99", "remarks",
)  # fmt: skip


def _make_connection_table(trace: Trace, width: int) -> Table:
    shown = set(range(len(_CONNECTION_HEADINGS)))
    if width < MIDDLE:
        shown = {0, 1, 2}
    elif width < WIDE:
        shown = {0, 1, 2, 3}
    table = _create_table(_CONNECTION_HEADINGS, shown)
    for connection in sorted(trace.connections, key=lambda known: -(known.waited_s or 0.0)):
        unique = connection.client.unique_bytes + connection.server.unique_bytes
        rate = unique / connection.duration_s if connection.duration_s else None
        slower = _find_slower_side(connection.client.response, connection.server.response)
        cells: list[str | Text] = [
            _format_ends(connection),
            format_seconds(connection.duration_s),
            _format_main_cause(connection),
            _describe_longest_wait(connection),
            format_size(unique),
            format_size(rate, "B/s"),
            _find_shortest_round_trip(connection),
            _format_window(connection),
            *_format_response_cells(connection.client.response, slower is connection.client.response),
            *_format_response_cells(connection.server.response, slower is connection.server.response),
            ", ".join(_list_connection_remarks(connection)),
        ]
        _add_row(table, cells, shown)
    return table


def _describe_longest_wait(connection: Connection) -> str:
    if not connection.longest_wait_s or connection.longest_wait_for is None:
        return "–"
    return (
        f"{format_seconds(connection.longest_wait_s)} for {verdict.CAUSE_NAMES[connection.longest_wait_for]}"
    )


def _find_shortest_round_trip(connection: Connection) -> str:
    """Return the shortest round trip from end to end."""
    near, far = connection.client.rtt.min_s, connection.server.rtt.min_s
    return "–" if near is None or far is None else format_seconds(near + far)


def _format_window(connection: Connection) -> str:
    """Return the smallest and the largest window of the end that received most."""
    client, server = connection.client, connection.server
    # Only the window of the end that received most can have held the transfer up.
    receiver = client if server.unique_bytes >= client.unique_bytes else server
    least, most = receiver.window_min, receiver.window_max
    if least is None or most is None:
        return "–"
    return f"{format_size(least)} – {format_size(most)}"


def _format_main_cause(connection: Connection) -> Text:
    most = verdict.find_main_cause(connection.causes)
    if most is None:
        return Text("–")
    cause = f"{most.name} {format_percent(most.share)}"
    if connection.confidence in {None, "high"}:
        return Text(cause, style="bold")
    return Text(f"{cause}, {connection.confidence} confidence", style="dim")


def _format_ends(connection: Connection) -> str:
    client, server = (
        format_host_port(connection.client.address, connection.client.port),
        format_host_port(connection.server.address, connection.server.port),
    )
    return _mark_udp(f"{client} → {server}", connection.protocol)


def _mark_udp(text: str, protocol: str | None) -> str:
    if protocol == "udp":
        return f"{text} udp"
    return text


def _make_remarks_below(trace: Trace, by: str, width: int) -> list[Text]:
    if by == "endpoint" or width >= WIDE:
        return []
    lines = []
    for connection in trace.connections:
        remarks = _list_connection_remarks(connection)
        # The handshake's duration is not an anomaly, so a narrow screen leaves it out.
        anomalies = [remark for remark in remarks if not remark.startswith("handshake")]
        if anomalies:
            lines.append(Text(f"{_format_ends(connection)}: {', '.join(anomalies)}", style="dim"))
    return lines


def _find_slower_side(client: Response, server: Response) -> Response | None:
    if client.total_s == server.total_s:
        return None
    return max(client, server, key=lambda response: response.total_s)


def _format_response_cells(response: Response, slow: bool) -> list[Text]:
    style = "bold" if slow else ""
    cells = [format_seconds(response.mean_s), format_seconds(response.p99_s)]
    return [Text(cell, style=style) for cell in cells]


def _list_connection_remarks(connection: Connection) -> list[str]:
    if unanswered := _describe_unanswered_syn(connection):
        return [unanswered]
    out = []
    if connection.captured in _CAPTURED:
        out.append(_CAPTURED[connection.captured])
    out += [mark.replace("-", " ") for mark in connection.marks if mark not in _SAID_ONCE]
    if connection.handshake_s is not None:
        out.append(f"handshake {format_seconds(connection.handshake_s)}")

    def both(name: str, count: int) -> None:
        if count:
            out.append(f"{name} {count:,}")

    def total(field: str) -> int:
        return sum(int(getattr(side, field)) for side in connection.sides)

    if repeated := total("retransmitted_bytes"):
        out.append(f"retransmitted {format_size(repeated)}")
    both("out of order", total("out_of_order"))
    both("zero window", total("zero_windows"))
    if connection.client.resets:
        out.append("reset by client")
    if connection.server.resets:
        out.append("reset by server")
    return out


def _describe_unanswered_syn(connection: Connection) -> str:
    """Describe what became of a SYN that nobody answered; empty if it was answered."""
    client, server = connection.client, connection.server
    if connection.captured != "no-end" or server.packets or client.payload_bytes:
        return ""
    # Every repetition of the first SYN counts as a retransmission.
    times = client.retransmissions + 1
    if times == 1:
        return "SYN not answered"
    return f"SYN not answered, sent {times} times"


def _make_endpoint_table(trace: Trace, width: int) -> Table:
    about = ("endpoint", "role", "connections", "own time", "longest wait", "bytes sent")
    headings = (*about, "mean", "p50", "p90", "p99", "max", "share")
    shown = set(range(12))
    if width < MIDDLE + 36:
        shown = {0, 1, 3, 4, 6, 9, 10}
    table = _create_table(headings, shown)
    for endpoint in trace.endpoints:
        _add_row(table, _format_endpoint_cells(endpoint), shown)
    return table


def _format_endpoint_cells(endpoint: Endpoint) -> list[str]:
    response = endpoint.response
    times = (response.mean_s, response.p50_s, response.p90_s, response.p99_s, response.max_s)
    return [
        format_host_port(endpoint.address, endpoint.port),
        _mark_udp(endpoint.role or "", endpoint.protocol),
        f"{endpoint.connections:,}",
        format_seconds(endpoint.own_s),
        format_seconds(endpoint.longest_wait_s or None),
        format_size(endpoint.unique_bytes),
        *map(format_seconds, times),
        format_percent(response.share),
    ]


def _make_verdict_sentences(trace: Trace) -> list[Text]:
    packets = trace.counters["packets"]
    if not trace.connection_count:
        if filtered := trace.counters.get("filtered", 0):
            return [Text(f"None of {filtered:,} TCP and UDP packets matches --filter.", style="bold")]
        return [Text(f"None of {packets:,} packets is TCP or UDP.", style="bold")]
    causes = verdict.describe_causes(trace.causes)
    if causes is None:
        return [
            Text("No connection has both directions and a duration, so it is unknown who is slow.", "bold")
        ]
    whole = f"of the time of {count_divided_connections(trace)} ({packets:,} packets)"
    doubt = verdict.find_doubt(trace)
    if doubt and doubt.refused:
        return [
            Text(f"No verdict: {doubt.reason}.", style="bold"),
            Text(f"{causes} {whole}", "dim"),
        ]
    weak = ""
    if doubt:
        weak = f"; low confidence: {doubt.reason}"
    return [
        Text.assemble((causes, "bold"), f" {whole}{weak}"),
        Text(f"by response latency alone: {describe_shares(trace.shares)}", style="dim"),
    ]


def count_divided_connections(trace: Trace) -> str:
    """Return text such as `3 connections`: the number captured in both directions, whose time the shares divide."""
    count = trace.connection_count - trace.counters["one_sided"]
    if count == 1:
        return "1 connection"
    return f"{count:,} connections"


def describe_exchanges(trace: Trace) -> list[str]:
    """Return lines on the longest exchanges, in order of appearance."""
    longest = sorted(trace.exchanges, key=lambda exchange: -exchange.duration_s)[:_MOST_LINES]
    lines = [describe_exchange(exchange) for exchange in trace.exchanges if exchange in longest]
    more = len(trace.exchanges) - len(lines)
    if more:
        lines.append(f"… and {more:,} shorter exchanges")
    return lines


def describe_exchange(exchange: Exchange) -> str:
    """Return a line on one exchange: what it was, how long it took, and who took that time."""
    subject = f"{exchange.protocol.upper()} {make_inert(_describe_exchange(exchange))}"
    heading = f"{subject}: {format_seconds(exchange.duration_s)}"
    facts = [f"server {format_seconds(exchange.server_s)}"]
    if exchange.protocol != "dns":
        facts.insert(0, f"client {format_seconds(exchange.client_s)}")
    if exchange.recovery_s:
        facts.append(f"waiting to retransmit {format_seconds(exchange.recovery_s)}")
    if exchange.repeated:
        facts.append(f"{exchange.repeated:,} retransmitted")
    if exchange.unanswered:
        facts.append(f"{exchange.unanswered:,} unanswered")
    if exchange.answers.count:
        facts.append(
            f"answers: median {format_seconds(exchange.answers.p50_s)}, p99 {format_seconds(exchange.answers.p99_s)}"
        )
    return f"{heading} ({', '.join(facts)})"


def _describe_exchange(exchange: Exchange) -> str:
    server = exchange.server or "no server"
    match exchange.protocol:
        case "tftp":
            done = f"{exchange.count:,} blocks, {format_size(exchange.bytes)}"
            uploads = exchange.messages[:1] and exchange.messages[0].kind == "write request"
            ends = (exchange.client, server) if uploads else (server, exchange.client)
            return f"{exchange.name} from {ends[0]} to {ends[1]}, {done}"
        case "dns":
            return f"{exchange.count:,} queries to {server}"
        case "dhcp":
            return f"{exchange.client} from {server}: {_list_messages(exchange)}"
        case _:
            return f"{exchange.client} → {server}: {_list_messages(exchange)}"


def _list_messages(exchange: Exchange) -> str:
    return ", ".join(f"{message.kind} {format_seconds(message.at_s)}" for message in exchange.messages[:6])


def describe_requests(trace: Trace) -> Iterator[str]:
    """Yield lines on the requests to the busiest servers and their slowest answers."""
    servers = sorted(trace.requests, key=lambda served: -served.count)
    if not servers:
        yield "No HTTP/1 request, TLS handshake or DNS query was found."
    cut = trace.counters.get("cut", 0) > 0
    for served in servers[:_MOST_SERVERS]:
        yield _describe_server(served, cut)
        for request in served.longest[:_MOST_REQUESTS]:
            yield f"  {_describe_request(request, served, trace)}"
    if len(servers) > _MOST_SERVERS:
        yield f"… and {len(servers) - _MOST_SERVERS:,} more servers"


def _describe_server(served: Served, cut: bool) -> str:
    facts = [f"{served.count:,} {_PLURAL[served.protocol]}"]
    if served.unanswered:
        facts.append(f"{served.unanswered:,} unanswered")
    if served.repeated:
        facts.append(f"asked again {served.repeated:,} times")
    if served.failed:
        facts.append(f"{served.failed:,} failed")
    never = "unknown, because packets are truncated" if cut else "never"
    first, last = (
        _describe_round_trips(served.first_byte, never),
        _describe_round_trips(served.last_byte, never),
    )
    times = f"first byte {first}; done {last}"
    if served.protocol == "dns":
        times = f"answered {last}"
    return f"{served.protocol.upper()} {make_inert(served.server)}: {', '.join(facts)}; {times}"


def _describe_round_trips(trips: RoundTrips, never: str) -> str:
    if not trips.count:
        return never
    median, p99, longest = map(format_seconds, (trips.p50_s, trips.p99_s, trips.max_s))
    return f"median {median}, p99 {p99}, at most {longest}"


def _describe_request(request: Request, served: Served, trace: Trace) -> str:
    at = (request.start_ns - (trace.start_ns or request.start_ns)) / 1e9
    name = (
        f"{make_inert(request.name) or '(no name)'}{_format_status(request, served)} at {format_seconds(at)}"
    )
    again = ""
    if request.repeated:
        again = f", asked {request.repeated + 1} times"
    if request.first_byte_s is None or request.answer_frames is None:
        return f"{name}: no answer{again} (frame {request.frame})"
    if served.protocol == "dns":
        took = format_seconds(request.first_byte_s)
        return f"{name}: {took}{again} (frames {request.frame}, {request.answer_frames[1]})"
    frames = (request.frame, *request.answer_frames)
    done = "incomplete"
    if request.last_byte_s is not None:
        done = f"done {format_seconds(request.last_byte_s)}"
    facts = f"first byte {format_seconds(request.first_byte_s)}, {done}, {format_size(request.bytes)}"
    return f"{name}: {facts} (frames {', '.join(map(str, frames))})"


def _format_status(request: Request, served: Served) -> str:
    if request.status is None:
        return ""
    if served.protocol == "dns":
        return f" → {_CODES.get(request.status, f'code {request.status}')}"
    return f" → {request.status}"

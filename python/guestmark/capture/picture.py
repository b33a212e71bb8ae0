"""The picture: response-latency distributions and a time-sequence view, as one HTML file without any other resource.

Plain SVG made here: two drawings do not justify a megabyte of charting library in every file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from guestmark.capture.model import Document, Endpoint, SequencePoint, Trace
from guestmark.capture.table import divided, duration, host_port, percent, said_shares, size
from guestmark.core.errors import GuestmarkError
from guestmark.page.text import inert

WIDTH, LEFT, RIGHT = 960, 190, 24
ROW, BINS = 64, 160
MOST_ENDPOINTS = 12
_LABELLED = 0.15  # smaller shares have no room for their name

STYLE = """
:root{--ink:#1b1f24;--soft:#6a737d;--line:#d8dee4;--paper:#fff;--client:#c2410c;--server:#1d4ed8;--bad:#be123c}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;--paper:#0d1117;
--client:#fb923c;--server:#60a5fa;--bad:#fb7185}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;margin:2rem auto;
padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.15rem;margin:2rem 0 .2rem}h3{font-size:1rem;margin:1.4rem 0 .2rem}
p{margin:.3rem 0}.soft{color:var(--soft)}.verdict{font-size:1.15rem;font-weight:600}
svg{width:100%;height:auto;display:block}text{font:12px system-ui,sans-serif;fill:var(--ink)}
.tick text,.soft-text{fill:var(--soft)}.grid{stroke:var(--line);stroke-width:1}.client{fill:var(--client)}
.server{fill:var(--server)}.bars{opacity:.75}.repeated{fill:var(--bad)}.mark{stroke:var(--ink);stroke-width:1.5}
.ack{fill:none;stroke:var(--soft);stroke-width:1}.bar{display:flex;height:26px;border-radius:4px;overflow:hidden;
margin:.5rem 0}.bar div{color:#fff;font-size:12px;padding:4px 8px;white-space:nowrap;overflow:hidden;
box-sizing:border-box}.bar .c{background:var(--client)}.bar .s{background:var(--server)}.bar .u{background:#6a737d}
"""


def write(document: Document, path: Path) -> None:
    """Writes the picture of `document` (with histograms and sequence). Raises `GuestmarkError` when it cannot."""
    try:
        path.write_text(render(document), encoding="utf-8")
    except OSError as error:
        raise GuestmarkError(f"{path} cannot be written: {error.strerror}") from error


def render(document: Document) -> str:
    """The HTML text."""
    body = "".join(_trace(trace) for trace in document.files)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>guestmark capture</title><style>{STYLE}</style></head><body>"
        f"<h1>Who is slow, the client or the server?</h1>{body}</body></html>\n"
    )


def _safe(text: str) -> str:
    """Text from a capture, or a file's name: it makes no markup, and nothing in it turns the direction of the rest."""
    return escape(inert(text))


def _trace(trace: Trace) -> str:
    parts = [f"<h2>{_safe(trace.file)}</h2>", _verdict(trace)]
    endpoints = [e for e in trace.endpoints if e.histogram and e.address != "others"][:MOST_ENDPOINTS]
    if endpoints:
        error = trace.relative_error
        parts += [
            "<h3>Response latency of each endpoint</h3>",
            '<p class="soft">From the last packet of the peer to the endpoint’s next one. Bars: share of responses '
            f"per bin of the logarithmic axis; ticks: median and 99th percentile (within {error:.1%}).</p>",
            distributions(endpoints),
        ]
    if trace.sequence and trace.sequence.points:
        parts += sequences(trace)
    for limit in trace.limits:
        parts.append(f'<p class="soft">Note: {limit.count:,} {_safe(limit.text)}.</p>')
    if trace.error:
        parts.append(f"<p><b>Incomplete:</b> reading stopped at byte {trace.error.offset}: ")
        parts.append(f"{_safe(trace.error.reason)}.</p>")
    return f"<section>{''.join(parts)}</section>"


def _verdict(trace: Trace) -> str:
    shares = trace.shares
    count = f"{divided(trace)}, {trace.counters['packets']:,} packets"
    if shares.client is None or shares.server is None or shares.unknown is None:
        return f'<p class="soft">{count}</p>'
    segments = "".join(
        f'<div class="{css}" style="width:{share * 100:.2f}%" title="{name}">{name if share > _LABELLED else ""}</div>'
        for css, name, share in zip(
            "csu",
            said_shares(shares).split(", "),
            (shares.client, shares.server, shares.unknown),
            strict=True,
        )
        if share > 0.001
    )
    said = said_shares(shares).capitalize()
    return (
        f'<p class="verdict">{said}</p><div class="bar">{segments}</div>'
        f'<p class="soft">of the time of {count}</p>'
    )


# --- distributions ------------------------------------------------------------------------------------------


def distributions(endpoints: Sequence[Endpoint]) -> str:
    """An SVG drawing with a row for each endpoint, which must have a histogram, on a common axis."""
    low = min(max(h[0][0], 1e-9) for e in endpoints if (h := e.histogram))
    high = max(h[-1][1] for e in endpoints if (h := e.histogram))
    first = math.floor(math.log10(low) * 3) / 3
    last = max(math.ceil(math.log10(high) * 3) / 3, first + 1 / 3)

    def x(seconds: float) -> float:
        position = (math.log10(max(seconds, 1e-9)) - first) / (last - first)
        return LEFT + min(max(position, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)

    height = ROW * len(endpoints) + 34
    out = [_decades(first, last, x_of=x, height=height - 30)]
    for number, endpoint in enumerate(endpoints):
        out.append(_row(endpoint, ROW * number, x))
    return _svg("distributions", height, "".join(out))


def _decades(first: float, last: float, *, x_of: Callable[[float], float], height: float) -> str:
    out = []
    for decade in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1):
        at = x_of(10.0**decade)
        out.append(
            f'<g class="tick"><line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height:.0f}"/>'
            f'<text x="{at:.1f}" y="{height + 18:.0f}" text-anchor="middle">{duration(10.0**decade)}</text></g>'
        )
    return "".join(out)


def _row(endpoint: Endpoint, top: float, x: Callable[[float], float]) -> str:
    response, role = endpoint.response, endpoint.role or "client"
    bins: dict[int, float] = {}
    span = WIDTH - LEFT - RIGHT
    for low, high, count in endpoint.histogram or ():
        at = int((x(math.sqrt(max(low, 1e-9) * high)) - LEFT) / span * BINS)
        bins[min(at, BINS - 1)] = bins.get(min(at, BINS - 1), 0) + count
    most, base, wide = max(bins.values()), top + ROW - 6, span / BINS
    bars = "".join(
        f'<rect x="{LEFT + at * wide:.1f}" y="{base - count / most * (ROW - 22):.1f}" width="{wide:.2f}" '
        f'height="{count / most * (ROW - 22):.1f}"><title>{count:,.0f} responses</title></rect>'
        for at, count in sorted(bins.items())
    )
    marks = "".join(
        f'<g><line class="mark" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{top + 12:.0f}" y2="{base:.0f}"/>'
        f'<text class="soft-text" {_beside(x(value))} y="{top + offset:.0f}">{name} {duration(value)}</text></g>'
        for name, value, offset in (("p50", response.p50_s, 14), ("p99", response.p99_s, 26))
        if value is not None
    )
    name = _safe(host_port(endpoint.address, endpoint.port))
    label = (
        f'<text x="0" y="{top + 22:.0f}" font-weight="600">{name}</text>'
        f'<text x="0" y="{top + 38:.0f}" class="{role}">{role}, {percent(response.share)} of the time</text>'
        f'<text x="0" y="{top + 54:.0f}" class="soft-text">{response.count:,} responses</text>'
    )
    line = f'<line class="grid" x1="0" x2="{WIDTH}" y1="{base:.0f}" y2="{base:.0f}"/>'
    return f'<g class="endpoint">{line}{label}<g class="{role} bars">{bars}</g>{marks}</g>'


def _beside(x: float) -> str:
    """Position of a label to the right of `x`, or to its left near the edge of the picture."""
    return f'x="{x + 4:.1f}"' if x < WIDTH - 110 else f'x="{x - 4:.1f}" text-anchor="end"'


# --- time and sequence --------------------------------------------------------------------------------------


def sequences(trace: Trace) -> Iterable[str]:
    """The connection of `trace.sequence` in time: a heading and one SVG drawing for each direction."""
    sequence = trace.sequence
    assert sequence is not None
    points = sequence.points
    connection = next((c for c in trace.connections if c.index == sequence.connection), None)
    title = "the connection with most packets"
    if connection:
        client, server = connection.client, connection.server
        title = f"{host_port(client.address, client.port)} → {host_port(server.address, server.port)}"
    kept = "" if sequence.stride == 1 else f" One packet in {sequence.stride} is drawn."
    yield f"<h3>Time and sequence: {_safe(title)}</h3>"
    yield (
        '<p class="soft">Dots: bytes as they were sent, red where they had been sent before. Line: what the other '
        f"side had acknowledged.{kept}</p>"
    )
    last = max(1e-9, *(p.t for p in points))
    for by_client in (False, True):
        stream = [p for p in points if p.client == by_client and p.kind != "ack"]
        acks = [p for p in points if p.client != by_client]
        if stream and max(p.to for p in stream) > 0:
            yield _sequence("client" if by_client else "server", stream, acks, last)


def _steps(last: float, about: int) -> list[float]:
    """About this many round values from 0 to `last`: multiples of 1, 2 or 5 times a power of ten."""
    rough = last / about
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)
    return [step * number for number in range(math.floor(last / step * 1.0001) + 1)]


def _sequence(role: str, stream: Sequence[SequencePoint], acks: Sequence[SequencePoint], last: float) -> str:
    height = 300 if role == "server" else 180
    most = max(p.to for p in stream)

    def x(t: float) -> float:
        return LEFT + max(t, 0.0) / last * (WIDTH - LEFT - RIGHT)

    def y(to: float) -> float:
        return height - 30 - min(to / most, 1.0) * (height - 50)

    grid = "".join(
        f'<g class="tick"><line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="10" y2="{height - 30}"/>'
        f'<text x="{x(t):.1f}" y="{height - 12}" text-anchor="middle">{duration(t) if t else "0"}</text></g>'
        for t in _steps(last, 6)
    )
    grid += "".join(
        f'<g class="tick"><line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(to):.1f}" y2="{y(to):.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y(to) + 4:.1f}" text-anchor="end">{size(to) if to else "0"}</text></g>'
        for to in _steps(most, 4)
    )
    steps, highest = [], 0
    for p in acks:
        if highest < p.acked <= most + 1:
            steps += [f"{x(p.t):.1f},{y(highest):.1f}", f"{x(p.t):.1f},{y(p.acked):.1f}"]
            highest = p.acked
    line = f'<polyline class="ack" points="{" ".join(steps)}"/>' if steps else ""
    dots = "".join(
        f'<circle class="{"repeated" if p.kind == "repeated" else role}" cx="{x(p.t):.1f}" cy="{y(p.to):.1f}" '
        f'r="{2.2 if p.kind == "repeated" else 1.5}"/>'
        for p in sorted(stream, key=lambda p: p.kind == "repeated")
    )
    label = f'<text x="0" y="22" font-weight="600" class="{role}">sent by the {role}</text>'
    return _svg(f"sequence-{role}", height, grid + label + line + dots)


def _svg(name: str, height: float, body: str) -> str:
    return f'<svg id="{name}" role="img" viewBox="0 0 {WIDTH} {height:.0f}" aria-label="{name}">{body}</svg>'

"""Requests over TCP and UDP, timed one by one: HTTP/1, TLS handshakes and names."""

from __future__ import annotations

from collections.abc import Iterator

from guestmark.capture.model import Request, RoundTrips, Served, Trace
from guestmark.capture.units import duration, size
from guestmark.page.text import inert

_MOST_SERVERS, _MOST_REQUESTS = 10, 5
_PLURAL = {"http": "requests", "tls": "handshakes"}


def request_lines(trace: Trace) -> Iterator[str]:
    """What each server was asked and how long it took; the servers that were asked most, and their slowest answers."""
    servers = sorted(trace.requests, key=lambda served: -served.count)
    if not servers:
        yield "No request over HTTP/1 and no TLS handshake was found."
    for served in servers[:_MOST_SERVERS]:
        yield _server(served)
        yield from (f"  {_request(request, trace)}" for request in served.longest[:_MOST_REQUESTS])
    if len(servers) > _MOST_SERVERS:
        yield f"… and {len(servers) - _MOST_SERVERS:,} servers more"


def _server(served: Served) -> str:
    count = f"{served.count:,} {_PLURAL[served.protocol]}"
    unanswered = f", {served.unanswered:,} without an answer" if served.unanswered else ""
    first, last = _spread(served.first_byte), _spread(served.last_byte)
    return f"{served.protocol.upper()} {inert(served.server)}: {count}{unanswered}; first byte {first}; done {last}"


def _spread(trips: RoundTrips) -> str:
    if not trips.count:
        return "never"
    return f"median {duration(trips.p50_s)}, p99 {duration(trips.p99_s)}, at most {duration(trips.max_s)}"


def _request(request: Request, trace: Trace) -> str:
    at = (request.start_ns - (trace.start_ns or request.start_ns)) / 1e9
    status = f" → {request.status}" if request.status else ""
    name = f"{inert(request.name) or '(no name)'}{status}"
    if request.first_byte_s is None or request.answer_frames is None:
        return f"{name} at {duration(at)}: no answer (frame {request.frame})"
    frames = (request.frame, *request.answer_frames)
    done = "not whole" if request.last_byte_s is None else f"done {duration(request.last_byte_s)}"
    told = f"first byte {duration(request.first_byte_s)}, {done}, {size(request.bytes)}"
    return f"{name} at {duration(at)}: {told} (frames {', '.join(map(str, frames))})"

"""Requests, timed one by one: HTTP/1, TLS handshakes and questions for names."""

from __future__ import annotations

from collections.abc import Iterator

from guestmark.capture.model import Request, RoundTrips, Served, Trace
from guestmark.capture.units import duration, size
from guestmark.page.text import inert

_MOST_SERVERS, _MOST_REQUESTS = 10, 5
_PLURAL = {"http": "requests", "tls": "handshakes", "dns": "questions"}
# Response codes of DNS (RFC 1035, 4.1.1).
_CODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def request_lines(trace: Trace) -> Iterator[str]:
    """What each server was asked and how long it took; the servers that were asked most, and their slowest answers."""
    servers = sorted(trace.requests, key=lambda served: -served.count)
    if not servers:
        yield "No request over HTTP/1, no TLS handshake and no question for a name was found."
    for served in servers[:_MOST_SERVERS]:
        yield _server(served)
        yield from (f"  {_request(request, served, trace)}" for request in served.longest[:_MOST_REQUESTS])
    if len(servers) > _MOST_SERVERS:
        yield f"… and {len(servers) - _MOST_SERVERS:,} servers more"


def _server(served: Served) -> str:
    told = [f"{served.count:,} {_PLURAL[served.protocol]}"]
    told += [f"{served.unanswered:,} without an answer"] if served.unanswered else []
    told += [f"{served.repeated:,} times asked again"] if served.repeated else []
    told += [f"{served.failed:,} failed"] if served.failed else []
    first, last = _spread(served.first_byte), _spread(served.last_byte)
    times = f"answered {last}" if served.protocol == "dns" else f"first byte {first}; done {last}"
    return f"{served.protocol.upper()} {inert(served.server)}: {', '.join(told)}; {times}"


def _spread(trips: RoundTrips) -> str:
    if not trips.count:
        return "never"
    return f"median {duration(trips.p50_s)}, p99 {duration(trips.p99_s)}, at most {duration(trips.max_s)}"


def _request(request: Request, served: Served, trace: Trace) -> str:
    at = (request.start_ns - (trace.start_ns or request.start_ns)) / 1e9
    name = f"{inert(request.name) or '(no name)'}{_status(request, served)} at {duration(at)}"
    again = f", asked {request.repeated + 1} times" if request.repeated else ""
    if request.first_byte_s is None or request.answer_frames is None:
        return f"{name}: no answer{again} (frame {request.frame})"
    if served.protocol == "dns":
        took = duration(request.first_byte_s)
        return f"{name}: {took}{again} (frames {request.frame}, {request.answer_frames[1]})"
    frames = (request.frame, *request.answer_frames)
    done = "not whole" if request.last_byte_s is None else f"done {duration(request.last_byte_s)}"
    told = f"first byte {duration(request.first_byte_s)}, {done}, {size(request.bytes)}"
    return f"{name}: {told} (frames {', '.join(map(str, frames))})"


def _status(request: Request, served: Served) -> str:
    if request.status is None:
        return ""
    told = (
        _CODES.get(request.status, f"code {request.status}") if served.protocol == "dns" else request.status
    )
    return f" → {told}"

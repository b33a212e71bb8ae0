"""Exchanges over UDP in words: a line for each lease, transfer, handshake and name server."""

from __future__ import annotations

from guestmark.capture.model import Exchange, Trace
from guestmark.capture.units import duration, size
from guestmark.page.text import inert

MOST_LINES = 12


def exchange_lines(trace: Trace) -> list[str]:
    """The longest exchanges, in order of appearance."""
    longest = sorted(trace.exchanges, key=lambda exchange: -exchange.duration_s)[:MOST_LINES]
    lines = [exchange_line(exchange) for exchange in trace.exchanges if exchange in longest]
    more = len(trace.exchanges) - len(lines)
    return [*lines, f"… and {more:,} shorter exchanges"] if more else lines


def exchange_line(exchange: Exchange) -> str:
    """One exchange: what it was, how long it took, and who took it."""
    heading = f"{exchange.protocol.upper()} {inert(_what(exchange))}: {duration(exchange.duration_s)}"
    told = [f"server {duration(exchange.server_s)}"]
    if exchange.protocol != "dns":
        told.insert(0, f"client {duration(exchange.client_s)}")
    if exchange.recovery_s:
        told.append(f"waiting to repeat {duration(exchange.recovery_s)}")
    if exchange.repeated:
        told.append(f"{exchange.repeated:,} repeated")
    if exchange.unanswered:
        told.append(f"{exchange.unanswered:,} not answered")
    if exchange.answers.count:
        told.append(
            f"answers: median {duration(exchange.answers.p50_s)}, p99 {duration(exchange.answers.p99_s)}"
        )
    return f"{heading} ({', '.join(told)})"


def _what(exchange: Exchange) -> str:
    server = exchange.server or "nobody"
    match exchange.protocol:
        case "tftp":
            done = f"{exchange.count:,} blocks, {size(exchange.bytes)}"
            return f"{exchange.name} from {server} to {exchange.client}, {done}"
        case "dns":
            return f"{exchange.count:,} questions to {server}"
        case "dhcp":
            return f"{exchange.client} from {server}: {_steps(exchange)}"
        case _:
            return f"{exchange.client} → {server}: {_steps(exchange)}"


def _steps(exchange: Exchange) -> str:
    return ", ".join(f"{message.kind} {duration(message.at_s)}" for message in exchange.messages[:6])

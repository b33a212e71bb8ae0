"""Connections whose main cause is known: how their ends behave, what the link does, and which cause is the true one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.framework.scenarios import End, Link, Scenario


@dataclass(frozen=True)
class Case:
    """A scenario and the causes that may be called its main one; none if its ends are only compared with each other.

    If `stamps` is off, the systems use no time stamps.
    """

    scenario: Scenario
    truth: tuple[str, ...]
    stamps: bool = True


Add = Callable[..., None]


def _cases() -> tuple[Case, ...]:
    out: list[Case] = []

    def case(truth: str, name: str, link: Link, *, stamps: bool = True, **how: object) -> None:
        scenario = Scenario(name, 7100 + len(out), link, **how)  # type: ignore[arg-type]
        out.append(Case(scenario, tuple(truth.split("|")), stamps))

    _plain(case)
    _mixed(case)
    _owed(case)
    return tuple(out)


def _plain(case: Add) -> None:
    """Add cases with one cause at a time."""
    near, mid, far = Link(), Link(0.005), Link(0.02)
    # Programs that do not read.
    case("client", "reader 10 kB each 20 ms", mid, reply=700_000, client=End(read=10_000, read_s=0.02))
    case("client", "reader 1 MB/s", mid, reply=2_000_000, client=End(read=16_384, read_s=0.016))
    case("client", "reader no delay", near, reply=700_000, client=End(read=10_000, read_s=0.02))
    case("client", "reader in gulps", mid, reply=3_000_000, client=End(read=400_000, read_s=0.25))
    case("client", "reader 2 kB each 3 ms", far, reply=1_000_000, client=End(read=2_000, read_s=0.003))
    case("client", "deaf reader", mid, reply=3_000_000, client=End(deaf_s=2.0))
    case("server", "slow upload reader", mid, upload=700_000, server=End(read=10_000, read_s=0.02))
    case(
        "client",
        "slow reader, small buffer",
        far,
        reply=300_000,
        client=End(read=4_000, read_s=0.03, receive=16_384),
    )
    # Programs that do not write.
    case("server", "writer 1 kB each 10 ms", mid, reply=200_000, server=End(parts=200, part_s=0.01))
    case("server", "writer 10 kB each 30 ms", far, reply=700_000, server=End(parts=70, part_s=0.03))
    case("server", "writer 10 segments each 25 ms", far, reply=1_158_400, server=End(parts=80, part_s=0.025))
    case("server", "writer with Nagle", far, reply=60_000, server=End(parts=600, part_s=0.003, nodelay=False))
    case("server", "writer 200 kB each 300 ms", mid, reply=1_600_000, server=End(parts=8, part_s=0.3))
    case("client", "upload writer 5 kB each 15 ms", mid, upload=600_000, client=End(parts=120, part_s=0.015))
    # Buffers.
    case("client_receive_buffer", "receive buffer 16 kB", far, reply=700_000, client=End(receive=16_384))
    case("server_receive_buffer", "upload into 32 kB", far, upload=1_500_000, server=End(receive=32_768))
    case("server_send_buffer", "send buffer 16 kB", far, reply=2_500_000, server=End(send=16_384))
    case("client_send_buffer", "upload from 32 kB", far, upload=4_000_000, client=End(send=32_768))
    # The path.
    case("latency", "far", far, turns=30, reply=3_000)
    case("latency", "far, larger", Link(0.03), turns=12, reply=60_000)
    case("bandwidth", "narrow link", Link(0.01, rate=6e6), turns=2, reply=900_000)
    case("bandwidth", "narrow upload", Link(0.01, rate=6e6), turns=2, upload=900_000)
    case("bandwidth", "very narrow link", Link(0.01, rate=1e6), reply=200_000)
    case("bandwidth", "narrow link, BBR", Link(0.01, rate=6e6), reply=1_500_000, server=End(control="bbr"))
    case("latency", "jitter", Link(0.01, jitter_s=0.006), turns=40, reply=3_000)
    case("latency|bandwidth", "jitter, streaming", Link(0.01, jitter_s=0.006), turns=12, reply=120_000)
    case("nagle", "Nagle and delayed ACK", mid, turns=25, upload=400, client=End(parts=2, nodelay=False))
    case("nagle", "Nagle without delay", near, turns=25, upload=400, client=End(parts=2, nodelay=False))
    case("nagle", "Nagle of the server", mid, turns=25, reply=400, server=End(parts=2, nodelay=False))
    # Losses.
    case("", "loss 0.1 %", Link(0.01, loss=0.001), turns=2, reply=1_500_000)
    case("recovery|latency|bandwidth", "loss 1 %", Link(0.01, loss=0.01), turns=2, reply=700_000)
    case("recovery|latency", "loss 3 %", Link(0.02, loss=0.03), turns=1, reply=700_000)
    case("recovery", "loss 10 %", Link(0.01, loss=0.1), turns=1, reply=250_000)
    case("recovery", "small answers, loss", Link(0.01, lose=7), turns=25, reply=1_000)
    # Programs that compute, and time in which nobody has anything to do.
    case("client", "slow client", Link(0.01), turns=20, reply=3_000, client_s=0.1)
    case("server", "slow server", Link(0.01), turns=20, reply=3_000, server_s=0.1)
    case("server", "slow server, jitter", Link(0.01, jitter_s=0.006), turns=20, reply=20_000, server_s=0.15)
    case("idle", "idle", Link(0.01), turns=2, reply=2_000, client_s=2.5)
    case("server", "pipelining, slow server", Link(0.01), turns=30, ahead=30, reply=3_000, server_s=0.04)
    case("server", "TLS, slow server", Link(0.01), turns=15, reply=3_000, server_s=0.1, tls=True)
    case("latency", "TLS, far", Link(0.025), turns=30, reply=3_000, tls=True)
    case("server", "half close", Link(0.01), turns=1, reply=100_000, half_close=True, server_s=0.4)
    case("client", "keep-alive", Link(0.01), turns=12, reply=20_000, client_s=0.15)


def _mixed(case: Add) -> None:
    """Add cases that look like another cause: two effects at a time, and systems without time stamps."""
    mid, far = Link(0.005), Link(0.02)
    slow, paced = End(read=10_000, read_s=0.02), End(parts=80, part_s=0.025)
    case("client", "reader, loss 1 %", Link(0.005, loss=0.01), reply=700_000, client=slow)
    case("client", "reader, jitter", Link(0.01, jitter_s=0.006), reply=700_000, client=slow)
    case("client", "reader below a narrow link", Link(0.01, rate=12e6), reply=900_000, client=slow)
    case("client", "uneven reader", mid, reply=900_000, client=End(read=16_384, read_s=0.03, uneven=True))
    case(
        "client",
        "uneven reader, far",
        Link(0.04),
        reply=900_000,
        client=End(read=9_000, read_s=0.03, uneven=True),
    )
    case(
        "client",
        "reader of large pieces, far",
        Link(0.04),
        reply=3_000_000,
        client=End(read=200_000, read_s=0.3),
    )
    case("client", "reader over TLS", mid, reply=700_000, client=slow, tls=True)
    case("server", "upload reader in gulps", mid, upload=2_000_000, server=End(read=200_000, read_s=0.2))
    case("server", "upload reader, jitter", Link(0.01, jitter_s=0.005), upload=600_000, server=slow)
    case("server", "writer, jitter", Link(0.01, jitter_s=0.006), reply=800_000, server=paced)
    case(
        "server", "writer, loss 1 %", Link(0.01, loss=0.01), reply=400_000, server=End(parts=80, part_s=0.05)
    )
    case(
        "server",
        "writer below a narrow link",
        Link(0.01, rate=12e6),
        reply=900_000,
        server=End(parts=40, part_s=0.06),
    )
    case("server", "writer over TLS", far, reply=300_000, server=End(parts=60, part_s=0.04), tls=True)
    case(
        "client_receive_buffer",
        "receive buffer 16 kB, jitter",
        Link(0.02, jitter_s=0.004),
        reply=500_000,
        client=End(receive=16_384),
    )
    case(
        "server_send_buffer",
        "send buffer 16 kB, Nagle",
        far,
        reply=2_000_000,
        server=End(send=16_384, nodelay=False),
    )
    case(
        "bandwidth", "narrow link, small reads", Link(0.01, rate=6e6), reply=1_200_000, client=End(read=1_000)
    )
    case("bandwidth|recovery|latency", "policer", Link(0.02, rate=4e6, burst=30_000), reply=700_000)
    case("bandwidth|recovery", "short queue", Link(0.02, rate=6e6, queue_s=0.02), reply=1_200_000)
    case(
        "nagle",
        "Nagle at both ends",
        mid,
        turns=20,
        upload=400,
        reply=400,
        client=End(parts=2, nodelay=False),
        server=End(parts=2, nodelay=False),
    )
    case("latency", "pipelining, far", Link(0.05), turns=40, ahead=4, reply=2_000)
    case("idle", "idle, then asked", mid, turns=3, reply=20_000, client_s=1.8)
    case("client", "half close, slow reader", mid, reply=500_000, half_close=True, client=slow)
    case("server", "slow server, loss 1 %", Link(0.01, loss=0.01), turns=20, reply=6_000, server_s=0.15)
    case("client", "slow client, jitter", Link(0.01, jitter_s=0.006), turns=20, reply=6_000, client_s=0.15)
    case("server", "slow server, many segments", far, turns=8, reply=200_000, server_s=0.4)
    case("client", "reader, no stamps", mid, reply=700_000, client=slow, stamps=False)
    case(
        "client",
        "reader in gulps, no stamps",
        mid,
        reply=3_000_000,
        client=End(read=400_000, read_s=0.25),
        stamps=False,
    )
    case("server", "writer, no stamps", far, reply=700_000, server=End(parts=70, part_s=0.03), stamps=False)
    case(
        "client_receive_buffer",
        "receive buffer 16 kB, no stamps",
        far,
        reply=500_000,
        client=End(receive=16_384),
        stamps=False,
    )
    case(
        "server_send_buffer",
        "send buffer 16 kB, no stamps",
        far,
        reply=2_000_000,
        server=End(send=16_384),
        stamps=False,
    )
    case("bandwidth", "narrow link, no stamps", Link(0.01, rate=6e6), turns=2, reply=900_000, stamps=False)
    case("bandwidth", "narrow upload, no stamps", Link(0.01, rate=6e6), turns=2, upload=900_000, stamps=False)
    case("latency", "far, no stamps", Link(0.03), turns=12, reply=60_000, stamps=False)
    case(
        "server",
        "slow server, jitter, no stamps",
        Link(0.01, jitter_s=0.006),
        turns=20,
        reply=20_000,
        server_s=0.15,
        stamps=False,
    )
    case(
        "nagle",
        "Nagle, no stamps",
        mid,
        turns=25,
        upload=400,
        client=End(parts=2, nodelay=False),
        stamps=False,
    )
    case("recovery|latency", "loss 3 %, no stamps", Link(0.02, loss=0.03), reply=500_000, stamps=False)


def _owed(case: Add) -> None:
    """Add cases with silences and systematic losses; if one end cannot see the cause, `unknown` is right."""
    far = Link(0.015)
    case("server", "pause in an answer", far, reply=600_000, server=End(parts=2, part_s=2.5), http=True)
    case("client", "pause in a request", far, upload=60_000, client=End(parts=2, part_s=2.0), http=True)
    case("client", "shy client", Link(0.01), turns=2, client=End(shy_s=1.5))
    case("recovery", "swallowed answer", Link(0.01, swallow=1300), reply=200_000)
    case("recovery", "swallowed upload", Link(0.01, swallow=1300), upload=200_000)
    case(
        "recovery|unknown",
        "dying path",
        Link(0.02, dies_s=0.3),
        reply=9_000_000,
        patience_s=3.0,
        http=True,
    )
    case("server|unknown", "full accept queue", Link(0.01), crowd=4)
    case(
        "nagle",
        "Nagle, jitter",
        Link(0.002, jitter_s=0.012),
        turns=25,
        upload=400,
        client=End(parts=2, nodelay=False),
    )


CASES = _cases()

"""Scenarios for the relay, each on a port: a link, and how server and client behave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """How the relay treats packets: every nth large one (above `spare` bytes) is lost, late or doubled.

    `loss` is the probability that a packet is lost, `jitter_s` the largest delay beyond `delay_s`, both random; with
    jitter packets overtake each other. `lose_first` loses the client's first packet. A policer passes `rate` and
    bursts of `burst` bytes, and loses the rest instead of queueing it. Packets larger than `swallow` bytes are lost,
    and a path dies `dies_s` after a connection's first packet.
    """

    delay_s: float = 0.0
    lose: int = 0
    reorder: int = 0
    late_s: float = 0.0
    double: int = 0
    rate: float = 0.0  # bit/s
    queue_s: float = 0.3
    spare: int = 200
    loss: float = 0.0
    jitter_s: float = 0.0
    burst: int = 0
    lose_first: bool = False
    swallow: int = 0
    dies_s: float = 0.0


@dataclass(frozen=True)
class End:
    """How the program and the system at one end behave.

    The program reads `read` bytes at once and waits `read_s` after each read; with `uneven`, up to twice as long or
    not at all. It writes in `parts`, `part_s` apart. `receive` and `send` are its buffer sizes (0: the system's);
    `nodelay` is False if Nagle's algorithm holds small segments back.
    """

    read: int = 65536
    read_s: float = 0.0
    parts: int = 1
    part_s: float = 0.0
    receive: int = 0
    send: int = 0
    nodelay: bool = True
    control: str = ""  # the congestion control
    deaf_s: float = 0.0  # how long it does not read after the first request
    shy_s: float = 0.0  # how long it sends nothing after connecting
    uneven: bool = False


@dataclass(frozen=True)
class Scenario:
    """A connection: `turns` requests, each sent after `client_s` and answered by `reply` bytes after `server_s`.

    `upload` is the size of a request; `ahead` requests are sent before the first answer is read. With `http`, requests
    and answers are HTTP messages with bodies of these sizes. A client hangs up after `patience_s` without a byte. A
    `crowd` of other clients connects at the same time to a server that accepts one connection every half second and
    lets one wait.
    """

    name: str
    port: int
    link: Link = Link()
    turns: int = 1
    reply: int = 100
    upload: int = 64
    server_s: float = 0.0
    client_s: float = 0.0
    client: End = End()
    server: End = End()
    ahead: int = 0
    tls: bool = False
    half_close: bool = False
    udp: str = ""
    http: bool = False
    patience_s: float = 60.0
    crowd: int = 0


SCENARIOS = (
    Scenario("far", 7001, Link(0.015), turns=30, reply=12_000),
    Scenario("slow client", 7002, Link(0.01), turns=20, reply=3_000, client_s=0.05),
    Scenario("slow server", 7003, Link(0.01), turns=20, reply=3_000, server_s=0.05),
    Scenario("deaf client", 7004, Link(0.005), reply=3_000_000, client=End(deaf_s=2.5)),
    Scenario("losing link", 7005, Link(0.02, lose=37), turns=6, reply=120_000, client_s=0.02),
    Scenario("losing ends", 7006, Link(0.015, lose=7), turns=25, reply=1_000, server_s=0.01),
    Scenario("mixing link", 7007, Link(0.02, reorder=11, late_s=0.004, double=13), turns=8, reply=60_000),
    Scenario("idle", 7008, Link(0.01), turns=2, reply=2_000, client_s=1.6),
    Scenario("narrow link", 7009, Link(0.01, rate=6e6), turns=2, reply=700_000),
    Scenario("narrow upload", 7010, Link(0.01, rate=6e6), turns=2, upload=700_000, reply=100),
    Scenario("slow stream", 7011, Link(0.02), reply=60_000, server=End(parts=40, part_s=0.06)),
    Scenario("tftp", 69, Link(0.0), turns=1, reply=60_000, server_s=0.01, udp="tftp"),
    Scenario("dns", 53, Link(0.0), turns=12, server_s=0.015, udp="dns"),
    Scenario("dhcp", 67, Link(0.0), server_s=0.02, client_s=1.0, udp="dhcp"),
)

_SLOW = End(read=10_000, read_s=0.02)
# Cases in which the wrong side seems to be at fault: see test_capture_verdicts.
VERDICTS = (
    Scenario("slow reader", 7201, Link(0.005), reply=500_000, client=_SLOW),
    Scenario("slow upload reader", 7202, Link(0.005), upload=500_000, server=_SLOW),
    Scenario("small receive buffer", 7203, Link(0.02), reply=400_000, client=End(receive=16_384)),
    Scenario("small send buffer", 7204, Link(0.02), reply=1_500_000, server=End(send=16_384)),
    Scenario("jitter without loss", 7205, Link(0.01, jitter_s=0.006), turns=30, reply=20_000),
    Scenario("Nagle", 7206, Link(0.005), turns=20, upload=400, client=End(parts=2, nodelay=False)),
    Scenario(
        "Nagle, jitter",
        7211,
        Link(0.005, jitter_s=0.003),
        turns=20,
        upload=400,
        client=End(parts=2, nodelay=False),
    ),
    Scenario("loss 3 %", 7207, Link(0.04, loss=0.03), reply=600_000),
    Scenario("very far", 7208, Link(0.1), turns=6, reply=20_000),
    Scenario("lost SYN", 7210, Link(0.02, lose_first=True), turns=8, reply=40_000),
    Scenario("thinking", 7209, Link(0.005), turns=20, reply=40_000, server_s=0.03),
    Scenario(
        "pause in an answer", 7212, Link(0.015), reply=600_000, server=End(parts=2, part_s=2.5), http=True
    ),
    Scenario(
        "pause in a request", 7213, Link(0.015), upload=60_000, client=End(parts=2, part_s=2.0), http=True
    ),
    Scenario("first request after a while", 7214, Link(0.01), turns=2, client=End(shy_s=1.5)),
    Scenario("swallowed answer", 7215, Link(0.01, swallow=1300), reply=200_000),
    Scenario("swallowed upload", 7216, Link(0.01, swallow=1300), upload=200_000),
    Scenario("dying path", 7217, Link(0.02, dies_s=0.3), reply=9_000_000, patience_s=3.0, http=True),
    Scenario("full accept queue", 7218, Link(0.01), crowd=4),
)

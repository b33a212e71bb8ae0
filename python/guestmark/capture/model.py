"""The document that `guestmark-capture` writes (schema `guestmark-capture/2`), typed.

Times are in seconds unless a name ends in `_ns`, sizes in bytes. Fields that do not apply are None.
"""

from __future__ import annotations

import msgspec

SCHEMA = "guestmark-capture/2"


class Response(msgspec.Struct, frozen=True):
    """Response latency: from the peer's last packet to this endpoint's next one."""

    count: int
    total_s: float
    share: float | None
    mean_s: float | None
    min_s: float | None
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    p999_s: float | None
    max_s: float | None


class Causes(msgspec.Struct, frozen=True):
    """Time spent by cause; the parts add up to the whole. All are None if only one direction was captured.

    `network_s` and `window_s` only occur in documents of schema 1, which had six causes.
    """

    client_s: float | None = None
    server_s: float | None = None
    client_receive_buffer_s: float | None = None
    server_receive_buffer_s: float | None = None
    client_send_buffer_s: float | None = None
    server_send_buffer_s: float | None = None
    latency_s: float | None = None
    bandwidth_s: float | None = None
    nagle_s: float | None = None
    recovery_s: float | None = None
    idle_s: float | None = None
    unknown_s: float | None = None
    network_s: float | None = None
    window_s: float | None = None


class RoundTrips(msgspec.Struct, frozen=True):
    """Round trips between the point of capture and one end."""

    count: int = 0
    min_s: float | None = None
    mean_s: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


class Side(msgspec.Struct, frozen=True):
    """One endpoint of a connection: what it sent, and how fast it answered."""

    address: str
    port: int
    packets: int
    wire_bytes: int
    payload_bytes: int
    unique_bytes: int
    retransmitted_bytes: int
    retransmissions: int
    out_of_order: int
    missing_bytes: int
    zero_windows: int
    resets: int
    mss: int
    largest_payload: int
    oversized: int
    throughput_bytes_per_s: float | None
    response: Response
    rtt: RoundTrips = RoundTrips()
    window_min: int | None = None
    window_max: int | None = None
    sacks: int = 0
    in_flight_max: int = 0
    copies: int = 0


class Connection(msgspec.Struct, frozen=True):
    """One connection; `captured` is whole, no-start, no-end, middle or (UDP) flow."""

    index: int
    protocol: str
    client: Side
    server: Side
    roles: str
    captured: str
    marks: list[str]
    start_ns: int
    duration_ns: int
    duration_s: float
    handshake_s: float | None
    syn_to_synack_s: float | None
    synack_to_ack_s: float | None
    unknown_share: float | None
    capture_point: str
    causes: Causes = Causes()
    confidence: str | None = None  # in the causes: high, medium or low
    waited_s: float | None = None  # the duration without idle time
    longest_wait_s: float | None = None  # the longest wait for a single cause
    longest_wait_for: str | None = None  # that cause

    @property
    def sides(self) -> tuple[Side, Side]:
        """The client, then the server."""
        return self.client, self.server


class Endpoint(msgspec.Struct, frozen=True):
    """The totals over all connections of one server (address and port) or one client (address)."""

    address: str
    port: int | None
    role: str | None
    protocol: str | None
    connections: int
    time_s: float
    packets: int
    wire_bytes: int
    payload_bytes: int
    unique_bytes: int
    retransmitted_bytes: int
    retransmissions: int
    out_of_order: int
    missing_bytes: int
    zero_windows: int
    resets: int
    response: Response
    histogram: list[tuple[float, float, int]] | None = None
    own_s: float = 0.0  # the time of its program
    # The longest single wait for its program; 0 without any.
    longest_wait_s: float = 0.0


class Shares(msgspec.Struct, frozen=True):
    """Shares of the time of all connections, each from 0 to 1."""

    client: float | None
    server: float | None
    unknown: float | None


class Limit(msgspec.Struct, frozen=True):
    """Something that limits how far the figures can be trusted; `text` follows the count in a sentence."""

    kind: str
    count: int
    text: str


class Fault(msgspec.Struct, frozen=True):
    """Why reading stopped before the end."""

    offset: int
    reason: str
    hint: str


class SequencePoint(msgspec.Struct, frozen=True):
    """One packet of a connection in time.

    `kind` is data, repeated or ack, `to` the end of its payload in the sender's stream, `acked` how much it
    acknowledges of the peer's stream, `room` where its window ends there; all count from the first sequence number of
    the stream.
    """

    t: float
    client: bool
    kind: str
    to: int
    acked: int
    room: int = 0
    sack: bool = False


class Span(msgspec.Struct, frozen=True):
    """A part of a connection's time, in seconds since its first packet, and its cause."""

    from_s: float
    to_s: float
    cause: str


class End(msgspec.Struct, frozen=True):
    """An address and a port."""

    address: str
    port: int


class Sequence(msgspec.Struct, frozen=True):
    """Points of one of the connections that waited longest; one of every `stride` packets is kept."""

    connection: int
    stride: int
    points: list[SequencePoint]
    spans: list[Span] = []
    client: End | None = None
    server: End | None = None
    packets: int = 0
    duration_s: float = 0.0


class Message(msgspec.Struct, frozen=True):
    """One message of an exchange, in the protocol's terms."""

    at_s: float
    client: bool
    kind: str


class Exchange(msgspec.Struct, frozen=True):
    """A DHCP lease, a TFTP transfer, a QUIC handshake, or all queries to one DNS server.

    `count` is the number of blocks or queries, `answers` the time that the server took for each.
    """

    protocol: str
    client: str
    server: str | None
    name: str | None
    start_ns: int
    duration_s: float
    client_s: float
    server_s: float
    recovery_s: float
    repeated: int
    count: int
    unanswered: int
    bytes: int
    answers: RoundTrips
    messages: list[Message]
    granted_s: float | None = None  # when a DHCP server granted an address


class Request(msgspec.Struct, frozen=True):
    """One request and its answer; for TLS, the client's first message and the end of the handshake; for DNS, a query.

    `first_byte_s` and `last_byte_s` run from the last byte of the request to the first and last one of the answer; None
    if these were not captured. `frame` holds the last byte of the request, `answer_frames` the first and last of the
    answer. `repeated` counts how often a query was sent again; its times run from the first attempt.
    """

    name: str
    status: int | None
    client: str
    start_ns: int
    sent_s: float
    first_byte_s: float | None
    last_byte_s: float | None
    frame: int
    answer_frames: tuple[int, int] | None
    bytes: int
    repeated: int = 0


class Served(msgspec.Struct, frozen=True):
    """All requests in one protocol (`http`, `tls` or `dns`) to one server; `longest` are up to 16 of them.

    `failed` counts answers that report an error: an HTTP status of 400 or more, or a DNS response code other than 0.
    """

    protocol: str
    server: str
    count: int
    unanswered: int
    first_byte: RoundTrips
    last_byte: RoundTrips
    longest: list[Request]
    failed: int = 0
    repeated: int = 0


class Ended(msgspec.Struct, frozen=True):
    """A packet that ended a wait of `waited_s` for `cause`; `frame` is its number in the capture, counted from 1."""

    frame: int
    cause: str
    waited_s: float


class Trace(msgspec.Struct, frozen=True):
    """One file, or several that were read as one."""

    file: str
    connections: list[Connection]
    format: str | None
    compression: str | None
    connection_count: int
    start_ns: int | None
    shares: Shares
    relative_error: float
    counters: dict[str, int]
    limits: list[Limit]
    endpoints: list[Endpoint]
    sequence: Sequence | None
    error: Fault | None
    causes: Causes = Causes()
    exchanges: list[Exchange] = []
    # The connections that waited longest after that one, if more than one was requested.
    sequences: list[Sequence] = []
    # The packets that ended the longest waits, by cause, if requested.
    guilty: list[Ended] = []
    # The requests by server, if requested.
    requests: list[Served] = []
    # After a granted address: start, duration (both in ns) and bytes of each TCP connection whose server sent data.
    fetches: list[tuple[int, int, int]] = []


class Document(msgspec.Struct, frozen=True):
    """The complete output of `guestmark-capture`."""

    schema: str
    files: list[Trace]


_POINTS = 600  # drawn in a time-sequence view


def reduce_for_drawing(trace: Trace) -> Trace:
    """Return the endpoints with their histograms and one connection in time, with no more points than are drawn."""
    sequence = trace.sequence
    if sequence is not None and len(sequence.points) > _POINTS:
        step = -(-len(sequence.points) // _POINTS)
        sequence = msgspec.structs.replace(
            sequence, points=sequence.points[::step], stride=sequence.stride * step
        )
    connections = []
    if sequence is not None:
        wanted = sequence.connection
        connections = [connection for connection in trace.connections if connection.index == wanted]
    return msgspec.structs.replace(trace, file="", connections=connections, sequence=sequence)

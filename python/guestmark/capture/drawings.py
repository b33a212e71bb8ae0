"""Lays out the two drawings of a capture: response latencies, and one connection in time.

They are plain SVG, because two drawings do not justify a megabyte of charting library in every file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from guestmark.capture.model import End, Endpoint, Response, Sequence, SequencePoint, Span, Trace
from guestmark.capture.table import format_host_port
from guestmark.capture.units import format_percent, format_seconds, format_size
from guestmark.capture.verdict import CAUSE_NAMES

ROW = 64
_VISIBLE = 0.1  # of a pixel
_EDGE = 110  # pixels to keep free beside a mark for its label, with a margin
_LABEL = 76  # width of such a label itself
_SIGNS = 25  # characters of a name beside a row
# Share of the responses that may be quicker than the start of the axis; they are drawn at its start.
_QUICKEST = 0.001
# If the first packet comes later than this share of the time, the axis begins with it, not with the connection.
_LATE = 0.2


@dataclass(frozen=True, slots=True)
class Frame:
    """The dimensions of a drawing; each drawing exists twice, for wide and for narrow windows."""

    css: str
    width: int
    left: int  # for labels beside the plot
    right: int
    above: int  # for labels above a row
    bins: int
    ticks: int  # of time, about

    @property
    def axis_length(self) -> int:
        """The length of the axis."""
        return self.width - self.left - self.right


_WIDE = Frame("for-wide", 960, 190, 24, 0, 160, 6)
_DISTRIBUTIONS = (_WIDE, Frame("for-narrow", 400, 6, 12, 44, 80, 3))
_SEQUENCES = (_WIDE, Frame("for-narrow", 400, 56, 12, 0, 80, 3))


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line, with its distance from the left or the top."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The responses in one bin."""

    x: float
    width: float
    height: float
    count: str
    label: str  # how long they took


@dataclass(frozen=True, slots=True)
class Mark:
    """A quantile; near the right edge of the picture its label stands to the left of it."""

    at: float
    y: int
    label: str
    left: bool


@dataclass(frozen=True, slots=True)
class Row:
    """One endpoint, with its marks between `top` and `base`."""

    top: int
    base: int
    lines: tuple[int, int, int]  # where its labels stand
    name: str
    whole: str  # the name without anything left out
    role: str
    share: str
    count: str
    # The longest single wait for its program.
    longest: str
    bars: tuple[Bar, ...]
    times: tuple[tuple[float, float], ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Distributions:
    """A row for each endpoint on a common logarithmic axis."""

    frame: Frame
    height: int
    # Where the axis begins and ends, seconds.
    low: float
    high: float
    decades: tuple[Tick, ...]
    rows: tuple[Row, ...]

    @classmethod
    def lay_out_for_all_widths(cls, endpoints: list[Endpoint]) -> tuple[Distributions, ...]:
        """Lay out endpoints that have a histogram, for each width."""
        return tuple(cls._lay_out(endpoints, frame) for frame in _DISTRIBUTIONS)

    @classmethod
    def _lay_out(cls, endpoints: list[Endpoint], frame: Frame) -> Distributions:
        low = min(_find_axis_beginning(endpoint) for endpoint in endpoints)
        high = max(endpoint.histogram[-1][1] for endpoint in endpoints if endpoint.histogram)
        # The axis begins and ends at a third of a decade, near 1, 2 and 5 times a power of ten.
        first = math.floor(math.log10(low) * 3) / 3
        last = max(math.ceil(math.log10(high) * 3) / 3, first + 1 / 3)

        def x(seconds: float) -> float:
            position = (math.log10(max(seconds, 1e-9)) - first) / (last - first)
            return frame.left + min(max(position, 0.0), 1.0) * frame.axis_length

        exponents = range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)
        decades = tuple(Tick(x(10.0**exponent), format_seconds(10.0**exponent)) for exponent in exponents)
        each = ROW + frame.above
        rows = []
        for number, endpoint in enumerate(endpoints):
            rows.append(_lay_out_row(endpoint, each * number, x, frame))
        return cls(frame, each * len(endpoints) + 34, 10.0**first, 10.0**last, decades, tuple(rows))


def _find_axis_beginning(endpoint: Endpoint) -> float:
    """Return where an axis that shows nearly all responses of an endpoint begins, in seconds."""
    histogram = endpoint.histogram or ()
    left = _QUICKEST * sum(count for _, _, count in histogram)
    for low, _, count in histogram:
        left -= count
        if left < 0:
            return max(low, 1e-9)
    return 1e-9


def _fit_name(name: str) -> str:
    if len(name) <= _SIGNS:
        return name
    return f"{name[: _SIGNS // 2]}…{name[-_SIGNS // 2 + 1 :]}"


def _lay_out_row(endpoint: Endpoint, begin: int, x: Callable[[float], float], frame: Frame) -> Row:
    top = begin + frame.above
    response = endpoint.response

    def find_bin(seconds: float) -> int:
        return min(int((x(seconds) - frame.left) / frame.axis_length * frame.bins), frame.bins - 1)

    bins: dict[int, float] = {}
    spent: dict[int, float] = {}
    for low, high, count in endpoint.histogram or ():
        # Bins are logarithmic, so their middle is the geometric mean; 0 has no logarithm.
        middle = math.sqrt(max(low, 1e-9) * high)
        at = find_bin(middle)
        bins[at] = bins.get(at, 0) + count
        spent[at] = spent.get(at, 0) + count * middle
    most, wide = max(bins.values()), frame.axis_length / frame.bins
    name = format_host_port(endpoint.address, endpoint.port)
    ends: dict[int, tuple[float, float]] = {}
    for low, high, _ in endpoint.histogram or ():
        at = find_bin(math.sqrt(max(low, 1e-9) * high))
        begun, ended = ends.get(at, (low, high))
        ends[at] = min(begun, low), max(ended, high)
    bars = []
    for at, amount in sorted(bins.items()):
        label = " to ".join(format_seconds(end) for end in ends[at])
        bars.append(Bar(frame.left + at * wide, wide, amount / most * (ROW - 22), f"{amount:,.0f}", label))
    lines = (top + 22, top + 38, top + 54)
    if frame.above:
        lines = (begin + 14, begin + 28, begin + 42)
    longest = ""
    if endpoint.longest_wait_s:
        longest = format_seconds(endpoint.longest_wait_s)
    return Row(
        top,
        top + ROW - 6,
        lines,
        _fit_name(name),
        name,
        endpoint.role or "client",
        format_percent(response.share),
        f"{response.count:,}",
        longest,
        tuple(bars),
        _trace_time_outline(spent, frame.left, top + ROW - 6, wide),
        tuple(_lay_out_marks(response, top, x, frame)),
    )


def _lay_out_marks(response: Response, top: int, x: Callable[[float], float], frame: Frame) -> Iterator[Mark]:
    p50 = p99 = 0.0
    if response.p50_s is not None:
        p50 = x(response.p50_s)
    if response.p99_s is not None:
        p99 = x(response.p99_s)
    # Close together, the labels stand on both sides, or one below the other at the left edge.
    aside = p99 - p50 < _EDGE < p50 - frame.left
    last = p99 >= frame.width - _EDGE
    below = 36 if last or not aside else 22
    if response.p50_s is not None:
        left = (aside or last) and p50 - frame.left > _LABEL
        yield Mark(p50, top + 22, f"p50 {format_seconds(response.p50_s)}", left)
    if response.p99_s is not None:
        yield Mark(p99, top + below, f"p99 {format_seconds(response.p99_s)}", last)


def _trace_time_outline(
    spent: dict[int, float], left: int, base: int, wide: float
) -> tuple[tuple[float, float], ...]:
    """Return the outline of the time spent in each bin, from the first to the last."""
    most = max(spent.values())
    points: list[tuple[float, float]] = []
    for at in range(min(spent), max(spent) + 1):
        y = base - spent.get(at, 0.0) / most * (ROW - 22)
        points += [(left + at * wide, y), (left + (at + 1) * wide, y)]
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Dot:
    """One packet, by its time and the last byte that it carries."""

    x: float
    y: float
    repeated: bool
    label: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A period of time, in the colour of its cause."""

    x: float
    width: float
    cause: str
    label: str


@dataclass(frozen=True, slots=True)
class Stream:
    """One direction: what was sent, and how much of it the other side had acknowledged."""

    frame: Frame
    role: str
    height: int
    times: tuple[Tick, ...]
    sizes: tuple[Tick, ...]
    acknowledged: tuple[tuple[float, float], ...]
    room: tuple[tuple[float, float], ...]
    gaps: tuple[float, ...]
    pieces: tuple[Piece, ...]
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Sequences:
    """A drawing of one connection over time, with one of every `stride` packets."""

    title: str
    extent: str
    stride: int
    # Where the axis of time begins and ends, seconds.
    first: float
    last: float
    streams: tuple[Stream, ...]

    @classmethod
    def from_sequence(cls, trace: Trace, sequence: Sequence) -> Sequences:
        """Lay out a connection of `trace`, which must have points."""
        points = sequence.points
        title = _describe_ends(trace, sequence)
        extent = f"{sequence.packets:,} packets, {format_seconds(sequence.duration_s)}"
        last = max(1e-9, *(point.t for point in points))
        first = min(point.t for point in points)
        # An axis from 0 is easier to read, unless most of it would be empty.
        if first <= _LATE * last or last <= first:
            first = 0.0
        streams = []
        for role, by_client in (("server", False), ("client", True)):
            sent = [point for point in points if point.client == by_client and point.kind != "ack"]
            answers = [point for point in points if point.client != by_client]
            if sent and max(point.to for point in sent) > 0:
                for frame in _SEQUENCES:
                    streams.append(_lay_out_stream(frame, role, sent, answers, sequence.spans, (first, last)))
        return cls(title, extent, sequence.stride, first, last, tuple(streams))

    @classmethod
    def from_trace(cls, trace: Trace) -> tuple[Sequences, ...]:
        """Lay out all connections whose points were kept, the one that waited longest first."""
        drawings = []
        for sequence in (trace.sequence, *trace.sequences):
            if sequence is None or not sequence.points:
                continue
            drawing = cls.from_sequence(trace, sequence)
            if drawing.streams:
                drawings.append(drawing)
        return tuple(drawings)


def _describe_ends(trace: Trace, sequence: Sequence) -> str:
    client, server = sequence.client, sequence.server
    if client is None or server is None:
        # Older documents name the ends only among the connections.
        for connection in trace.connections:
            if connection.index == sequence.connection:
                client, server = (End(side.address, side.port) for side in connection.sides)
                break
    if client is None or server is None:
        return "the connection that waited longest"
    return (
        f"{format_host_port(client.address, client.port)} → {format_host_port(server.address, server.port)}"
    )


def _lay_out_stream(  # noqa: PLR0917 - a direction of a connection, and where it is drawn
    frame: Frame,
    role: str,
    sent: list[SequencePoint],
    answers: list[SequencePoint],
    spans: Iterable[Span],
    ends: tuple[float, float],
) -> Stream:
    # Usually the server sends the data, so its drawing is the larger one.
    height = 300 if role == "server" else 180
    most = max(point.to for point in sent)
    first, last = ends

    def x(t: float) -> float:
        return frame.left + max(t - first, 0.0) / (last - first) * frame.axis_length

    def y(to: float) -> float:
        return height - 30 - min(to / most, 1.0) * (height - 50)

    steps: list[tuple[float, float]] = []
    highest = 0
    for point in answers:
        if highest < point.acked <= most + 1:
            steps += [(x(point.t), y(highest)), (x(point.t), y(point.acked))]
            highest = point.acked
    dots: dict[tuple[int, int, bool], Dot] = {}
    # Repeated packets are drawn last, so that they lie above those sent once.
    for point in sorted(sent, key=lambda point: point.kind == "repeated"):
        repeated = point.kind == "repeated"
        label = f"{format_seconds(point.t)}: {format_size(point.to)}"
        if repeated:
            label += ", retransmitted"
        # Of several dots within half a pixel only the first would be visible.
        place = round(2 * x(point.t)), round(2 * y(point.to)), repeated
        dots.setdefault(place, Dot(x(point.t), y(point.to), repeated, label))
    pieces = []
    for span in spans:
        width = x(span.to_s) - x(span.from_s)
        if width >= _VISIBLE:
            label = f"{CAUSE_NAMES[span.cause]} {format_seconds(span.to_s - span.from_s)}"
            pieces.append(Piece(x(span.from_s), width, span.cause, label))
    times, sizes = _list_round_values(last, frame.ticks, first), _list_round_values(most, 4)
    return Stream(
        frame,
        role,
        height,
        tuple(_make_ticks(times, x, format_seconds)),
        tuple(_make_ticks(sizes, y, format_size)),
        tuple(steps),
        tuple((x(point.t), y(point.room)) for point in answers if point.room),
        tuple(x(point.t) for point in answers if point.sack),
        tuple(pieces),
        tuple(dots.values()),
    )


def _make_ticks(
    values: Iterable[float], place: Callable[[float], float], describe: Callable[[float], str]
) -> Iterator[Tick]:
    for value in values:
        label = "0"
        if value:
            label = describe(value)
        yield Tick(place(value), label)


def _list_round_values(last: float, about: int, first: float = 0.0) -> list[float]:
    """Return about `about` round values from `first` to `last`: multiples of 1, 2 or 5 times a power of ten."""
    rough = (last - first) / about
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(decade * factor for factor in (1, 2, 5, 10) if decade * factor >= rough * 0.999)
    begin, end = math.ceil(first / step * 0.9999), math.floor(last / step * 1.0001)
    return [step * number for number in range(begin, end + 1)]

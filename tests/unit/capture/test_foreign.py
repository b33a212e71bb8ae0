"""Files of others: clocks that step, windows that are shut, times far ahead, and formats that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from guestmark.capture.binary import Selection, Wanted, analyse_capture, analyse_file
from guestmark.capture.model import RoundTrips, Served, Trace
from guestmark.capture.table import describe_requests
from tests.framework import captures as cf
from tests.framework.command_line import CommandLine

REQUEST, ANSWER = b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def alternating(turns: int, step_ns: int) -> list[tuple[int, bytes]]:
    """Requests and answers as two clocks saw them, each its own direction: the answer seems to come before."""
    now, seq, reply, steps = 10**18, 1, 1, []
    for _ in range(turns):
        data = cf.tcp(cf.CLIENT, cf.SERVER, cf.ACK | cf.PSH, seq, reply, REQUEST)
        seq += len(REQUEST)
        steps.append((now, data))
        answer = cf.tcp(cf.SERVER, cf.CLIENT, cf.ACK | cf.PSH, reply, seq, ANSWER)
        reply += len(ANSWER)
        steps.append((now - step_ns, answer))
        now += 1_000_000
    return steps


@pytest.mark.parametrize("step_ns", [1_000, 400_000, 10**9, 5_201_742 * 10**9])
def test_no_share_is_more_than_all_where_clocks_step_back(step_ns: int, tmp_path: Path) -> None:
    path = tmp_path / "stepping.pcap"
    path.write_bytes(cf.pcap(cf.frames(alternating(20, step_ns)), nanos=True))
    found, _ = analyse_capture(Selection((str(path),)), Wanted(requests=True))
    (trace,) = found.files
    (connection,) = trace.connections
    for share in (connection.client.response.share, connection.server.response.share):
        assert share is None or share <= 1
    assert (trace.shares.client or 0) + (trace.shares.server or 0) <= 1
    assert connection.confidence != "high"
    assert trace.start_ns is not None
    assert all(request.start_ns >= trace.start_ns for served in trace.requests for request in served.longest)


@pytest.mark.parametrize("seconds", [2_948_900_000, 4_294_967_295, 4_500_000_000])
def test_times_far_ahead_are_read(seconds: int, tmp_path: Path) -> None:
    """2063, the last second of pcap in 2106, and 2112."""
    packets = [cf.Packet(seconds * 10**9 + at, data) for at, (_, data) in enumerate(cf.conversation(start=0))]
    blocks = [cf.section(), cf.interface(cf.RAW, 9), *(cf.enhanced(packet, packet.ns) for packet in packets)]
    path = tmp_path / "ahead.pcapng"
    path.write_bytes(b"".join(blocks))
    assert analyse_file(path).start_ns == seconds * 10**9


@pytest.mark.parametrize("zeros", [1, 4])
def test_a_window_that_was_shut_when_the_capture_began_is_its_programs(zeros: int, tmp_path: Path) -> None:
    """As in a published example: the first data that is captured comes when the window opens again."""
    at, steps = 10**18, []
    for _ in range(zeros):
        steps.append((at, cf.tcp(cf.CLIENT, cf.SERVER, cf.ACK, 1, 8761, window=0)))
        at += 150_000_000
    steps.append((at, cf.tcp(cf.CLIENT, cf.SERVER, cf.ACK, 1, 8761, window=64_000)))
    for number in range(4):
        at += 230_000
        steps.append((at, cf.tcp(cf.SERVER, cf.CLIENT, cf.ACK, 8761 + 1000 * number, 1, b"a" * 1000)))
    path = tmp_path / "shut.pcap"
    path.write_bytes(cf.pcap(cf.frames(steps), nanos=True))
    (connection,) = analyse_file(path).connections
    end = min(connection.client, connection.server, key=lambda side: side.unique_bytes)
    reader = connection.causes.client_s if end is connection.client else connection.causes.server_s
    assert reader == pytest.approx(0.15 * zeros, rel=0.05), connection.causes


def test_a_filter_that_nothing_fits_is_named(tmp_path: Path, guestmark: CommandLine) -> None:
    path = tmp_path / "some.pcap"
    path.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    done = guestmark("capture", path, "--filter", "10.1.2.3")
    assert "None of 10 TCP and UDP packets matches --filter." in done.stdout


@pytest.mark.parametrize(
    ("head", "program"),
    [
        (b"\x04\x22\x4d\x18", "lz4 -dc"),
        (b"\x1f\x9d\x90", "uncompress -c"),
        (b"PK\x03\x04", "unzip -p"),
        (b"7z\xbc\xaf", "7z x -so"),
    ],
)
def test_other_compressions_are_named(
    head: bytes, program: str, tmp_path: Path, guestmark: CommandLine
) -> None:
    path = tmp_path / "packed"
    path.write_bytes(head + bytes(100))
    done = guestmark("capture", path)
    assert program in done.stderr


def test_what_cut_packets_do_not_hold_is_not_called_never() -> None:
    served = Served("tls", "10.0.0.1:443", 7, 0, RoundTrips(), RoundTrips(), [])
    trace = Trace("", [], None, None, 1, None, None, 0.0, {"cut": 3}, [], [], None, None, requests=[served])  # type: ignore[arg-type]
    (line,) = describe_requests(trace)
    assert "done unknown, because packets are truncated" in line


def test_a_question_without_an_answer_is_no_idleness(tmp_path: Path) -> None:
    """The resolver gives up and asks for another name."""
    client, server = ("10.0.6.2", 40_000), ("10.0.6.1", 53)
    steps = [(10**18 + at * 10**9, cf.udp(client, server, bytes([at]) * 30)) for at in (0, 3, 8)]
    steps.append((10**18 + 8_100_000_000, cf.udp(server, client, b"8" * 60)))
    path = tmp_path / "names.pcap"
    path.write_bytes(cf.pcap(cf.frames(steps), nanos=True))
    (found,) = analyse_file(path).connections
    assert found.causes.idle_s == 0
    assert found.causes.unknown_s == pytest.approx(8.0)

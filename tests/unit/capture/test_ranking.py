"""The slow one is shown: connections are ranked by what was waited for, wherever they are listed."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from tests.framework import captures as cf
from tests.framework.command_line import CommandLine

REQUEST, HEAD = b"GET /slow HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n"
SLOW, PORT = 3_040_000_000, 2040


def asked(port: int, start: int, answer_ns: int, segments: int = 1) -> list[tuple[int, bytes]]:
    """A connection with one request: acknowledged after 43 ms, answered later, in so many `segments`."""
    client = (cf.CLIENT[0], port)
    now, out = start, [(start, cf.tcp(client, cf.SERVER, cf.SYN, 0, 0))]

    def add(after: int, by_client: bool, header: tuple[int, int, int], payload: bytes = b"") -> None:
        nonlocal now
        now += after
        ends = (client, cf.SERVER) if by_client else (cf.SERVER, client)
        out.append((now, cf.tcp(*ends, *header, payload)))

    add(20_000, False, (cf.SYN | cf.ACK, 0, 1))
    add(10_000, True, (cf.ACK, 1, 1))
    add(10_000, True, (cf.ACK | cf.PSH, 1, 1), REQUEST)
    end = 1 + len(REQUEST)
    add(43_100_000, False, (cf.ACK, 1, end))
    add(answer_ns, False, (cf.ACK | cf.PSH, 1, end), HEAD)
    reply = 1 + len(HEAD)
    for _ in range(segments):
        add(10_000, False, (cf.ACK | cf.PSH, reply, end), b"answer")
        reply += 6
        add(10_000, True, (cf.ACK, end, reply))
    return out


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    """Many quick answers, some of many packets, a connection that is idle, and one slow answer."""
    steps = [step for at in range(90) for step in asked(1024 + at, 10**18 + at * 10**6, 100_000, 1 + at % 40)]
    steps = [step for step in steps if cf.ports(cf.Packet(0, step[1])).count(PORT) == 0]
    steps += asked(PORT, 10**18 + 5_000_000, SLOW)
    idle = asked(5000, 10**18, 100_000)
    idle.append((idle[-1][0] + 30 * 10**9, cf.tcp((cf.CLIENT[0], 5000), cf.SERVER, cf.FIN | cf.ACK, 23, 99)))
    path = tmp_path / "crowd.pcap"
    path.write_bytes(cf.pcap(cf.frames(sorted(steps + idle)), nanos=True))
    return path


def test_the_slow_connection_is_the_first_in_every_list(crowd: Path, guestmark: CommandLine) -> None:
    table = guestmark("capture", crowd, "--top", 3, env={"COLUMNS": "220"}).stdout.splitlines()
    assert f":{PORT} " in table[2], table
    assert "3.08 s for server" in table[2]
    endpoints = guestmark("capture", crowd, "--by", "endpoint", env={"COLUMNS": "220"}).stdout.splitlines()
    assert endpoints[2].startswith("10.0.6.1:8000")
    assert "3.08 s" in endpoints[2]
    rows = list(csv.DictReader(io.StringIO(guestmark("capture", crowd, "-f", "csv").stdout)))
    worst = max(rows, key=lambda row: float(row["longest_wait_s"]))
    assert (worst["client_port"], worst["longest_wait_for"]) == (str(PORT), "server")
    assert float(worst["longest_wait_s"]) == pytest.approx(3.083, abs=0.001)
    (only,) = analyse_file(crowd, filter_by=str(PORT)).connections
    assert only.waited_s == pytest.approx(only.duration_s)


def test_an_endpoint_shows_its_longest_wait_whatever_took_longer(
    tmp_path: Path, guestmark: CommandLine
) -> None:
    """The server's slow answer stands in a connection in which a lost request took longer still."""
    steps = asked(PORT, 10**18, SLOW)
    client = (cf.CLIENT[0], PORT)
    seq, ack = 1 + len(REQUEST), 7 + len(HEAD)
    now = steps[-1][0] + 10_000
    for at in (now, now + 1_000_000_000, now + 3_000_000_000, now + 7_000_000_000):
        steps.append((at, cf.tcp(client, cf.SERVER, cf.ACK | cf.PSH, seq, ack, REQUEST)))
    now = steps[-1][0]
    answer = cf.tcp(cf.SERVER, client, cf.ACK | cf.PSH, ack, seq + len(REQUEST), HEAD + b"answer")
    steps.append((now + 100_000, answer))
    path, page = tmp_path / "both.pcap", tmp_path / "page.html"
    path.write_bytes(cf.pcap(cf.frames(steps), nanos=True))
    table = guestmark("capture", path, "--by", "endpoint", env={"COLUMNS": "220"}).stdout
    (only,) = analyse_file(path).connections
    assert only.longest_wait_for == "recovery"
    (row,) = (line for line in table.splitlines() if line.startswith("10.0.6.1:8000"))
    assert re.search(r"\b3\.08 s", row), table
    listed = guestmark("capture", path, "--by", "endpoint", "-f", "csv").stdout
    waits = {one["role"]: float(one["longest_wait_s"]) for one in csv.DictReader(io.StringIO(listed))}
    assert waits["server"] == pytest.approx(3.083, rel=0.001)
    guestmark("capture", path, "--plot", page)
    assert re.search(r"longest wait 3\.08 s", page.read_text())


def test_the_page_has_the_slow_connection_its_request_and_the_doubt(
    crowd: Path, guestmark: CommandLine, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    said = guestmark("capture", crowd, "--plot", page).stdout
    drawn = page.read_text()
    first = re.search(r'name="connection-1" checked>([^<]*)<', drawn)
    assert first is not None
    assert f":{PORT} " in first[1]
    assert re.search(r"<p class=\"request\"> *GET /slow → 200[^<]*</p>", drawn)
    (doubt,) = re.findall(r"low confidence: (.*)", said) or [""]
    assert ("low confidence" in drawn) == bool(doubt)
    assert doubt in drawn


def test_a_page_without_a_verdict_says_so(crowd: Path, guestmark: CommandLine, tmp_path: Path) -> None:
    page, part = tmp_path / "page.html", tmp_path / "part.pcap"
    packets = [packet for at, packet in enumerate(_packets(crowd)) if at % 3]
    part.write_bytes(cf.pcap(packets, nanos=True))
    said = guestmark("capture", part, "--plot", page).stdout
    (reason,) = re.findall(r"No verdict: (.*)", said)
    assert f"No verdict: {reason}" in page.read_text()


def _packets(path: Path) -> list[cf.Packet]:
    return list(cf.packets_of(path))

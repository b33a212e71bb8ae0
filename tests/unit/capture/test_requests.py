"""Requests over TCP and UDP, timed one by one: exact captures, and real programs as tshark sees them."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from guestmark.capture.binary import Selection, Wanted, analyse_capture
from guestmark.capture.model import Served, Trace
from guestmark.capture.table import describe_requests
from tests.framework import captures as cf
from tests.framework import traffic as ct
from tests.framework.marks import long
from tests.framework.relay import relay
from tests.framework.scenarios import SCENARIOS

CLIENT, SERVER = cf.CLIENT, cf.SERVER


def requests_in(path: Path) -> Trace:
    return analyse_capture(Selection((str(path),)), Wanted(requests=True))[0].files[0]


# ---- exact ---------------------------------------------------------------------------------------------------


class Talk:
    """A connection whose segments are written one by one, at times in milliseconds."""

    def __init__(self) -> None:
        self.packets: list[cf.Packet] = []
        self.next = {True: 1, False: 1}
        self.add(0, True, flags=cf.SYN, seq=0)
        self.add(0, False, flags=cf.SYN | cf.ACK, seq=0)

    def add(self, ms: float, client: bool, data: bytes = b"", flags: int = 0, seq: int | None = None) -> int:
        """One segment; where it does not say its place, it follows the one before. Returns its place."""
        at = self.next[client] if seq is None else seq
        self.next[client] = max(self.next[client], at + len(data))
        ends = (CLIENT, SERVER) if client else (SERVER, CLIENT)
        acked = self.next[not client]
        packet = cf.tcp(*ends, flags or cf.ACK | cf.PSH, at, acked, data)
        self.packets.append(cf.Packet(10**18 + round(ms * 1e6), cf.link(cf.ETHERNET, packet)))
        return at

    def written(self, path: Path, most: int | None = None) -> Path:
        kept = [cf.Packet(p.ns, p.data[:most], p.length) for p in sorted(self.packets, key=lambda p: p.ns)]
        path.write_bytes(cf.pcap(kept, nanos=True))
        return path

    def served(self, folder: Path, most: int | None = None) -> Served:
        (served,) = requests_in(self.written(folder / "talk.pcap", most)).requests
        return served


def told(served: Served) -> list[tuple[str, int | None, float | None, float | None]]:
    """Name, status, milliseconds to the first byte and to the last, in order of time."""

    def ms(value: float | None) -> float | None:
        return None if value is None else round(1e3 * value, 3)

    found = sorted(served.longest, key=lambda request: (request.start_ns, request.frame))
    return [(r.name, r.status, ms(r.first_byte_s), ms(r.last_byte_s)) for r in found]


def answer(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


def asked(name: str) -> bytes:
    return f"GET {name} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


def test_an_answer_whose_tail_comes_first_ends_when_its_head_has_come(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, b"GET / HTTP/1.1\r\n\r\n")
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
    talk.add(5, False, b"tail", seq=1 + len(head))
    talk.add(300, False, head, seq=1)
    (served,) = requests_in(talk.written(tmp_path / "late.pcap")).requests
    (request,) = served.longest
    assert request.first_byte_s == request.last_byte_s == pytest.approx(0.299)


def test_answers_belong_to_pipelined_requests_in_order(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, asked("/a") + asked("/b")[:9])
    talk.add(4, True, asked("/b")[9:])
    talk.add(11, False, answer(4) + b"aaaa" + answer(6) + b"bb")
    talk.add(31, False, b"bbbb")
    talk.add(40, True, asked("/c"))
    talk.add(41, False, b"HTTP/1.1 204 No Content\r\n\r\n")
    talk.add(50, True, b"HEAD /d HTTP/1.1\r\n\r\n")
    talk.add(55, False, answer(1000))
    served = talk.served(tmp_path)
    assert told(served) == [
        ("GET /a", 200, 10, 10),
        ("GET /b", 200, 7, 27),
        ("GET /c", 204, 1, 1),
        ("HEAD /d", 200, 5, 5),
    ]
    assert (served.count, served.unanswered, served.first_byte.count, served.last_byte.count) == (4, 0, 4, 4)
    assert served.last_byte.max_s == pytest.approx(0.027)


def test_an_answer_is_whole_when_its_last_hole_is_filled(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, asked("/a"))
    talk.add(10, False, answer(30) + b"a" * 10)
    hole = talk.next[False]
    talk.add(12, False, b"a" * 10, seq=hole + 10)
    talk.add(30, False, b"a" * 10, seq=hole)
    talk.add(31, False, b"a" * 10, seq=hole)  # once more: says nothing
    talk.add(40, True, asked("/b"))
    talk.add(45, False, answer(0))
    assert told(talk.served(tmp_path)) == [("GET /a", 200, 9, 29), ("GET /b", 200, 5, 5)]


def test_chunks_end_where_the_last_one_does_wherever_segments_are_cut(tmp_path: Path) -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body += b"5;x=y\r\nHTTP/\r\na\r\n0123456789\r\n0\r\nA: b\r\n\r\n"
    for cut in range(1, len(body)):
        talk = Talk()
        talk.add(1, True, asked("/a"))
        talk.add(11, False, body[:cut])
        talk.add(21, False, body[cut:])
        talk.add(31, True, asked("/b"))
        talk.add(41, False, answer(0, "404 Not Found"))
        assert told(talk.served(tmp_path)) == [("GET /a", 200, 10, 20), ("GET /b", 404, 10, 10)], cut


def test_a_body_without_a_length_ends_with_the_connection(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, b"GET /a HTTP/1.0\r\n\r\n")
    talk.add(5, False, b"HTTP/1.0 200 OK\r\n\r\nabc")
    talk.add(25, False, b"def")
    talk.add(90, False, flags=cf.FIN | cf.ACK)
    assert told(talk.served(tmp_path)) == [("GET /a", 200, 4, 24)]


def test_what_was_sent_is_no_part_of_the_answer(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, b"POST /a HTTP/1.1\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n")
    talk.add(3, False, b"HTTP/1.1 100 Continue\r\n\r\n")
    talk.add(20, True, b"abc")
    talk.add(51, True, b"def")
    talk.add(58, False, answer(0, "201 Created"))
    served = talk.served(tmp_path)
    assert told(served) == [("POST /a", 201, 7, 7)]
    assert served.longest[0].sent_s == pytest.approx(0.050)


def test_a_change_to_another_protocol_is_the_answer(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, asked("/plain"))
    talk.add(3, False, answer(0))
    talk.add(10, True, b"GET /chat HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
    talk.add(32, False, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\5hello")
    talk.add(40, True, b"\x81\x85mask?????")
    talk.add(900, False, b"\x81\5again")
    talk.add(901, False, flags=cf.FIN | cf.ACK)
    served = talk.served(tmp_path)
    assert told(served) == [("GET /plain", 200, 2, 2), ("GET /chat", 101, 22, 22)]
    assert (served.unanswered, served.failed) == (0, 0)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack(">BHH", kind, 0x0303, len(body)) + body


def hello(kind: int, filled: bytes) -> bytes:
    return record(22, struct.pack(">BBHH", kind, 0, 60, 0x0303) + filled.ljust(58, b"\1"))


@pytest.mark.parametrize("compatible", [True, False], ids=["change of ciphers announced", "not announced"])
def test_a_handshake_that_begins_again_ends_with_the_second_round(compatible: bool, tmp_path: Path) -> None:
    """The server does not take the client's first key share (RFC 8446, 4.1.4)."""
    announced = record(20, b"\1") if compatible else b""
    talk = Talk()
    talk.add(1, True, hello(1, b""))
    talk.add(11, False, hello(2, bytes.fromhex("cf21ad74e59a6111")) + announced)
    talk.add(12, True, announced + hello(1, b""))
    talk.add(25, False, hello(2, b"") + record(23, bytes(500)))
    talk.add(30, True, record(23, bytes(60)))
    talk.add(500, True, record(23, bytes(60)))
    assert told(talk.served(tmp_path)) == [("", None, 10, 29)]


def test_what_the_capture_lost_shifts_no_answer_to_another_request(tmp_path: Path) -> None:
    """Whatever packet is missing, what is told of a request is true or absent."""
    talk = Talk()
    truth = {}
    for turn in range(6):
        start, wait = 100 * turn + 1, 3 * turn + 2
        talk.add(start, True, asked(f"/{turn}"))
        talk.add(start + wait, False, answer(2000) + b"a" * 1000)
        talk.add(start + wait + 10, False, b"a" * 1000)
        truth[f"GET /{turn}"] = (wait, wait + 10)
    whole = list(talk.packets)
    for missing in range(2, len(whole)):
        talk.packets = [packet for at, packet in enumerate(whole) if at != missing]
        found = told(talk.served(tmp_path))
        assert len(found) >= 5
        for name, _, first, last in found:
            assert first in {None, truth[name][0], truth[name][1]}, (missing, name)
            assert last in {None, truth[name][1]}, (missing, name)
        right = [name for name, _, first, last in found if (first, last) == truth[name]]
        assert len(right) >= 4, missing


def test_headers_alone_tell_first_bytes(tmp_path: Path) -> None:
    talk = Talk()
    for turn in range(3):
        talk.add(100 * turn + 1, True, asked("/" + "x" * 300))
        talk.add(100 * turn + 31, False, answer(2000) + b"a" * 1000)
        talk.add(100 * turn + 41, False, b"a" * 1000)
    found = told(talk.served(tmp_path, 80))
    assert [(status, first, last) for _, status, first, last in found] == [(200, 30, 40)] * 3


def test_what_only_looks_like_a_request_is_none(tmp_path: Path) -> None:
    talk = Talk()
    talk.add(1, True, b"GETTING on\r\n\r\n")
    talk.add(2, False, b"\x16\x03\x01\x00\x05\x02")
    talk.add(3, True, b"\x16\x03\x01\xff\xff\x01" + bytes(80))
    talk.add(4, False, b"HTTP/2 nothing")
    trace = requests_in(talk.written(tmp_path / "talk.pcap"))
    assert sum(served.unanswered for served in trace.requests) == sum(s.count for s in trace.requests)
    plain = Talk()
    plain.add(1, True, b"SSH-2.0-x\r\n")
    trace = requests_in(plain.written(tmp_path / "plain.pcap"))
    assert (trace.requests, list(describe_requests(trace))) == (
        [],
        ["No HTTP/1 request, TLS handshake or DNS query was found."],
    )


# ---- real ----------------------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers of every kind, some slowly."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        _, kind, count = self.path.split("/")
        time.sleep(0.02 if kind == "slow" else 0)
        self.send_response(204 if kind == "empty" else 200)
        parts = [os.urandom(int(count)) for _ in range(3)]
        if kind == "chunked":
            self.send_header("Transfer-Encoding", "chunked")
        elif kind != "empty":
            self.send_header("Content-Length", str(sum(map(len, parts))))
        self.end_headers()
        if kind == "empty" or self.command == "HEAD":
            return
        for part in parts:
            framed = b"%x\r\n%b\r\n" % (len(part), part) if kind == "chunked" else part
            self.wfile.write(framed)
            time.sleep(0.01 if kind in {"slow", "chunked"} else 0)
        if kind == "chunked":
            self.wfile.write(b"0\r\n\r\n")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()


@contextlib.contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def one_by_one(port: int) -> None:
    """Over one kept connection."""
    own = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for method, path, body in (
        ("GET", "/sized/10", None),
        ("GET", "/sized/90000", None),
        ("GET", "/slow/30000", None),
        ("GET", "/chunked/20000", None),
        ("HEAD", "/sized/500", None),
        ("GET", "/empty/0", None),
        ("POST", "/sized/700", b"x" * 200_000),
        ("GET", "/chunked/10", None),
    ):
        own.request(method, path, body)
        own.getresponse().read()
    own.close()


def ahead(port: int) -> None:
    """Four requests before the first answer is read."""
    with socket.create_connection(("127.0.0.1", port), 20) as own:
        paths = ("/slow/3000", "/sized/10", "/chunked/500", "/sized/70000")
        own.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode() for path in paths))
        own.shutdown(socket.SHUT_WR)
        while own.recv(65536):
            pass


def many(port: int) -> None:
    own = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for turn in range(150):
        own.request("GET", f"/sized/{turn * 37}")
        own.getresponse().read()
    own.close()


def fields(path: Path, shown: str, *names: str, options: tuple[str, ...] = ()) -> list[list[str]]:
    words = [word for name in names for word in ("-e", name)]
    text = ct.run("tshark", "-r", str(path), *options, "-Y", shown, "-T", "fields", *words)
    return [line.split("\t") for line in text.splitlines()]


def captured(talk: Callable[[int], None], path: Path) -> tuple[Served, tuple[str, ...]]:
    """What a real client's requests took, and how tshark is told their protocol."""
    ct.need("dumpcap", "tshark")
    with ct.own_network(), serving() as port, ct.dumping(path):
        talk(port)
    (served,) = requests_in(path).requests
    return served, ("-d", f"tcp.port=={port},http")


def test_answers_take_as_long_as_tshark_says(tmp_path: Path) -> None:
    path = tmp_path / "http.pcapng"
    served, decoded = captured(one_by_one, path)
    names = ("http.request_in", "frame.number", "http.time")
    theirs = {int(asked): (int(frame), float(took)) for asked, frame, took in
              fields(path, "http.response", *names, options=decoded)}  # fmt: skip
    assert len(theirs) == served.count == 8
    for request in served.longest:
        assert request.answer_frames is not None
        frame, took = theirs[request.frame]
        assert request.answer_frames[1] == frame
        assert request.last_byte_s == pytest.approx(took, abs=2e-9)
    # Where bodies are not put together, tshark shows an answer with its head, but not all of them.
    early = (*decoded, "-o", "http.desegment_body:FALSE")
    heads = {row[0]: row for row in fields(path, "http.response", *names, options=early) if row[2]}
    compared = [request for request in served.longest if str(request.frame) in heads]
    assert len(compared) >= 4
    for request in compared:
        assert request.first_byte_s == pytest.approx(float(heads[str(request.frame)][2]), abs=2e-9)


def test_many_answers_take_as_long_as_tshark_says(tmp_path: Path) -> None:
    path = tmp_path / "http.pcapng"
    served, decoded = captured(many, path)
    times = [float(row[0]) for row in fields(path, "http.response", "http.time", options=decoded)]
    assert (served.count, served.unanswered) == (len(times), 0) == (150, 0)
    assert served.last_byte.min_s == pytest.approx(min(times), abs=2e-9)
    assert served.last_byte.max_s == pytest.approx(max(times), abs=2e-9)
    assert served.last_byte.mean_s == pytest.approx(sum(times) / len(times), abs=2e-9)


def test_pipelined_answers_end_where_tshark_says(tmp_path: Path) -> None:
    """It gives only the first of them a time, which is why the frames' own times are compared."""
    path = tmp_path / "http.pcapng"
    served, decoded = captured(ahead, path)
    asked = fields(path, "http.request", "frame.number", "frame.time_epoch", options=decoded)
    whole = fields(path, "http.response", "frame.number", "frame.time_epoch", "http.time", options=decoded)
    ours = sorted((r.answer_frames[1], r.last_byte_s) for r in served.longest if r.answer_frames)
    assert len(asked) == 1
    assert [frame for frame, _ in ours] == [int(row[0]) for row in whole]
    begun = float(asked[0][1])
    assert [took for _, took in ours] == pytest.approx([float(row[1]) - begun for row in whole], abs=1e-6)
    assert ours[0][1] == pytest.approx(float(whole[0][2]), abs=2e-9)


@pytest.mark.parametrize("version", [long(ssl.TLSVersion.TLSv1_2), ssl.TLSVersion.TLSv1_3])
def test_handshakes_take_as_long_as_tshark_says(version: ssl.TLSVersion, tmp_path: Path) -> None:
    ct.need("dumpcap", "tshark", "openssl")
    key, certificate, path = tmp_path / "key", tmp_path / "certificate", tmp_path / "tls.pcapng"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    client.minimum_version = client.maximum_version = version
    with ct.own_network(), serving(server) as port, ct.dumping(path):
        for turn in range(5):
            with (
                socket.create_connection(("127.0.0.1", port), 20) as plain,
                client.wrap_socket(plain, server_hostname=f"name-{turn}.test") as own,
            ):
                time.sleep(0.4)
                own.sendall(b"GET /sized/900 HTTP/1.1\r\nConnection: close\r\n\r\n")
                while own.recv(65536):
                    pass
    (served,) = requests_in(path).requests
    assert (served.protocol, served.count, served.unanswered) == ("tls", 5, 0)
    names = ["tcp.stream", "tcp.dstport", "frame.time_epoch", "tls.handshake.type", "tls.record.content_type"]
    streams: dict[str, list[list[str]]] = {}
    for row in fields(path, "tls", *names, options=("-d", f"tcp.port=={port},tls")):
        streams.setdefault(row[0], []).append(row)
    expected = []
    for rows in streams.values():
        hello = next(float(row[2]) for row in rows if row[3].startswith("1"))
        answered = next(float(row[2]) for row in rows if row[3].startswith("2"))
        ciphers: dict[bool, float] = {}
        for row in rows:
            if "20" in row[4].split(","):
                ciphers.setdefault(row[1] == str(port), float(row[2]))
        expected.append((answered - hello, max(ciphers.values()) - hello))
    ours = sorted((r.first_byte_s, r.last_byte_s) for r in served.longest)
    for one, other in zip(ours, sorted(expected), strict=True):
        assert one == pytest.approx(other, abs=1e-6)
        assert one[1] is not None
        # The time until the first request is the client's, and no part of the handshake.
        assert one[1] < 0.4
    assert sorted(r.name for r in served.longest) == [f"name-{turn}.test" for turn in range(5)]


# ---- names ---------------------------------------------------------------------------------------------------


def question(number: int, name: str, *, answered: int | None = None) -> bytes:
    """A question for an address; with `answered`, its answer with that response code and no record."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    flags = 0x0100 if answered is None else 0x8180 | answered
    return struct.pack(">HHHHHH", number, flags, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"


def names_in(folder: Path, *said: tuple[float, bool, bytes], port: int = 53) -> list[Served]:
    """What is found where these messages pass, at times in milliseconds, from the client or to it."""
    ends = ("10.0.6.2", 4000), ("10.0.6.1", port)
    packets = [
        cf.Packet(
            10**18 + round(ms * 1e6), cf.link(cf.ETHERNET, cf.udp(*(ends if asks else ends[::-1]), data))
        )
        for ms, asks, data in said
    ]
    path = folder / "names.pcap"
    path.write_bytes(cf.pcap(packets, nanos=True))
    return requests_in(path).requests


def test_each_question_has_its_time_its_repeats_and_its_code(tmp_path: Path) -> None:
    (served,) = names_in(
        tmp_path,
        (0, True, question(1, "a.test")),
        (1, True, question(2, "b.test")),
        (3, False, question(2, "b.test", answered=3)),
        (20, True, question(1, "a.test")),
        (25, False, question(1, "a.test", answered=0)),
        (26, False, question(1, "a.test", answered=0)),  # to the second asking
        (30, True, question(3, "lost.test")),
        (40, True, question(3, "lost.test")),
    )
    assert (served.protocol, served.server) == ("dns", "10.0.6.1:53")
    assert (served.count, served.unanswered, served.failed, served.repeated) == (3, 1, 1, 2)
    assert told(served) == [("A a.test", 0, 25, 25), ("A b.test", 3, 2, 2), ("A lost.test", None, None, None)]
    # Whoever waits in vain waits longest.
    assert [(r.name, r.repeated, r.frame, r.answer_frames) for r in served.longest] == [
        ("A lost.test", 1, 7, None),
        ("A a.test", 1, 1, (5, 5)),
        ("A b.test", 0, 2, (3, 3)),
    ]


def test_a_number_that_comes_again_is_another_question(tmp_path: Path) -> None:
    (served,) = names_in(
        tmp_path,
        (0, True, question(7, "a.test")),
        (500, True, question(7, "b.test")),
        (501, False, question(7, "a.test", answered=0)),  # too late: nobody waits for it any more
        (510, False, question(7, "b.test", answered=0)),
    )
    assert told(served) == [("A a.test", None, None, None), ("A b.test", 0, 10, 10)]
    assert (served.count, served.unanswered, served.repeated) == (2, 1, 0)


def test_servers_may_ask_each_other_from_the_port_where_they_answer(tmp_path: Path) -> None:
    ends = ("10.0.6.2", 53), ("10.0.6.1", 53)
    steps = [(0, ends, question(1, "a.test")), (7, ends[::-1], question(1, "a.test", answered=0))]
    path = tmp_path / "servers.pcap"
    frames = [
        cf.Packet(10**18 + ms * 10**6, cf.link(cf.ETHERNET, cf.udp(*way, data))) for ms, way, data in steps
    ]
    path.write_bytes(cf.pcap(frames, nanos=True))
    trace = requests_in(path)
    (served,) = trace.requests
    assert (served.server, told(served)) == ("10.0.6.1:53", [("A a.test", 0, 7, 7)])
    assert [(names.server, names.count, names.unanswered) for names in trace.exchanges] == [
        ("10.0.6.1", 1, 0)
    ]


def test_what_is_no_question_is_not_timed(tmp_path: Path) -> None:
    assert names_in(tmp_path, (0, True, b"\0" * 11), (1, False, b"\0\1\x81\x80"), (2, False, b"")) == []
    assert (
        names_in(tmp_path, (0, True, question(1, "a")), (2, False, question(1, "a", answered=0)), port=54)
        == []
    )
    update = question(1, "a")[:2] + b"\x28" + question(1, "a")[3:]
    assert names_in(tmp_path, (0, True, update)) == []
    assert told(*names_in(tmp_path, (0, True, question(1, "a")[:14]))) == [("", None, None, None)]


def test_names_take_as_long_as_tshark_says(tmp_path: Path) -> None:
    ct.need("dumpcap", "tshark")
    relay(tmp_path, [scenario for scenario in SCENARIOS if scenario.udp == "dns"])
    for point in ("client", "server"):
        path = tmp_path / f"{point}.pcapng"
        (served,) = requests_in(path).requests
        names = ("dns.response_to", "frame.number", "dns.time", "dns.flags.rcode", "dns.qry.name")
        theirs = {int(row[0]): row for row in fields(path, "dns.flags.response==1 && dns.time", *names)}
        answered = [request for request in served.longest if request.answer_frames]
        assert len(answered) == len(theirs) == served.count - served.unanswered == 13
        for request in answered:
            assert request.answer_frames is not None
            _, frame, took, code, name = theirs[request.frame]
            assert request.last_byte_s == pytest.approx(float(took), abs=2e-9)
            assert (request.answer_frames[1], request.status) == (int(frame), int(code))
            assert request.name == f"A {name}"

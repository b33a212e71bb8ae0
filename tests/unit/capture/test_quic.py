"""QUIC's handshake, told by what its packets do not encrypt: the headers are those of RFC 9001, appendix A."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Exchange
from tests.framework import captures as cf
from tests.framework import traffic as ct

CLIENT, SERVER = ("2001:db8::2", 50_443), ("2001:db8::1", 443)
CLIENT_INITIAL = bytes.fromhex("c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11")
SERVER_INITIAL = bytes.fromhex("cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a")
RETRY = bytes.fromhex("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba")
SHORT = bytes.fromhex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb")
# The example has no packet of this kind; its first byte and version are what section 17.2.4 of RFC 9000 says.
HANDSHAKE = bytes.fromhex("e000000001088394c8f03e51570808f067a5502a4262b5")
# RFC 9369: version 2 names its kinds by other numbers, and this is the first byte of its client's Initial.
INITIAL_2 = bytes.fromhex("d76b3343cf088394c8f03e5157080000449ea0c95e82ffe67b6abcdb4298b485")


def handshake(tmp_path: Path, *steps: tuple[int, bool, bytes, int]) -> list[Exchange]:
    """What is made of datagrams: (milliseconds since the last, sent by the client, header, size)."""
    packets: list[tuple[int, bytes]] = []
    now = 1_272_975_194_000_000_000
    for milliseconds, is_client, header, size in steps:
        now += milliseconds * 1_000_000
        source, target = (CLIENT, SERVER) if is_client else (SERVER, CLIENT)
        packets.append((now, cf.udp(source, target, header + bytes([len(packets)]) * (size - len(header)))))
    path = tmp_path / "quic.pcap"
    path.write_bytes(cf.pcap(cf.frames(packets), nanos=True))
    return analyse_file(path).exchanges


def test_a_handshake_tells_who_took_how_long(tmp_path: Path) -> None:
    (found,) = handshake(
        tmp_path,
        (0, True, CLIENT_INITIAL, 1200),
        (30, False, SERVER_INITIAL, 1200),
        (1, False, HANDSHAKE, 900),
        (5, True, HANDSHAKE, 1200),
        (2, True, SHORT, 100),
        (40, False, SHORT, 1000),
    )
    assert (found.protocol, found.client, found.server) == ("quic", CLIENT[0], f"{SERVER[0]}:443")
    kinds = [(message.kind, message.client) for message in found.messages]
    assert kinds == [
        ("initial", True),
        ("initial", False),
        ("handshake", False),
        ("handshake", True),
        ("1-rtt", True),
    ]
    assert found.duration_s == pytest.approx(0.038)
    assert found.server_s == pytest.approx(0.031)
    assert found.client_s == pytest.approx(0.007)


def test_a_server_that_asks_for_a_token_is_seen(tmp_path: Path) -> None:
    (found,) = handshake(
        tmp_path,
        (0, True, CLIENT_INITIAL, 1200),
        (10, False, RETRY, len(RETRY)),
        (1, True, CLIENT_INITIAL, 1200),
        (10, False, SERVER_INITIAL, 1200),
    )
    assert [message.kind for message in found.messages] == ["initial", "retry", "initial", "initial"]


def test_version_2_is_known(tmp_path: Path) -> None:
    (found,) = handshake(tmp_path, (0, True, INITIAL_2, 1200))
    assert [message.kind for message in found.messages] == ["initial"]


def test_what_only_looks_like_it_is_none(tmp_path: Path) -> None:
    greased = bytes.fromhex("c01a2a3a4a") + CLIENT_INITIAL[5:]
    assert handshake(tmp_path, (0, True, CLIENT_INITIAL, 1199), (1, True, greased, 1200)) == []


LONG_KINDS = {"0": "initial", "1": "0-rtt", "2": "handshake", "3": "retry"}


def by_tshark(path: Path, port: int) -> list[tuple[str, bool]]:
    """What the first packet of each datagram is, and whether the client sent it, up to its first short header."""
    names = ["udp.dstport", "quic.header_form", "quic.long.packet_type"]
    options = [word for name in names for word in ("-e", name)]
    decode = ("-d", f"udp.port=={port},quic")
    text = ct.run(
        "tshark", "-r", str(path), *decode, "-Y", "quic", "-T", "fields", "-E", "separator=;", *options
    )
    kinds = []
    for line in text.splitlines():
        target, forms, types = line.split(";")
        by_client = target == str(port)
        kinds.append(("1-rtt" if forms[0] in "0F" else LONG_KINDS[types[0]], by_client))
        if kinds[-1] == ("1-rtt", True):
            break
    return kinds


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--validate-addr",)], ids=["at once", "with a token"])
def test_a_real_client_and_server_are_seen_as_tshark_sees_them(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    ct.need("dumpcap", "tshark", "gtlsclient", "gtlsserver", "openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    ct.run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
           "-keyout", str(key), "-out", str(certificate))  # fmt: skip
    (tmp_path / "page.bin").write_bytes(bytes(200_000))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = tmp_path / "quic.pcapng"
    program = shutil.which("gtlsserver")
    assert program
    with ct.dumping(path):
        server = subprocess.Popen(
            [program, "--quiet", *options, f"--htdocs={tmp_path}", "127.0.0.1", str(port), key, certificate],
            stdout=subprocess.DEVNULL,
        )
        try:
            time.sleep(0.5)  # it says nothing when it listens
            assert server.poll() is None
            url = f"https://127.0.0.1:{port}/page.bin"
            ct.run("gtlsclient", "--quiet", "--exit-on-all-streams-close", "127.0.0.1", str(port), url)
        finally:
            server.terminate()
            server.wait(10)
    trace = analyse_file(path)
    (found,) = [exchange for exchange in trace.exchanges if exchange.protocol == "quic"]
    assert (found.client, found.server) == ("127.0.0.1", f"127.0.0.1:{port}")
    kinds = [(message.kind, message.client) for message in found.messages]
    assert kinds == by_tshark(path, port)
    assert kinds[0] == ("initial", True)
    assert (("retry", False) in kinds) is bool(options)
    assert kinds[-1] == ("1-rtt", True)
    assert 0 < found.client_s + found.server_s <= found.duration_s + 1e-9
    (flow,) = [known for known in trace.connections if known.server.port == port]
    assert flow.protocol == "udp"
    assert flow.server.payload_bytes > 200_000

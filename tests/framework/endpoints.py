"""The programs at the relay's ends: over real sockets they ask, answer, wait, and stop reading."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from tests.framework.scenarios import End, Scenario

CLIENT, SERVER = "10.9.1.1", "10.9.1.2"
_CERTIFICATE = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=bench")
_BLOCK = 512
_ACCEPT_S = 0.5
_COOKIE = b"\x63\x82\x53\x63"


def run_server(scenarios: Sequence[Scenario]) -> None:
    """Start a server for every scenario, and return; the servers end with the process."""
    for scenario in scenarios:
        serve = {"": _tcp_server, "tftp": _tftp_server, "dns": _dns_server, "dhcp": _dhcp_server}[
            scenario.udp
        ]
        serve(scenario)


def run_client(scenarios: Sequence[Scenario]) -> None:
    """Run the clients of all scenarios at the same time, and wait until they end."""
    talk = {"": _tcp_client, "tftp": _tftp_client, "dns": _dns_client, "dhcp": _dhcp_client}
    threads = [threading.Thread(target=talk[scenario.udp], args=(scenario,)) for scenario in scenarios]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def _prepare(peer: socket.socket, end: End) -> None:
    if end.nodelay:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if end.send:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, end.send)
    if end.receive:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, end.receive)
    if end.control:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, end.control.encode())


def _tcp_server(scenario: Scenario) -> None:
    context = server_context() if scenario.tls else None
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _prepare(listener, scenario.server)  # before the handshake, which announces the window
    listener.bind((SERVER, scenario.port))
    if scenario.crowd:
        listener.listen(0)
    else:
        listener.listen()

    def serve(plain: socket.socket) -> None:
        _prepare(plain, scenario.server)
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(plain, server_side=True) if context else plain as peer,
        ):
            while _read(peer, len(_request(scenario)), scenario.server):
                time.sleep(scenario.server_s)
                _write(peer, _answer(scenario), scenario.server)
            if scenario.half_close:
                _write(peer, b"a" * scenario.reply, scenario.server)

    def accept() -> None:
        for _ in range(scenario.crowd):
            time.sleep(_ACCEPT_S)
            threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
        serve(listener.accept()[0])

    threading.Thread(target=accept, daemon=True).start()


def _request(scenario: Scenario) -> bytes:
    head = f"POST / HTTP/1.1\r\nContent-Length: {scenario.upload}\r\n\r\n" if scenario.http else ""
    return head.encode() + b"q" * scenario.upload


def _answer(scenario: Scenario) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {scenario.reply}\r\n\r\n" if scenario.http else ""
    return head.encode() + b"a" * scenario.reply


def _tcp_client(scenario: Scenario) -> None:
    with contextlib.ExitStack() as crowd, contextlib.suppress(TimeoutError):
        for _ in range(scenario.crowd):
            other = crowd.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex((SERVER, scenario.port))
        _speak(scenario)


def _speak(scenario: Scenario) -> None:
    plain = socket.socket()
    plain.settimeout(scenario.patience_s)
    _prepare(plain, scenario.client)
    plain.connect((SERVER, scenario.port))
    time.sleep(scenario.client.shy_s)
    with client_context().wrap_socket(plain) if scenario.tls else plain as own:
        waiting = 0
        for turn in range(scenario.turns):
            if turn:
                time.sleep(scenario.client_s)
            _write(own, _request(scenario), scenario.client)
            if not turn:
                time.sleep(scenario.client.deaf_s)
            if waiting < scenario.ahead:
                waiting += 1
            else:
                _read(own, len(_answer(scenario)), scenario.client)
        if scenario.half_close:
            plain.shutdown(socket.SHUT_WR)
            waiting += 1
        _read(own, scenario.reply * waiting, scenario.client)


def server_context() -> ssl.SSLContext:
    """Return a TLS context with a new certificate.

    It is created before any connection, as this takes a moment that would count as the server's time.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [*_CERTIFICATE, "-keyout", f"{folder}/key", "-out", f"{folder}/certificate"],
            check=True,
            capture_output=True,
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/certificate", f"{folder}/key")
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _write(peer: socket.socket, data: bytes, end: End) -> None:
    size = len(data) // end.parts
    for part in range(end.parts):
        if part:
            time.sleep(end.part_s)
        peer.sendall(data[part * size :] if part == end.parts - 1 else data[part * size : (part + 1) * size])


def _read(peer: socket.socket, count: int, end: End) -> bool:
    left, chance = count, random.Random(count)
    while left:
        got = len(peer.recv(min(left, end.read)))
        if not got:
            return False
        left -= got
        if left:
            time.sleep(end.read_s * (chance.uniform(0, 2) if end.uneven else 1))
    return True


def _tftp_server(scenario: Scenario) -> None:
    well_known = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    well_known.bind((SERVER, scenario.port))

    def serve() -> None:
        _, client = well_known.recvfrom(2048)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.bind((SERVER, 0))
            for block in range(scenario.reply // _BLOCK + 1):
                time.sleep(scenario.server_s)
                size = min(_BLOCK, scenario.reply - block * _BLOCK)
                own.sendto(struct.pack(">HH", 3, block + 1) + b"a" * size, client)
                own.recvfrom(2048)

    threading.Thread(target=serve, daemon=True).start()


def _tftp_client(scenario: Scenario) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((CLIENT, 0))
        own.sendto(struct.pack(">H", 1) + b"pxelinux.0\0octet\0", (SERVER, scenario.port))
        while True:
            packet, server = own.recvfrom(2048)
            own.sendto(b"\0\4" + packet[2:4], server)
            if len(packet) < _BLOCK + 4:
                return


def _dns_server(scenario: Scenario) -> None:
    """Answer queries with one address; `.lost` names are never answered, `.late` names only when asked again."""
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.bind((SERVER, scenario.port))

    def serve() -> None:
        heard: set[bytes] = set()
        while True:
            question, client = own.recvfrom(2048)
            if b"\x04lost" in question or (b"\x04late" in question and question not in heard):
                heard.add(question)
                continue
            time.sleep(scenario.server_s)
            answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x0a\x09\1\2"
            own.sendto(question[:2] + b"\x81\x80\0\1\0\1\0\0\0\0" + question[12:] + answer, client)

    threading.Thread(target=serve, daemon=True).start()


def _dns_client(scenario: Scenario) -> None:
    """Ask for as many names as there are turns, then for one that must be asked twice and one without an answer."""
    names = [f"host-{turn}.test" for turn in range(scenario.turns)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.bind((CLIENT, 0))
        own.settimeout(0.2)
        for number, name in enumerate([*names, "some.late", "some.lost"]):
            labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
            question = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"
            for _ in range(2):
                own.sendto(question, (SERVER, scenario.port))
                with contextlib.suppress(TimeoutError):
                    own.recvfrom(2048)
                    break


def _dhcp_packet(operation: int, kind: int) -> bytes:
    fixed = struct.pack(">BBBBIHH", operation, 1, 6, 0, 0x1234ABCD, 0, 0x8000) + bytes(16)
    return fixed + bytes.fromhex("525400123456") + bytes(10 + 64 + 128) + _COOKIE + bytes([53, 1, kind, 255])


def _dhcp_socket(address: str, port: int) -> socket.socket:
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.bind((address, port))
    return own


def _dhcp_server(scenario: Scenario) -> None:
    own = _dhcp_socket(SERVER, 67)

    def serve() -> None:
        for kind in (2, 5):
            own.recvfrom(2048)
            time.sleep(scenario.server_s)
            own.sendto(_dhcp_packet(2, kind), (CLIENT, 68))

    threading.Thread(target=serve, daemon=True).start()


def _dhcp_client(scenario: Scenario) -> None:
    with _dhcp_socket(CLIENT, 68) as own:
        for turn, kind in enumerate((1, 3)):
            if turn:
                time.sleep(scenario.client_s)
            own.sendto(_dhcp_packet(1, kind), (SERVER, 67))
            own.recvfrom(2048)

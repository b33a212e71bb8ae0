"""The TFTP server of network boots, asked by a client over a real socket."""

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from guestmark.workloads.netboot.serve_tftp import STEP, Server

READ, DATA, ACK, ERROR, OPTIONS = 1, 3, 4, 5, 6


@contextmanager
def client_of(content: bytes, **others: bytes) -> Iterator[socket.socket]:
    """A socket that is connected to a server of this content."""
    until, end = os.pipe()
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        listening.bind(("127.0.0.1", 0))
        client.connect(listening.getsockname())
        client.settimeout(5.0)
        server = Server(listening, memoryview(content), 0.0, others)
        thread = threading.Thread(target=server.serve, args=(until,))
        thread.start()
        try:
            yield client
        finally:
            os.close(end)
            thread.join(5.0)
            os.close(until)
    assert not thread.is_alive()


def fetched(client: socket.socket, name: str, **options: str) -> tuple[bytes, int]:
    """A file's bytes and the number of its blocks."""
    asked = "".join(f"{key}\0{value}\0" for key, value in options.items())
    client.send(struct.pack(">H", READ) + f"{name}\0octet\0{asked}".encode())
    size = int(options.get("blksize", "512"))
    data, blocks = b"", 0
    if options:
        answer = client.recv(2048)
        assert answer[:2] == struct.pack(">H", OPTIONS)
        client.send(struct.pack(">HH", ACK, 0))
    while True:
        block = client.recv(2048)
        kind, number = struct.unpack_from(">HH", block)
        assert kind == DATA
        assert number == (blocks + 1) & 0xFFFF
        blocks += 1
        data += block[4:]
        client.send(struct.pack(">HH", ACK, number))
        if len(block) < 4 + size:
            return data, blocks


@pytest.mark.parametrize("size", [1, 511, 512, 1024, 100_000])
def test_a_file_is_the_content_turned(size: int) -> None:
    content = bytes(index * 7 % 251 for index in range(size))
    with client_of(content, kernel=b"a kernel") as client:
        begin = 3 * STEP % size
        assert fetched(client, "3") == (content[begin:] + content[:begin], size // 512 + 1)
        assert fetched(client, "/0", blksize="1000", tsize="0")[0] == content
        assert fetched(client, "kernel")[0] == b"a kernel"


@pytest.mark.long
def test_blocks_are_counted_on_beyond_sixteen_bits() -> None:
    content = os.urandom(8 * 65_600)
    with client_of(content) as client:
        data, blocks = fetched(client, "0", blksize="8")
    assert data == content
    assert blocks == 65_601


def test_a_lost_block_is_sent_again() -> None:
    with client_of(b"x" * 600) as client:
        client.send(struct.pack(">H", READ) + b"0\0octet\0")
        first = client.recv(2048)
        assert client.recv(2048) == first  # after a second without an answer


def test_what_is_not_there() -> None:
    with client_of(b"x") as client:
        client.send(struct.pack(">H", READ) + b"etc/passwd\0octet\0")
        assert client.recv(2048)[:4] == struct.pack(">HH", ERROR, 1)
        client.send(b"\0")  # and what is no message at all
        assert fetched(client, "0")[0] == b"x"

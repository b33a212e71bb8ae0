"""The TFTP server from which guests fetch files: one process, one port, everything from memory.

Run as a program: `serve_tftp.py SOCKET_FD CONTENT_FD DELAY_S NAME=PATH...`, like `serve.py`. It implements RFC 1350
with the options of RFC 2347 to 2349 (block size, size, timeout). It answers from the port that received the request,
which clients have to accept, because it cannot open another one in the guest's network namespace. It waits DELAY_S
before every block. Only the standard library is imported, as it has to start quickly.
"""

import mmap
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

STEP = 65_537  # as in serve.py
_READ, _DATA, _ACK, _ERROR, _OPTIONS = 1, 3, 4, 5, 6
_NOT_FOUND = 1
# Block sizes in bytes; the larger one fits an Ethernet frame.
_BLOCK, _LARGEST = 512, 1468
_REPEAT_S = 1.0
_GIVE_UP = 10  # repetitions

Address = tuple[object, ...]  # of IPv4 or IPv6


@dataclass(slots=True)
class _Transfer:
    content: memoryview
    begin: int
    block_size: int
    size: int
    # Number of the block sent last, continued beyond 65,535; 0 acknowledges the options.
    number: int = 0
    last: bytes = b""
    repeat_at: float = 0.0
    repeated: int = 0


class Server:
    """Serves files on one socket; `content` holds the bytes of file 0."""

    def __init__(
        self, sock: socket.socket, content: memoryview, delay_s: float, others: Mapping[str, bytes]
    ) -> None:
        self._socket = sock
        self._content = content
        self._delay_s = delay_s
        self._others = others
        self._transfers: dict[Address, _Transfer] = {}

    def serve(self, until_fd: int) -> None:
        """Serves until `until_fd` ends."""
        while True:
            ready, _, _ = select.select([self._socket.fileno(), until_fd], [], [], _REPEAT_S / 4)
            if until_fd in ready and not os.read(until_fd, 64):
                return
            if self._socket.fileno() in ready:
                try:
                    packet, client = self._socket.recvfrom(2048)
                except OSError:  # an ICMP error of an earlier answer
                    continue
                self._handle_packet(packet, client)
            self._repeat_unanswered()

    def _handle_packet(self, packet: bytes, client: Address) -> None:
        if len(packet) < 4:
            return
        kind, number = struct.unpack_from(">HH", packet)
        if kind == _READ:
            self._begin_transfer(packet, client)
        elif kind == _ACK and (transfer := self._transfers.get(client)):
            if number == transfer.number & 0xFFFF:
                self._send_next_block(transfer, client)
        elif kind == _ERROR:
            self._transfers.pop(client, None)

    def _begin_transfer(self, packet: bytes, client: Address) -> None:
        words = [word.decode("ascii", "replace") for word in packet[2:].split(b"\0")]
        name = words[0].strip("/")
        numbered = name.isdigit() and len(name) <= 9
        if not numbered and name not in self._others:
            self._socket.sendto(struct.pack(">HH", _ERROR, _NOT_FOUND) + b"no such file\0", client)
            return
        asked = dict(zip((word.lower() for word in words[2::2]), words[3::2], strict=False))
        if numbered:
            content = self._content
            begin = int(name) * STEP % len(content)
        else:
            content, begin = memoryview(self._others[name]), 0
        size = len(content)
        transfer = _Transfer(content, begin, _BLOCK, size)
        granted = {}
        if (wanted := asked.get("blksize", "")).isdigit() and int(wanted) >= 8:
            transfer.block_size = min(int(wanted), _LARGEST)
            granted["blksize"] = str(transfer.block_size)
        if "tsize" in asked:
            granted["tsize"] = str(size)
        self._transfers[client] = transfer
        if granted:
            told = b"".join(f"{key}\0{value}\0".encode() for key, value in granted.items())
            self._send_packet(transfer, struct.pack(">H", _OPTIONS) + told, client)
        else:
            self._send_next_block(transfer, client)

    def _send_next_block(self, transfer: _Transfer, client: Address) -> None:
        at = transfer.number * transfer.block_size
        if at > transfer.size:  # a block that is not full, possibly empty, was the last one
            del self._transfers[client]
            return
        transfer.number += 1
        header = struct.pack(">HH", _DATA, transfer.number & 0xFFFF)
        if self._delay_s:
            time.sleep(self._delay_s)
        self._send_packet(transfer, header + self._read_block(transfer, at), client)

    def _read_block(self, transfer: _Transfer, at: int) -> bytes:
        """Returns a block of the file, which is the content rotated to the file's start."""
        end = min(at + transfer.block_size, transfer.size)
        begin = transfer.begin + at
        first = bytes(transfer.content[begin : min(transfer.begin + end, transfer.size)])
        turned = max(begin - transfer.size, 0), max(transfer.begin + end - transfer.size, 0)
        return first + bytes(transfer.content[turned[0] : turned[1]])

    def _send_packet(self, transfer: _Transfer, packet: bytes, client: Address) -> None:
        transfer.last, transfer.repeated = packet, 0
        transfer.repeat_at = time.monotonic() + _REPEAT_S
        self._socket.sendto(packet, client)

    def _repeat_unanswered(self) -> None:
        now = time.monotonic()
        for client, transfer in list(self._transfers.items()):
            if now < transfer.repeat_at:
                continue
            if transfer.repeated == _GIVE_UP:
                del self._transfers[client]
                continue
            transfer.repeated += 1
            transfer.repeat_at = now + _REPEAT_S
            self._socket.sendto(transfer.last, client)


def main(socket_fd: int, content_fd: int, delay_s: float, named: Mapping[str, str]) -> None:
    """Serves until standard input ends."""
    content = memoryview(mmap.mmap(content_fd, 0, prot=mmap.PROT_READ))
    others = {name: Path(path).read_bytes() for name, path in named.items()}
    server = Server(socket.socket(fileno=socket_fd), content, delay_s, others)
    os.write(1, b"ready\n")
    server.serve(0)
    os._exit(0)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        dict(word.split("=", 1) for word in sys.argv[4:]),
    )

"""Write synthetic captures for the bench: Ethernet, IPv4, TCP, in the order a busy server would see them."""

import argparse
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

SERVER = 0x0A000601  # 10.0.6.1


@dataclass(frozen=True)
class Shape:
    """What packets look like: `size` bytes on the wire, over IPv4 or IPv6, with or without time stamps."""

    size: int
    v6: bool = False
    stamps: bool = False

    @property
    def tcp(self) -> int:
        """The offset of TCP's header in a record."""
        return 16 + 14 + (40 if self.v6 else 20)

    @property
    def headers(self) -> int:
        """Bytes of a frame before its payload."""
        return self.tcp - 16 + (32 if self.stamps else 20)


def make_packets(count: int, connections: int, shape: Shape) -> np.ndarray:
    """Return `count` data packets, spread over `connections`, each opened by a handshake.

    They are records as bytes, shape (count + 3 * connections, 16 + size). No connection is closed: the last packets
    are plain data.
    """
    total = count + 3 * connections
    rows = np.zeros((total, 16 + shape.size), np.uint8)
    shake = np.arange(3 * connections)
    conn = np.concatenate([shake // 3, np.arange(count) % connections]).astype(np.uint32)
    turn = np.concatenate([np.full(3 * connections, -1), np.arange(count) // connections])
    step = np.concatenate([shake % 3, np.full(count, 3)])
    micros = np.arange(total, dtype=np.uint64) * 7
    return fill_packets(rows, conn, step, turn, micros, shape)


def fill_packets(  # noqa: PLR0917 - one array per column
    rows: np.ndarray, conn: np.ndarray, step: np.ndarray, turn: np.ndarray, micros: np.ndarray, shape: Shape
) -> np.ndarray:
    """Write the headers of every record; the columns are arrays over the records."""
    from_client = np.where(step == 3, turn % 2 == 0, step != 1)
    payload = np.where(step == 3, shape.size - shape.headers, 0).astype(np.uint32)
    ends = ((0x0A010000 + conn // 60_000).astype(">u4"), np.full(len(conn), SERVER, ">u4"))
    ports = ((1024 + conn % 60_000).astype(">u2"), np.full(len(conn), 8000, ">u2"))

    def put(at: int, values: np.ndarray) -> None:
        width = values.dtype.itemsize
        rows[:, at : at + width] = values.view(np.uint8).reshape(-1, width)

    put(0, (micros // 1_000_000 + 1_272_975_194).astype("<u4"))
    put(4, (micros % 1_000_000).astype("<u4"))
    put(8, np.full(len(conn), shape.size, "<u4"))
    put(12, np.full(len(conn), shape.size, "<u4"))
    source = np.where(from_client, ends[0], ends[1]).astype(">u4")
    target = np.where(from_client, ends[1], ends[0]).astype(">u4")
    if shape.v6:
        put(16 + 12, np.full(len(conn), 0x86DD, ">u2"))
        put(16 + 14, np.full(len(conn), 0x60000000, ">u4"))
        put(16 + 18, (shape.headers - 54 + payload).astype(">u2"))
        put(16 + 20, np.full(len(conn), (6 << 8) | 64, ">u2"))
        for at, end in ((22, source), (38, target)):
            put(16 + at, np.full(len(conn), 0x20010DB8_00000001, ">u8"))
            put(16 + at + 12, end)
    else:
        put(16 + 12, np.full(len(conn), 0x0800, ">u2"))
        put(16 + 14, np.full(len(conn), 0x4500, ">u2"))
        put(16 + 16, (shape.headers - 14 + payload).astype(">u2"))
        put(16 + 22, np.full(len(conn), (64 << 8) | 6, ">u2"))
        put(16 + 26, source)
        put(16 + 30, target)
    tcp = shape.tcp
    put(tcp, np.where(from_client, ports[0], ports[1]).astype(">u2"))
    put(tcp + 2, np.where(from_client, ports[1], ports[0]).astype(">u2"))
    own = np.where(step == 3, np.where(from_client, (turn + 1) // 2, turn // 2), 0).astype(np.uint64)
    peer = np.where(step == 3, np.where(from_client, turn // 2, (turn + 1) // 2), 0).astype(np.uint64)
    opened = (step >= 2) | ~from_client.astype(bool)
    each = shape.size - shape.headers
    put(tcp + 4, (conn + own * each + np.where(step >= 2, 1, 0)).astype(np.uint32).astype(">u4"))
    put(tcp + 8, np.where(opened, conn + peer * each + 1, 0).astype(np.uint32).astype(">u4"))
    flags = np.select([step == 0, step == 1], [0x02, 0x12], 0x10)
    put(tcp + 12, ((0x8000 if shape.stamps else 0x5000) | flags).astype(">u2"))
    put(tcp + 14, np.full(len(conn), 65535, ">u2"))
    if shape.stamps:
        put(tcp + 20, np.full(len(conn), 0x0101080A, ">u4"))
        # Each end counts milliseconds from a value of its own.
        firsts = (conn * np.uint32(2_654_435_761), conn * np.uint32(40_503) + np.uint32(977))
        now = (micros // 1000).astype(np.uint32)
        put(tcp + 24, (np.where(from_client, firsts[0], firsts[1]) + now).astype(">u4"))
        put(tcp + 28, np.where(opened, np.where(from_client, firsts[1], firsts[0]) + now, 0).astype(">u4"))
    return rows


def header(out: BinaryIO) -> None:
    out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))


def write(path: Path, count: int, connections: int, shape: Shape) -> None:
    """Write a capture of about `count` packets."""
    with path.open("wb") as out:
        header(out)
        make_packets(count, connections, shape).tofile(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--size", type=int, default=1414)
    parser.add_argument("--v6", action="store_true", help="over IPv6")
    parser.add_argument("--stamps", action="store_true", help="with TCP's time stamps")
    given = parser.parse_args()
    write(given.path, given.packets, given.connections, Shape(given.size, given.v6, given.stamps))

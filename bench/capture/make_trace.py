"""Write synthetic captures for the bench: Ethernet, IPv4, TCP, in the order a busy server would see them."""

import argparse
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

SERVER = 0x0A000601  # 10.0.6.1
CHUNK = 100_000


def packets(count: int, connections: int, size: int) -> np.ndarray:
    """`count` data packets of `size` bytes on the wire, spread over `connections`, each opened by a handshake.

    Returns records as bytes, shape (count + 3 * connections, 16 + size); the last packets are plain data, nothing ends.
    """
    total = count + 3 * connections
    rows = np.zeros((total, 16 + size), np.uint8)
    shake = np.arange(3 * connections)
    conn = np.concatenate([shake // 3, np.arange(count) % connections]).astype(np.uint32)
    turn = np.concatenate([np.full(3 * connections, -1), np.arange(count) // connections])
    step = np.concatenate([shake % 3, np.full(count, 3)])
    from_client = np.where(step == 3, turn % 2 == 0, step != 1)
    payload = np.where(step == 3, size - 54, 0).astype(np.uint32)
    micros = np.arange(total, dtype=np.uint64) * 7
    return fill(rows, conn, from_client, step, turn, payload, micros, size)


def fill(  # noqa: PLR0917 - one array per column
    rows: np.ndarray,
    conn: np.ndarray,
    from_client: np.ndarray,
    step: np.ndarray,
    turn: np.ndarray,
    payload: np.ndarray,
    micros: np.ndarray,
    size: int,
) -> np.ndarray:
    """Headers of every record; the columns are arrays over the records."""
    client_ip = (0x0A010000 + conn // 60_000).astype(">u4")
    client_port = (1024 + conn % 60_000).astype(">u2")
    server_ip = np.full(len(conn), SERVER, ">u4")
    server_port = np.full(len(conn), 8000, ">u2")

    def put(at: int, values: np.ndarray) -> None:
        width = values.dtype.itemsize
        rows[:, at : at + width] = values.view(np.uint8).reshape(-1, width)

    put(0, (micros // 1_000_000 + 1_272_975_194).astype("<u4"))
    put(4, (micros % 1_000_000).astype("<u4"))
    put(8, np.full(len(conn), size, "<u4"))
    put(12, np.full(len(conn), size, "<u4"))
    put(16 + 12, np.full(len(conn), 0x0800, ">u2"))
    put(16 + 14, np.full(len(conn), 0x4500, ">u2"))
    put(16 + 16, (40 + payload).astype(">u2"))
    put(16 + 22, np.full(len(conn), (64 << 8) | 6, ">u2"))
    put(16 + 26, np.where(from_client, client_ip, server_ip).astype(">u4"))
    put(16 + 30, np.where(from_client, server_ip, client_ip).astype(">u4"))
    put(16 + 34, np.where(from_client, client_port, server_port).astype(">u2"))
    put(16 + 36, np.where(from_client, server_port, client_port).astype(">u2"))
    own = np.where(step == 3, np.where(from_client, (turn + 1) // 2, turn // 2), 0).astype(np.uint64)
    peer = np.where(step == 3, np.where(from_client, turn // 2, (turn + 1) // 2), 0).astype(np.uint64)
    opened = (step >= 2) | ~from_client.astype(bool)
    put(16 + 38, (conn + own * (size - 54) + np.where(step >= 2, 1, 0)).astype(np.uint32).astype(">u4"))
    put(16 + 42, np.where(opened, conn + peer * (size - 54) + 1, 0).astype(np.uint32).astype(">u4"))
    flags = np.select([step == 0, step == 1], [0x02, 0x12], 0x10)
    put(16 + 46, (0x5000 | flags).astype(">u2"))
    put(16 + 48, np.full(len(conn), 65535, ">u2"))
    return rows


def header(out: BinaryIO) -> None:
    out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262_144, 1))


def write(path: Path, count: int, connections: int, size: int) -> None:
    """Write a capture of about `count` packets."""
    with path.open("wb") as out:
        header(out)
        packets(count, connections, size).tofile(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--packets", type=int, default=1_000_000)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--size", type=int, default=1414)
    given = parser.parse_args()
    write(given.path, given.packets, given.connections, given.size)

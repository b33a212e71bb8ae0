"""Captures real traffic over loopback with dumpcap, and analyses it with older tools."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import io
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.framework import IMPORTABLE

CLONE_NEWNET = 0x40000000
PACKAGES = {
    "tshark": "tshark",
    "editcap": "wireshark-common",
    "tcptrace": "tcptrace",
    "dumpcap": "wireshark-common",
    "unshare": "util-linux",
    "gtlsclient": "ngtcp2-client",
    "gtlsserver": "ngtcp2-server",
    "openssl": "openssl",
    "gcc": "gcc",
    "runsc": "runsc",
}


def need(*programs: str) -> None:
    """Fail the test, naming the Debian package, if a program is missing: otherwise the comparison would be skipped."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.fail(f"{program} is missing: apt-get install {PACKAGES.get(program, program)}")


def run(*command: str, stdin: bytes | None = None) -> str:
    return subprocess.run(command, check=True, capture_output=True, timeout=60, input=stdin).stdout.decode()


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Give this thread, and what it starts, a loopback device without other traffic for the context."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open(encoding="ascii") as before:
        if libc.unshare(CLONE_NEWNET):
            pytest.fail("a network namespace needs root or CAP_SYS_ADMIN")
        try:
            run("ip", "link", "set", "lo", "up")
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0


@contextlib.contextmanager
def dumping(path: Path, snaplen: int = 0, device: str = "lo", only: str = "tcp or udp") -> Iterator[None]:
    """Capture `device` into `path` while the block runs; every packet is in it when the block is left."""
    options = ["-s", str(snaplen)] if snaplen else []
    process = subprocess.Popen(
        [
            "dumpcap",
            "-q",
            "-i",
            device,
            "-f",
            only,
            "-w",
            str(path),
            *options,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    try:
        for line in process.stderr:
            if line.startswith("File:"):
                break
        else:
            pytest.fail(f"dumpcap cannot capture on {device} (it needs root or CAP_NET_RAW)")
        yield
        time.sleep(0.7)  # dumpcap reads in bursts
    finally:
        process.terminate()
        process.wait(10)


def echo_server(
    reply: bytes, pause: float, host: str = "127.0.0.1"
) -> tuple[socket.socket, Callable[[], None]]:
    """Start a server that answers every 64 bytes with `reply` after `pause` seconds.

    Returns its listening socket, and a function that stops it.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    listener.listen(64)

    def serve(peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            while peer.recv(64, socket.MSG_WAITALL):
                time.sleep(pause)
                peer.sendall(reply)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()

    def stop() -> None:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return listener, stop


def talk(address: tuple[object, ...], turns: int, expect: int, pause: float, *, reset: bool = False) -> None:
    """Ask `turns` times, thinking `pause` seconds before each question."""
    family = socket.AF_INET6 if ":" in str(address[0]) else socket.AF_INET
    with socket.socket(family) as own:
        own.connect(address)
        for _ in range(turns):
            time.sleep(pause)
            own.sendall(b"q" * 64)
            left = expect
            while left:
                left -= len(own.recv(min(left, 65536)))
        if reset:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@dataclass(frozen=True)
class Seen:
    """A connection as tshark or tcptrace see it; direction a is the one that sent the first packet."""

    a: tuple[str, int]
    b: tuple[str, int]
    packets: tuple[int, int]
    sizes: tuple[int, int]
    duration: float


def by_tshark(path: Path) -> list[Seen]:
    """Return connections from all packets' fields, summed by tshark's stream number; sizes are frame lengths."""
    names = ["tcp.stream", "ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport"]
    names += ["frame.len", "frame.time_epoch"]
    fields = [word for name in names for word in ("-e", name)]
    text = run("tshark", "-r", str(path), "-Y", "tcp", "-T", "fields", "-E", "separator=,", *fields)
    streams: dict[str, list[list[str]]] = {}
    for row in csv.reader(io.StringIO(text)):
        streams.setdefault(row[0], []).append(row)
    return [_stream(rows) for rows in streams.values()]


def _stream(rows: Sequence[Sequence[str]]) -> Seen:
    def ends(row: Sequence[str]) -> tuple[tuple[str, int], tuple[str, int]]:
        return (row[1] or row[2], int(row[3])), (row[4] or row[5], int(row[6]))

    a, b = ends(rows[0])
    counts, sizes = [0, 0], [0, 0]
    nanos = [int(row[8].replace(".", "")) for row in rows]
    for row in rows:
        which = 0 if ends(row)[0] == a else 1
        counts[which] += 1
        sizes[which] += int(row[7])
    return Seen(a, b, (counts[0], counts[1]), (sizes[0], sizes[1]), (max(nanos) - min(nanos)) / 1e9)


def by_tshark_conversations(path: Path) -> list[Seen]:
    """Return connections from `tshark -z conv,tcp`.

    It rounds durations to four decimals, and large sizes to kB, which are returned as -1.
    """
    out = []
    for line in run("tshark", "-q", "-r", str(path), "-z", "conv,tcp").splitlines():
        if "<->" not in line:
            continue
        words = line.split()

        def end(text: str) -> tuple[str, int]:
            host, _, port = text.rpartition(":")
            return host, int(port)

        # a <-> b, then frames, size, unit of b→a, of a→b and of both, start and duration.
        def count(at: int, words: list[str] = words) -> int:
            return int(words[at + 1]) if words[at + 2] == "bytes" else -1

        out.append(
            Seen(
                end(words[0]),
                end(words[2]),
                (int(words[6]), int(words[3])),
                (count(6), count(3)),
                float(words[-1]),
            )
        )
    return out


@dataclass(frozen=True)
class Traced:
    """A connection as tcptrace sees it; pairs are (first sender, other)."""

    a: tuple[str, int]
    b: tuple[str, int]
    packets: tuple[int, int]
    payload: tuple[int, int]
    unique: tuple[int, int]
    retransmitted: tuple[int, int]
    duration: float


def micros(text: str) -> int:
    """Return the microseconds of a time that tcptrace printed; it omits leading zeros after the point."""
    seconds, _, fraction = text.partition(".")
    return int(seconds) * 1_000_000 + int(fraction)


def by_tcptrace(path: Path) -> list[Traced]:
    text = run("tcptrace", "-n", "-l", "--csv", str(path))
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    header = next(line for line in lines if line.startswith("conn_#"))
    rows = csv.DictReader(
        io.StringIO("\n".join([header, *(x for x in lines if x[0].isdigit() and "," in x)]))
    )
    out = []
    for raw in rows:
        row = {name.strip(): (value or "").strip() for name, value in raw.items() if name}

        def pair(name: str, row: dict[str, str] = row) -> tuple[int, int]:
            return int(row[f"{name}_a2b"]), int(row[f"{name}_b2a"])

        out.append(
            Traced(
                (row["host_a"], int(row["port_a"])),
                (row["host_b"], int(row["port_b"])),
                pair("total_packets"),
                pair("actual_data_bytes"),
                pair("unique_bytes_sent"),
                pair("rexmt_data_bytes"),
                (micros(row["last_packet"]) - micros(row["first_packet"])) / 1e6,
            )
        )
    return out


_CALM_S, _ATTEMPTS = 0.003, 4


def relayed(folder: Path, *scenarios: str) -> None:
    """Capture these scenarios at both ends of a relay: `client.pcapng` and `server.pcapng` in the folder.

    Waiting times are measured in real time. If the relay did not get a processor in time, the scenarios are captured
    again, and the least disturbed of a few captures is kept.
    """
    found: list[tuple[float, Path]] = []
    while len(found) < _ATTEMPTS and (not found or min(found)[0] > _CALM_S):
        attempt = folder / f"attempt-{len(found)}"
        attempt.mkdir()
        found.append((_relayed(attempt, *scenarios), attempt))
    for file in min(found)[1].iterdir():
        file.rename(folder / file.name)


def _relayed(folder: Path, *scenarios: str) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "tests.framework.relay", str(folder), *scenarios],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"the relay needs root and /dev/net/tun: {done.stderr}"
    return float(done.stdout)

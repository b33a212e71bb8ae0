"""Real traffic between two network namespaces through a relay that delays, loses, reorders, doubles and throttles.

The relay is this process: it copies packets between two tunnels, whose other ends are in namespaces of the client's and
the server's processes, and each end is captured there. `python -m tests.framework.relay FOLDER NAME…` runs these
scenarios at the same time, each on a port of its own, and writes client.pcapng and server.pcapng.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import multiprocessing
import os
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.framework.endpoints import CLIENT, SERVER, run_client, run_server
from tests.framework.scenarios import SCENARIOS, VERDICTS, Link, Scenario

_NEW_NETWORK = 0x40000000
_TUNSETIFF, _TUN_NO_PI = 0x400454CA, 0x1001
_MOST = 65536


@dataclass
class Relay:
    """Packets in flight, the earliest due first.

    Each direction of each connection has its own random generator, so losses in it do not depend on the others.
    """

    links: dict[int, Link]
    due: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    free_at: dict[tuple[int, int], float] = field(default_factory=dict)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    tokens: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    begun: dict[int, float] = field(default_factory=dict)
    number: int = 0
    seed: int = 1
    late_s: list[float] = field(default_factory=list)
    chances: dict[tuple[int, int], random.Random] = field(default_factory=dict)

    def take(self, packet: bytes, out: int, towards_server: bool) -> None:
        """Decide the fate of a packet that was read: drop it, delay it, or double it."""
        if packet[0] >> 4 != 4:
            return
        header = (packet[0] & 15) * 4
        source, destination = struct.unpack(">HH", packet[header : header + 4])
        link = self.links.get(destination if towards_server else source, Link())
        way = (destination if towards_server else source, int(towards_server))
        count = self.counts[way] = self.counts.get(way, 0) + 1
        large = len(packet) > link.spare
        now = time.monotonic()
        died = link.dies_s and now - self.begun.setdefault(way[0], now) > link.dies_s
        swallowed = link.swallow and len(packet) > link.swallow
        if died or swallowed or (link.lose and large and count % link.lose == 0):
            return
        if way not in self.chances:
            self.chances[way] = random.Random(f"{self.seed} {way}")
        chance = self.chances[way]
        if (link.lose_first and towards_server and count == 1) or (link.loss and chance.random() < link.loss):
            return
        if link.burst and not self._passes_policer(way, len(packet), link, now):
            return
        start = max(now, self.free_at.get(way, 0.0))
        done = start + (len(packet) * 8 / link.rate if link.rate and not link.burst else 0.0)
        if link.rate and done - now > link.queue_s:
            return
        self.free_at[way] = done
        late = link.late_s if link.reorder and large and count % link.reorder == 0 else 0.0
        late += chance.uniform(0.0, link.jitter_s)
        self._put(done + link.delay_s + late, out, packet)
        if link.double and large and count % link.double == 0:
            self._put(done + link.delay_s + 0.0002, out, packet)

    def _passes_policer(self, way: tuple[int, int], size: int, link: Link, now: float) -> bool:
        tokens, since = self.tokens.get(way, (float(link.burst), now))
        tokens = min(link.burst, tokens + (now - since) * link.rate / 8)
        passes = tokens >= size
        self.tokens[way] = (tokens - size if passes else tokens, now)
        return passes

    def _put(self, at: float, out: int, packet: bytes) -> None:
        self.number += 1
        heapq.heappush(self.due, (at, self.number, out, packet))

    def run(self, client: int, server: int, until: Callable[[], bool]) -> None:
        """Copy packets until `until()` is true."""
        while not until():
            wait = 0.05 if not self.due else min(max(self.due[0][0] - time.monotonic(), 0.0), 0.05)
            for readable in select.select([client, server], [], [], wait)[0]:
                self.take(
                    os.read(readable, _MOST), server if readable == client else client, readable == client
                )
            while self.due and self.due[0][0] <= time.monotonic():
                at, _, out, packet = heapq.heappop(self.due)
                self.late_s.append(time.monotonic() - at)
                os.write(out, packet)


def _enter_namespace(own: str, other: str, stamps: bool) -> int:
    """Move this process into a new network namespace with one tunnel; return the tunnel's descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace")
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tunnel, _TUNSETIFF, struct.pack("16sH", b"relay", _TUN_NO_PI))
    for words in (f"addr add {own} peer {other} dev relay", "link set relay up", "link set lo up"):
        subprocess.run(["ip", *words.split()], check=True)
    Path("/proc/sys/net/ipv4/tcp_timestamps").write_text(str(int(stamps)), encoding="ascii")
    # After some losses in a row, smaller segments are tried.
    Path("/proc/sys/net/ipv4/tcp_mtu_probing").write_text("1", encoding="ascii")
    return tunnel


def _end(
    channel: socket.socket, capture: Path, ends: tuple[str, str], work: Callable[[], None], stamps: bool
) -> None:
    tunnel = _enter_namespace(*ends, stamps)
    dump = subprocess.Popen(["dumpcap", "-q", "-i", "relay", "-w", str(capture)], stderr=subprocess.PIPE)
    assert dump.stderr
    while b"File:" not in (line := dump.stderr.readline()):
        assert line, "dumpcap cannot capture"
    socket.send_fds(channel, [b"r"], [tunnel])
    channel.recv(1)
    work()
    channel.send(b"d")
    channel.recv(1)
    time.sleep(0.7)  # dumpcap reads in bursts
    dump.terminate()
    dump.wait(10)


def relay(folder: Path, scenarios: Sequence[Scenario], seed: int = 1, *, stamps: bool = True) -> float:
    """Run `scenarios` together and capture them in `folder`; `seed` determines what links do at random.

    Returns the 99th percentile of how late the relay itself delivered packets, in seconds. Without `stamps` neither
    system sends TCP time stamps.
    """
    # What others do on the machine must not become the link's delay.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    ours: list[socket.socket] = []
    processes = []
    context = multiprocessing.get_context("fork")
    ends = (
        ("client", CLIENT, SERVER, lambda: run_client(scenarios)),
        ("server", SERVER, CLIENT, lambda: run_server(scenarios)),
    )
    for name, own, other, work in ends:
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        capture = folder / f"{name}.pcapng"
        capture.touch(0o666)
        process = context.Process(target=_end, args=(child, capture, (own, other), work, stamps), daemon=True)
        process.start()
        child.close()
        ours.append(parent)
        processes.append(process)
    tunnels = [socket.recv_fds(channel, 1, 1)[1][0] for channel in ours]
    links = {scenario.port: scenario.link for scenario in scenarios}
    relaying = Relay(links, seed=seed)
    finished = threading.Event()
    thread = threading.Thread(target=relaying.run, args=(*tunnels, finished.is_set), daemon=True)
    thread.start()
    ours[1].send(b"g")
    ours[1].recv(1)  # the servers listen
    ours[0].send(b"g")
    ours[0].recv(1)  # the clients are done
    for channel in ours:
        channel.send(b"e")
    for process in processes:
        process.join(20)
    finished.set()
    thread.join(5)
    if any(process.exitcode for process in processes):
        raise SystemExit("an end of the relay failed")
    return statistics.quantiles(relaying.late_s, n=100)[-1]


if __name__ == "__main__":
    known = (*SCENARIOS, *VERDICTS)
    print(relay(Path(sys.argv[1]), [scenario for scenario in known if scenario.name in sys.argv[2:]]))

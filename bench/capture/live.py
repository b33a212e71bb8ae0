"""Find how many packets a second `capture --live` can take without losing one: `python bench/capture/live.py`.

In a private network namespace, UDP datagrams are sent over a pair of virtual cards at a steady rate for some seconds,
cut from large ones by the kernel, while guestmark's engine captures there. For each rate, the numbers of sent,
captured and dropped packets are printed. Needs root and ethtool; sends nothing to other machines, and ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from guestmark.capture.binary import find_capture_binary  # noqa: E402

SOL_UDP, UDP_SEGMENT = 17, 103
TOGETHER = 40  # datagrams that are handed to the kernel at once
HEADERS = 42
RATES = ((1_000_000, 64), (1_500_000, 64), (4.7e9, 1458), (9e9, 1458))


def prepare_interfaces() -> None:
    """Make two cards joined by a cable. One sends and is captured; the other's host drops what arrives."""
    for words in (
        "ip link add v0 type veth peer name v1",
        "ip addr add 10.9.0.1/24 dev v0",
        "ethtool -K v0 tx-udp-segmentation off gso off tso off",
        "ip link set v0 up",
        "ip link set v1 up",
        "ip neigh add 10.9.0.2 lladdr 02:00:00:00:00:01 dev v0",
    ):
        subprocess.run(words.split(), check=True, stdout=subprocess.DEVNULL)


def send_packets(per_second: float, size: int, seconds: float) -> tuple[int, float]:
    """Send datagrams of `size` bytes on the wire; returns how many, and the rate that was reached."""
    payload = size - HEADERS
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    own.setsockopt(SOL_UDP, UDP_SEGMENT, payload)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    block, target = bytes(payload * TOGETHER), ("10.9.0.2", 9)
    begun, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < begun + seconds:
        if sent > (now - begun) * per_second:
            continue
        own.sendto(block, target)
        sent += TOGETHER
    return sent, sent / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        own = ["unshare", "--net", sys.executable, __file__, f"--seconds={given.seconds}", "--inside"]
        raise SystemExit(subprocess.run(own, check=False).returncode)
    prepare_interfaces()
    print(f"{'asked for':>16}{'sent':>14}{'packets/s':>14}{'Gbit/s':>9}{'captured':>14}{'dropped':>10}")
    for rate, size in RATES:
        per_second = rate if size < 100 else rate / 8 / size
        command = [str(find_capture_binary()), "--live", "--progress", "--top=1", "v0"]
        live = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert live.stderr
        live.stderr.readline()  # it captures
        sent, reached = send_packets(per_second, size, given.seconds)
        time.sleep(0.5)
        os.kill(live.pid, signal.SIGINT)
        output, _ = live.communicate(timeout=30)
        counters = json.loads(output)["files"][0]["counters"]
        asked = f"{rate:,.0f} /s" if size < 100 else f"{rate / 1e9:.1f} Gbit/s"
        print(
            f"{asked:>16}{sent:14,}{reached:14,.0f}{8 * size * reached / 1e9:9.2f}"
            f"{counters['packets']:14,}{counters['dropped']:10,}",
            flush=True,
        )


if __name__ == "__main__":
    main()

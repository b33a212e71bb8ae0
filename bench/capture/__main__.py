"""`python bench/capture [--packets N]`: guestmark-capture beside tshark, tcptrace and capinfos on the same files.

Both times are compared. Wall seconds are what somebody waits for, and what the aims are about: 2 GB/s on full-size
packets, 5 million packets/s on small ones, 100 times tshark, 5 times tcptrace; they are right only on an idle machine.
Processor seconds (user + system) are the same on a busy one, and they are what a tool takes from others. (All tools use
one processor, so on an idle machine the two differ only by waiting.) Every figure is the best of several runs, which
are interleaved.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "python"))

from guestmark.capture.binary import capture_binary  # noqa: E402


@dataclass(frozen=True)
class Trace:
    """What is made: `packets` of `size` bytes on the wire over `connections`."""

    size: int
    connections: int
    packets: int

    @property
    def name(self) -> str:
        return f"{self.size} B, {self.connections:,} connection{'s' if self.connections > 1 else ''}"


@dataclass
class Best:
    cpu: float = float("inf")
    wall: float = float("inf")
    peak_mb: float = 0.0


def once(command: list[str], best: Best, limit_s: float) -> bool:
    """Run once and keep the better figures; False when it took longer than the limit."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.perf_counter() - start > limit_s:
            process.kill()
            os.wait4(process.pid, 0)
            return False
        time.sleep(0.0005)
    if status:
        raise SystemExit(f"{command[0]} failed with wait status {status}")
    best.wall = min(best.wall, time.perf_counter() - start)
    best.cpu = min(best.cpu, usage.ru_utime + usage.ru_stime)
    best.peak_mb = max(best.peak_mb, usage.ru_maxrss / 1000)
    return True


def race(trace: Trace, folder: Path, limit_s: float) -> None:
    """All tools on one trace; slow ones get a share of the packets, and the rate is what is compared."""
    path = folder / "trace.pcap"
    # In a process of its own: a child's peak would begin at this one's size.
    wanted = (f"--packets={trace.packets}", f"--connections={trace.connections}", f"--size={trace.size}")
    subprocess.run([sys.executable, str(HERE / "make_trace.py"), str(path), *wanted], check=True)
    size = path.stat().st_size
    packets = trace.packets + 3 * trace.connections
    tools = {
        "guestmark": ([str(capture_binary()), "--top=20", str(path)], 5),
        "guestmark, all rows": ([str(capture_binary()), "--format=csv", str(path)], 2),
        "capinfos": (["capinfos", "-c", "-u", "-z", str(path)], 2),
        "tcptrace": (["tcptrace", "-n", str(path)], 2),
        "tshark": (["tshark", "-n", "-q", "-r", str(path), "-z", "conv,tcp"], 1),
    }
    bests = {name: Best() for name in tools}
    missing = [name for name, (command, *_) in tools.items() if shutil.which(command[0]) is None]
    late: set[str] = set()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)  # into the page cache
    for turn in range(5):
        for name, (command, runs) in tools.items():
            tried = turn < runs and name not in missing and name not in late
            if tried and not once(command, bests[name], limit_s):
                late.add(name)
    print(f"\n{trace.name}: {packets:,} packets, {size / 1e6:,.0f} MB", flush=True)
    print(f"{'':22}{'packets/s':>14}{'GB/s':>8}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'guestmark is':>24}")
    reference = bests["guestmark"]
    for name in tools:
        best = bests[name]
        if name in missing or best.cpu == float("inf"):
            print(f"{name:22}{'not installed' if name in missing else f'more than {limit_s:.0f} s':>14}")
            continue
        times = f"{best.wall / reference.wall:.1f}x ({best.cpu / reference.cpu:.1f}x cpu)"
        print(
            f"{name:22}{packets / best.wall:14,.0f}{size / best.wall / 1e9:8.2f}{best.wall:9.3f}{best.cpu:9.3f}"
            f"{best.peak_mb:9.0f}{times:>24}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--packets", type=int, default=2_000_000, help="of 60 bytes; a quarter of it of 1400 bytes"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="longest run of another tool, seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
        for size, packets in ((1414, given.packets // 4), (60, given.packets)):
            for connections in (1, 100_000):
                race(Trace(size, connections, packets), Path(folder), given.limit)


if __name__ == "__main__":
    main()

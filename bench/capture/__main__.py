"""Compare `guestmark capture` with older tools on the same files: `python bench/capture [--mix FILE | --unkind DIR]`.

The others are tshark, tcptrace, argus and capinfos; those not installed are left out (Debian's packages: tshark
tcptrace argus-server). Traces are synthetic; `--mix` is a capture of real traffic instead, which is made as in mix.py
if FILE does not exist. Synthetic traces favour tools that are fast on one kind of packet, so publish both.

The cost of a file depends on how it came into the page cache. A file that was read from a disk is there in large
pieces; one that a capturing program has just written is in single pages, and mapping each costs more than reading it.
The first case is measured unless `--as-written` is given.

The whole command is timed, as users type it; its engine, the program that does the work, has a row of its own.

Two times are compared. Wall seconds are what users wait for, and the aims are about them: 8 million packets/s on the
mix and 8 GB/s on the mix of large files; they are valid only on an idle machine. Processor seconds (user + system) are
the same on a busy one, and show what a tool takes from others. Runs are interleaved; rates and comparisons use the
best run of each tool, and guestmark's median is beside its best. guestmark uses two processors if there are two, the
others one.

`--unkind DIR` measures hard cases, paired, with the builds of a checkout and of a wheel: other people's captures below
DIR as one file (public_mix.py), a million handshakes, and large packets. Its aims are 6 million packets/s, 1.5 s and
200 MB, and 8 GB/s, ten times as fast as tcptrace and fifty times as tshark. With `--ahead` guestmark has real-time
priority on a busy machine, so that its wall time is about that on an idle one; for the others their processor time is
used as a lower bound of their wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "python"))

from guestmark.capture.binary import find_capture_binary  # noqa: E402


@dataclass(frozen=True)
class Trace:
    """A trace that make_trace.py makes with these `options`: `packets` of `size` bytes over `connections`."""

    size: int
    connections: int
    packets: int
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        plural = "s" if self.connections > 1 else ""
        return " ".join([f"{self.size} B, {self.connections:,} connection{plural}", *self.options])


@dataclass
class Runs:
    """Wall and processor time of a tool's runs."""

    cpus: list[float] = field(default_factory=list)
    walls: list[float] = field(default_factory=list)
    peak_mb: float = 0.0

    @property
    def cpu(self) -> float:
        return min(self.cpus)

    @property
    def wall(self) -> float:
        return min(self.walls)


def time_command(
    command: list[str], runs: Runs, limit_s: float, engine: Path | None = None, *, may_fail: bool = False
) -> bool:
    """Run once and keep the figures; return False if it took longer than the limit, or failed where it may."""
    chosen = {"GUESTMARK_CAPTURE": str(engine)} if engine else {}
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **chosen}
    )
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if time.perf_counter() - start > limit_s:
            process.kill()
            os.wait4(process.pid, 0)
            return False
        time.sleep(0.0005)
    if status and may_fail:
        return False
    if status:
        raise SystemExit(f"{command[0]} failed with wait status {status}")
    runs.walls.append(time.perf_counter() - start)
    runs.cpus.append(usage.ru_utime + usage.ru_stime)
    runs.peak_mb = max(runs.peak_mb, usage.ru_maxrss / 1000)
    return True


def bench_synthetic(trace: Trace, path: Path) -> int:
    """Make the trace; returns its number of packets."""
    # In a process of its own: this one must stay small, as a child's peak memory begins at its parent's size.
    wanted = (f"--packets={trace.packets}", f"--connections={trace.connections}", f"--size={trace.size}")
    command = [sys.executable, str(HERE / "make_trace.py"), str(path), *wanted, *trace.options]
    subprocess.run(command, check=True)
    return trace.packets + 3 * trace.connections


def public_mix(folder: Path, path: Path) -> int:
    """Make one capture from other people's captures; return its number of packets."""
    command = [sys.executable, str(HERE / "public_mix.py"), str(folder), str(path)]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout, end="", flush=True)
    return packets_of(path)


def bench_mixed(path: Path, *, bulk: bool) -> int:
    """Make the trace of real traffic where there is none yet; returns its number of packets."""
    if not path.exists():
        kind = ["--bulk"] if bulk else []
        subprocess.run([sys.executable, str(HERE / "mix.py"), str(path), *kind], check=True)
    return packets_of(path)


def packets_of(path: Path) -> int:
    text = subprocess.run(
        [str(find_capture_binary()), "--top=1", "--format=json", str(path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return int(json.loads(text)["files"][0]["counters"]["packets"])


def read_anew(path: Path) -> None:
    """Bring the file into the page cache as a disk does: in large pieces, which are cheap to map."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)


def rewrite_in_pieces(path: Path) -> None:
    """Bring the file into the page cache as a capturing program does: in single pages."""
    copy = path.with_name(path.name + ".rewritten")
    with path.open("rb") as source, copy.open("wb", buffering=4096) as target:
        while page := source.read(4096):
            target.write(page)
    copy.replace(path)


def race_tools(
    name: str, path: Path, packets: int, limit_s: float, most: int, *, as_written: bool = False
) -> None:
    """Run all tools on one trace, guestmark `most` times."""
    size = path.stat().st_size
    tools = {
        "guestmark": ([str(ROOT / "guestmark"), "capture", str(path)], most),
        "its engine": ([str(find_capture_binary()), "--top=20", "--guilty", str(path)], most),
        "guestmark, all rows": ([str(find_capture_binary()), "--format=csv", str(path)], 2),
        "capinfos": (["capinfos", "-c", "-u", "-z", str(path)], 2),
        "argus": (["argus", "-X", "-r", str(path), "-w", "/dev/null"], 2),
        "tcptrace": (["tcptrace", "-n", str(path)], 2),
        "tshark": (["tshark", "-n", "-q", "-r", str(path), "-z", "conv,tcp"], 1),
    }
    ran = {tool: Runs() for tool in tools}
    missing = [tool for tool, (command, *_) in tools.items() if shutil.which(command[0]) is None]
    late: set[str] = set()
    if as_written:
        rewrite_in_pieces(path)
    else:
        read_anew(path)
    for turn in range(most):
        for tool, (command, runs) in tools.items():
            tried = turn < runs and tool not in missing and tool not in late
            if tried and not time_command(command, ran[tool], limit_s):
                late.add(tool)
    print(f"\n{name}: {packets:,} packets, {size / 1e6:,.0f} MB", flush=True)
    print(f"{'':28}{'packets/s':>14}{'GB/s':>8}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}{'guestmark is':>24}")
    reference = ran["guestmark"]
    for tool, best in ran.items():
        if not best.walls:
            print(f"{tool:28}{'not installed' if tool in missing else f'more than {limit_s:.0f} s':>14}")
            continue
        times = f"{best.wall / reference.wall:.1f}x ({best.cpu / reference.cpu:.1f}x cpu)"
        print(format_row(tool, packets, size, best.wall, best.cpu) + f"{best.peak_mb:9.0f}{times:>24}")
        if tool in {"guestmark", "its engine"}:
            walls, cpus = statistics.median(best.walls), statistics.median(best.cpus)
            print(format_row(f"  median of {len(best.walls)} runs", packets, size, walls, cpus))


def format_row(name: str, packets: int, size: int, wall: float, cpu: float) -> str:
    """Format the figures of one run."""
    return f"{name:28}{packets / wall:14,.0f}{size / wall / 1e9:8.2f}{wall:9.3f}{cpu:9.3f}"


def build_engines(profile: str) -> Path:
    """Build the engine by a profile: as a checkout has it (`checkout`) or a wheel (`release`)."""
    host = next(
        line.removeprefix("host: ")
        for line in subprocess.run(
            ["rustc", "-vV"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "build", "--quiet", f"--profile={profile}", "--package=guestmark-capture"]
    subprocess.run([*command, "--features=program", f"--target={host}"], check=True, cwd=ROOT)
    return ROOT / "target" / host / profile / "guestmark-capture"


def bench_unkind(name: str, path: Path, packets: int, given: argparse.Namespace) -> None:
    """Run both builds in turn, and the other tools once, on one file."""
    size = path.stat().st_size
    first = ["chrt", "-r", "1"] if given.ahead else []
    command = [*first, str(ROOT / "guestmark"), "capture", str(path)]
    engines = {
        "guestmark, a wheel's": build_engines("release"),
        "guestmark, a checkout's": build_engines("checkout"),
    }
    ran = {tool: Runs() for tool in engines}
    read_anew(path)
    for _ in range(given.runs):
        for tool, engine in engines.items():
            time_command(command, ran[tool], given.limit, engine)
    print(f"\n{name}: {packets:,} packets, {size / 1e6:,.0f} MB", flush=True)
    print(f"{'':28}{'packets/s':>14}{'GB/s':>8}{'wall s':>9}{'cpu s':>9}{'peak MB':>9}")
    for tool, best in ran.items():
        print(format_row(tool, packets, size, best.wall, best.cpu) + f"{best.peak_mb:9.0f}")
        walls, cpus = statistics.median(best.walls), statistics.median(best.cpus)
        print(format_row(f"  median of {len(best.walls)} runs", packets, size, walls, cpus))
    others = {
        "tcptrace": ["tcptrace", "-n", str(path)],
        "tshark": ["tshark", "-n", "-q", "-r", str(path), "-z", "conv,tcp"],
    }
    for tool, words in others.items():
        found = Runs()
        if not time_command(words, found, given.limit, may_fail=True):
            print(f"{tool:28}{f'fails, or takes more than {given.limit:.0f} s':>14}")
            continue
        ratios = ", ".join(f"{found.cpu / best.wall:.1f}" for best in ran.values())
        print(
            format_row(tool, packets, size, found.wall, found.cpu)
            + f"{found.peak_mb:9.0f}  at least {ratios} times"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--packets", type=int, default=2_000_000, help="of 60 bytes; a quarter of it of 1400 bytes"
    )
    parser.add_argument("--limit", type=float, default=120.0, help="longest run of another tool, seconds")
    parser.add_argument("--mix", type=Path, metavar="FILE", help="measure this capture, or make it first")
    parser.add_argument("--bulk", action="store_true", help="the mix to make is of large files alone")
    parser.add_argument(
        "--as-written", action="store_true", help="the mix in the page cache as small writes left it"
    )
    parser.add_argument("--runs", type=int, default=10, help="of guestmark on each trace")
    parser.add_argument(
        "--many", action="store_true", help="a million connections of four packets, of each kind"
    )
    parser.add_argument("--unkind", type=Path, metavar="DIR", help="measure what is hard, with both builds")
    parser.add_argument(
        "--ahead", action="store_true", help="run guestmark before all else on a busy machine"
    )
    given = parser.parse_args()
    if given.unkind:
        with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
            path = Path(folder) / "trace.pcap"
            bench_unkind("public captures, four times over", path, public_mix(given.unkind, path), given)
            for name, trace in (
                ("a million handshakes", Trace(60, 1_000_000, 1_000_000)),
                ("large packets", Trace(1414, 1000, 2_400_000)),
            ):
                bench_unkind(name, path, bench_synthetic(trace, path), given)
        return
    if given.many:
        with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
            for size, options in ((60, ()), (66, ("--stamps",)), (86, ("--stamps", "--v6"))):
                trace, path = Trace(size, 1_000_000, 1_000_000, options), Path(folder) / "trace.pcap"
                race_tools(trace.name, path, bench_synthetic(trace, path), 5.0, given.runs)
        return
    if given.mix:
        packets = bench_mixed(given.mix, bulk=given.bulk)
        name = f"real mix, {given.mix.name}"
        race_tools(name, given.mix, packets, given.limit, given.runs, as_written=given.as_written)
        return
    with tempfile.TemporaryDirectory(prefix="guestmark-bench-") as folder:
        for size, packets in ((1414, given.packets // 4), (60, given.packets)):
            for connections in (1, 100_000):
                trace, path = Trace(size, connections, packets), Path(folder) / "trace.pcap"
                race_tools(trace.name, path, bench_synthetic(trace, path), given.limit, given.runs)


if __name__ == "__main__":
    main()

"""Measure how a machine's placement affects its figures: every arrangement with three kinds of work, interleaved.

Run from the checkout: `.venv/bin/python -m bench.placement [--rounds 6] [--platforms host,uml,tcg]`, on a machine that
does nothing else. In a round every platform runs every kind of work once in every arrangement, each on a fresh
machine, in random order. `free` is the scheduler's choice; `pinned` is guestmark's; `apart` keeps the threads of an
emulator off its virtual processor, on another one that it shares with the control plane. A figure is the median over
the rounds of the median of a trial, the spread their median absolute deviation.
"""

import argparse
import itertools
import os
import random
import statistics
import sys
from collections.abc import Mapping, Sequence

from bench.sidebyside import output
from rich.table import Table

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.placement import FREE, LIST, PINNED
from guestmark.core.platform_spec import parse_platforms
from guestmark.disks.location import choose_default_location
from guestmark.platforms import registry
from guestmark.workloads.common.moving import sync_everything

_DISK = "disk"
_WORK: Mapping[str, Sequence[str]] = {
    "cpu": ["sysbench", "cpu", "--cpu-max-prime=2000", "--events=1500", "--time=0", "run"],
    "syscall": ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=20000"],
    _DISK: ["dd", "if=/dev/zero", "of={target}/file", "bs=1M", "count=64", "conv=fsync"],
}
_LIMIT_S = 300.0


def _arrangements() -> dict[str, str]:
    """Return the levels of the factor by their names in the table."""
    numbers = sorted(os.sched_getaffinity(0))[-2:]
    apart = LIST + ",".join(map(str, numbers))
    return {FREE: FREE, PINNED: PINNED, f"apart ({apart})": apart}


def _run_trial(platform: str, work: str, level: str, iterations: int) -> float:
    """Return the median seconds of an iteration on a fresh machine, after one that does not count."""
    factors = {"placement": level}
    if work == _DISK:
        factors |= {"location": choose_default_location(), "size": "256M", "filesystem": "ext4"}
    if platform == "host":
        factors = {name: text for name, text in factors.items() if name in ("placement", "location")}
    (spec,) = parse_platforms([platform])
    cell = Cell("bench", WorkloadSpec("bench"), spec, factors, processors=1)
    with registry.get_platform(spec).start(cell) as machine:
        machine.attest()
        target = machine.disks[0].mount(machine.agent) if work == _DISK else ""
        argv = [word.replace("{target}", target) for word in _WORK[work]]
        seconds = []
        for _ in range(iterations + 1):
            done = machine.agent.exec(argv, timeout_s=_LIMIT_S)
            if done.status != 0:
                sys.exit(f"{platform}: {' '.join(argv)} ended with status {done.status}")
            seconds.append(done.wall_s)
            if work == _DISK:
                machine.agent.remove(f"{target}/file")
                sync_everything(machine.agent)
    return statistics.median(seconds[1:])


def _arrangements_table(
    values: Mapping[tuple[str, str, str], Sequence[float]], rounds: int, busy: str
) -> Table:
    names = list(_arrangements())
    shown = Table(title=f"milliseconds, {rounds} rounds, load at the start {busy}", title_justify="left")
    shown.add_column("work")
    shown.add_column("platform")
    for name in names:
        shown.add_column(name, justify="right")
    for name in names[1:]:
        shown.add_column(f"{name.split()[0]} / free", justify="right")
    for work, platform in dict.fromkeys((work, platform) for platform, work, _ in values):
        series = [values[platform, work, name] for name in names]
        ratios = [
            statistics.median(mine / free for mine, free in zip(some, series[0], strict=True))
            for some in series[1:]
        ]
        shown.add_row(work, platform, *map(_format_figure, series), *(f"{ratio:.2f}" for ratio in ratios))
    return shown


def _format_figure(series: Sequence[float]) -> str:
    middle = statistics.median(series)
    spread = statistics.median(abs(value - middle) for value in series)
    return f"{1e3 * middle:.1f} ± {1e3 * spread:.1f}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--platforms", default="host,uml,tcg")
    parser.add_argument("--work", default=",".join(_WORK))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    arrangements = _arrangements()
    combinations = list(itertools.product(given.platforms.split(","), given.work.split(","), arrangements))
    order = random.Random(given.seed)
    busy = " ".join(f"{load:.1f}" for load in os.getloadavg())
    values: dict[tuple[str, str, str], list[float]] = {one: [] for one in combinations}
    for number in range(given.rounds):
        for platform, work, name in order.sample(combinations, len(combinations)):
            seconds = _run_trial(platform, work, arrangements[name], given.iterations)
            values[platform, work, name].append(seconds)
            print(
                f"round {number + 1}/{given.rounds}  {platform} {work} {name}: {seconds:.4f} s",
                file=sys.stderr,
            )
    output().print(_arrangements_table(values, given.rounds, busy))


if __name__ == "__main__":
    main()

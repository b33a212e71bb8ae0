"""Compare our figures for system calls with those of `perf bench`, for the calls that both measure.

`python -m bench.syscalls [ROUNDS]`; needs perf (Debian: linux-perf) and taskset. Every round runs all of them in random
order, on the same processor. Fails when the medians of the paired ratios are not within 10 %.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys

from bench.sidebyside import contenders_table, measure_contenders, median_ratio

from guestmark.agent import syscalls
from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent

WITHIN = 0.10
# Our name of an operation, and the benchmark of perf with its number of loops (for about a third of a second).
SHARED = {
    "null": ("syscall", "basic", "--loop", "1000000"),
    "pipe": ("sched", "pipe", "--loop", "50000"),
}
_PER_OPERATION = re.compile(r"([0-9.]+) usecs/op")


def measure_ours(agent: Agent, name: str) -> float:
    """Return the seconds of one operation, measured by the agent."""
    sections = syscalls.measure_syscalls(
        agent, operations=1000, time_s=0.35, names=[name], counters=dict, timeout_s=60.0
    )
    return sections[-1].measured.median_ns / 1e9


def measure_perf(name: str, processor: int) -> float:
    """Return the seconds of one operation, measured by perf."""
    command = ["taskset", "-c", str(processor), "perf", "bench", *SHARED[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _PER_OPERATION.search(done.stdout)
    assert found is not None, done.stdout
    return float(found.group(1)) / 1e6


def main() -> int:
    """Run all rounds; exits with 1 when the two do not agree."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    missing = [program for program in ("perf", "taskset") if shutil.which(program) is None]
    if missing:
        sys.exit(f"bench.syscalls needs {' and '.join(missing)} (Debian: linux-perf, util-linux)")
    processor = max(os.sched_getaffinity(0))  # the one that the agent takes
    process, transport = start_host_agent()
    with Agent(transport) as agent:
        contenders = {}
        for name in SHARED:
            contenders[name] = lambda name=name: measure_ours(agent, name)
            contenders[f"perf {name}"] = lambda name=name: measure_perf(name, processor)
        values = measure_contenders(contenders, rounds, seed=1)
    process.wait()
    worst = 0.0
    for name in SHARED:
        pair = {one: values[one] for one in (name, f"perf {name}")}
        contenders_table(f"{name}: one operation, {rounds} rounds", pair, [f"perf {name}"], "µs")
        worst = max(worst, abs(median_ratio(values[name], values[f"perf {name}"]) - 1))
        low, high = statistics.quantiles(
            [a / b for a, b in zip(values[name], values[f"perf {name}"], strict=True)], n=4
        )[::2]
        print(f"half of the rounds' ratios lie between {low:.3f} and {high:.3f}")
    print(f"largest disagreement {worst:.1%}, at most {WITHIN:.0%} is wanted")
    return int(worst > WITHIN)


if __name__ == "__main__":
    sys.exit(main())

"""Compare four equal machines that share a plan with one that runs it alone: `python -m bench.fleet.shared`.

The machines are network namespaces of this one, each with an sshd; the ledger is a PostgreSQL server in their network,
and trials sleep. Each of the `--rounds` (3) is one `fleet run` on one machine and one on four, in random order. Times
are of the whole command, and from the beginning of the first trial to the end of the last one.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from guestmark.core.findings import find_machine
from tests.framework.command_line import CommandLine
from tests.framework.labs import lab
from tests.framework.namespaces import network
from tests.framework.postgresql import postgresql
from tests.storm.fleet import exactly_once

MACHINES = ("lab1", "lab2", "lab3", "lab4")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one `fleet run`: the command, from the first trial to the last, all trials, and before the first."""

    command: float
    span: float
    trials: float
    before: float
    blocks: tuple[int, ...]  # of each machine


def fleet(folder: Path, names: tuple[str, ...], blocks: int, seconds: float) -> Took:
    """Run one fleet with its own directory and server, and return its times."""
    with network(folder, names) as reached, postgresql(reached.address) as server:
        guestmark = CommandLine(folder)
        levels = f'"{seconds / 4:.2f}", "{seconds / 2:.2f}"'  # and a null copy of the first
        made = lab(guestmark, server.url, names, blocks=blocks, levels=levels, whole=False)
        begin, clock = time.monotonic(), time.time()
        done = guestmark(*made.arguments(), env={"GUESTMARK_SSH": reached.client}, timeout=900)
        took = time.monotonic() - begin
        assert done.status == 0, done.stderr
        (run,) = made.runs()
        assert exactly_once([run], blocks) == 0
    first = min(trial.started_at for trial in run.trials)
    last = max(trial.started_at + trial.duration_s for trial in run.trials)
    each = Counter(find_machine(trial.facts) for trial in run.trials if trial.order == 0)
    all_of_it = sum(trial.duration_s for trial in run.trials)
    return Took(took, last - first, all_of_it, first - clock, tuple(sorted(each.values())))


def main() -> None:
    """Print a line for each `fleet run`, and the ratios."""
    parser = argparse.ArgumentParser(prog="bench.fleet.shared", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=10.0, help="that the trials of a block sleep in all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance, found = random.Random(given.seed), {1: list[Took](), 4: list[Took]()}
    for _ in range(given.rounds):
        for count in chance.sample(sorted(found), 2):
            with tempfile.TemporaryDirectory(prefix="guestmark-shared-", dir="/var/tmp") as text:
                one = fleet(Path(text), MACHINES[:count], given.blocks, given.seconds)
            found[count].append(one)
            print(
                f"{count} {'machine' if count == 1 else 'machines'}: {one.command:.1f} s, the first trial after "
                f"{one.before:.1f} s, from it to the end of the last {one.span:.1f} s, trials {one.trials:.1f} s in "
                f"all; blocks {one.blocks}; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for name in ("command", "span"):
        pairs = zip(found[4], found[1], strict=True)
        ratios = sorted(getattr(four, name) / getattr(one, name) for four, one in pairs)
        print(f"{name}: {median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) of one machine's time")


if __name__ == "__main__":
    main()

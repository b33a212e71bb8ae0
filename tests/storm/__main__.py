"""The kill storm in full: `.venv/bin/python -m tests.storm --kills 300`: about an hour on two processors.

`--way` ends runs otherwise than by SIGKILL.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.storm.storm import MODES, Outcome, Storm
from tests.storm.ways import WAYS


def main() -> int:
    """Prints a line for each mode and every problem; exits with 1 if there was one."""
    parser = argparse.ArgumentParser(prog="tests.storm", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", action="append", choices=MODES, help="default: all")
    parser.add_argument("--way", choices=WAYS, default="kill", help="how runs are ended; default: kill")
    parser.add_argument("--user", type=int, default=0, help="whose runs they are, by number; default: root's")
    parser.add_argument(
        "--warm", action="store_true", help="let a first run come to its end: nothing is found out anew later"
    )
    parser.add_argument("--minutes", type=float, default=120.0, help="at most")
    given = parser.parse_args()
    names = given.mode or list(MODES)
    problems = 0
    for name in names:
        outcome = Outcome()
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="storm-", dir="/var/tmp") as folder:
            storm = Storm(
                MODES[name], Path(folder), given.seed, given.way, user=given.user, warms_up=given.warm
            )
            storm.rage(-(-given.kills // len(names)), begin + 60 * given.minutes / len(names), outcome)
        how = ", ".join(f"{number} {what}" for what, number in outcome.ended.items())
        print(
            f"{name}: {outcome.kills} ended ({how}), {outcome.resumed} resumed, "
            f"{outcome.whole} came to their end first; nothing was left after {outcome.longest_s:.2f} s; "
            f"{outcome.cleaned} removed by the next run; "
            f"{len(outcome.problems)} problems; {time.monotonic() - begin:.0f} s",
            flush=True,
        )
        for problem in outcome.problems:
            print(f"  {problem}", flush=True)
        problems += len(outcome.problems)
    return 1 if problems else 0


sys.exit(main())

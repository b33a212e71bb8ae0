"""Measure how many crash states a second a check judges, with and without reuse of results, which must be equal.

Run from the checkout: `.venv/bin/python -m bench.powercut.checks LOG … [--states 150]`. A LOG is the directory of a
kept log, as the report of `guestmark powercut --check` names it. The same states of each log are judged twice in both
ways, in the order ABBA, so that a change of the machine's load affects both. Processor time is that of this process
and all that it starts: if other programs use the processors, it says more than states per second.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from guestmark.powercut import cuts, evidence, user_check
from guestmark.powercut.records import Acknowledged
from guestmark.powercut.survey import CrashState, Disk, start_worker_pool
from guestmark.powercut.user_check import Check, Limit
from guestmark.powercut.writelog import WriteLog

_LIMIT_S = 60.0
_ROOM = Path("/var/tmp")


def judge_states(
    kept: evidence.KeptLog, count: int, *, forgetful: bool
) -> tuple[float, float, int, set[str]]:
    """Return the seconds and processor seconds of judging, how often the check ran, and which states failed."""
    used = _processor_s()
    check = Check(
        kept.check, kept.lines, Limit(_LIMIT_S), apart=not user_check.explain_no_sandbox(), always=False,
        forgetful=forgetful,
    )  # fmt: skip
    with WriteLog(kept.log) as log:
        seen = Acknowledged.from_marks(log.entries, 0, len(log.entries))
        chosen = cuts.choose_cuts(
            log.entries,
            seen.acknowledgement_moments,
            start=seen.requests_before_first_record,
            count=100,
            seed=1,
        )
        disk = Disk(kept.base, kept.filesystem, kept.form, log, log.entries, seen.find_newest_after)
        with start_worker_pool(disk, check, _ROOM) as bench:
            order = chosen.choose_sampling_order()[:count]
            begin = time.monotonic()
            states: list[CrashState] = []
            for start in range(0, len(order), 50):
                states += bench.judge_cuts(order[start : start + 50])
            took_s = time.monotonic() - begin
    failed = {
        f"{state.cut.after} {state.cut.survival} {state.fault}"
        for state in states
        if state.is_failed and state.newest >= 0
    }
    # Agents have ended by now, with all that they started.
    return took_s, _processor_s() - used, check.runs, failed


def _processor_s() -> float:
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, whose))


def main() -> None:
    """Print a line for each log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("log", nargs="+", type=Path)
    parser.add_argument("--states", type=int, default=150)
    given = parser.parse_args()
    print(
        f"{'log':26} {'way':12} {'states':>6} {'a second':>8} {'ms of processor':>15} {'checks':>6}  results"
    )
    for path in given.log:
        kept = evidence.load_evidence(str(path))
        seconds, used = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
        found: dict[bool, set[str]] = {False: set(), True: set()}
        runs = {False: 0, True: 0}
        for forgetful in (False, True, True, False):
            took_s, used_s, runs[forgetful], failed = judge_states(kept, given.states, forgetful=forgetful)
            seconds[forgetful] += took_s
            used[forgetful] += used_s
            found[forgetful] |= failed
        equal = "equal" if found[False] == found[True] else f"{len(found[False] ^ found[True])} differ"
        judged = 2 * given.states
        for forgetful, way in ((True, "each judged"), (False, "equal once")):
            print(
                f"{path.name:26} {way:12} {given.states:6} {judged / seconds[forgetful]:8.1f} "
                f"{1000 * used[forgetful] / judged:15.1f} {runs[forgetful]:6}  {equal}",
                flush=True,
            )


if __name__ == "__main__":
    main()

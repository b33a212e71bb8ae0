"""Test on known truths whether real slowdowns are found, and no others: guestmark beside hyperfine, pyperf, benchstat.

Run from the checkout: `.venv/bin/python -m bench.truth [--minutes 10] [--platforms host,uml,tcg]`, on a machine that
does nothing else. Both commands of a comparison are the same program, which counts through a given amount of work, so
their difference is known. In each comparison guestmark and its peers get the same wall time, in random order. Every
comparison is appended to a file of JSON lines (`--into`) as soon as it is done; an interrupted run continues where it
stopped, and `--table` prints the results so far. `--short` is the form that `./test --long` runs.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from bench.truth import by_hand, peers
from bench.truth.contest import SCENARIOS, describe_contest, guestmark, run_contest
from bench.truth.results import render_tables

INTO = Path(__file__).with_name("comparisons.jsonl")
_EXPECTED_S = {"host": 8.0, "uml": 30.0, "tcg": 70.0}
# Guests have one processor, and their comparisons cost ten times as much: fewer scenarios there.
_IN_GUESTS = ("A/A", "+5 %", "+2 %", "×2 in one start of 10")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the comparisons so far, without a line that an interruption cut short."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def schedule_contests(
    platforms: list[str], weights: dict[str, int], only: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield contests without end: each platform's scenarios in turn, platforms as often as their weights say."""
    turn = dict.fromkeys(platforms, 0)
    while True:
        for platform in platforms:
            names = [name for name in SCENARIOS if platform == "host" or name in _IN_GUESTS]
            names = [name for name in names if not only or name in only]
            for _ in range(weights.get(platform, 1)):
                yield names[turn[platform] % len(names)], platform
                turn[platform] += 1


def compare_tools(name: str, platform: str, seed: int, seconds: float) -> dict[str, Any]:
    scenario = SCENARIOS[name]
    record: dict[str, Any] = {
        "scenario": name, "platform": platform, "seed": seed,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "load": os.getloadavg()[0], "commands": describe_contest(scenario.commands()),
    }  # fmt: skip
    if random.Random(seed).random() < 0.5:
        record["guestmark"] = guestmark(scenario, platform, seed)
        record["peers"] = run_contest(scenario, platform, seed, seconds)
    else:
        record["peers"] = run_contest(scenario, platform, seed, seconds)
        record["guestmark"] = guestmark(scenario, platform, seed)
    return record


def collect_records(platforms: list[str], minutes: float, into: Path, only: Collection[str] = ()) -> None:
    """Compare until the time is up; a comparison that would end later is not begun."""
    deadline = time.monotonic() + 60 * minutes
    known = read_records(into)
    for done, (name, platform) in enumerate(schedule_contests(platforms, {"host": 8}, only)):
        if done < sum(record["platform"] in platforms for record in known if "guestmark" in record):
            continue
        took = [record["guestmark"]["seconds"] for record in known
                if record.get("scenario") == name and record.get("platform") == platform]  # fmt: skip
        seconds = statistics.median(took) if took else _EXPECTED_S[platform]
        if time.monotonic() + 2 * seconds > deadline:
            return
        record = compare_tools(name, platform, 1_000 + done, seconds)
        known.append(record)
        with into.open("a") as file:
            file.write(json.dumps(record) + "\n")
        said = [
            f"{peer} {record['peers'][peer]['claim'] or '-'}"
            for peer in peers.PEERS
            if peer in record["peers"]
        ]
        ours = f"guestmark {record['guestmark']['ratio']:.3f} {record['guestmark']['claim'] or '-'}"
        print(f"{platform:5} {name:22} {ours:26} {'  '.join(said)}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--platforms", default="host,uml,tcg")
    parser.add_argument("--only", default="", metavar="A;B", help="these comparisons alone")
    parser.add_argument("--into", type=Path, default=INTO)
    parser.add_argument("--short", action="store_true", help="a minute on the host, into a file of its own")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what was measured")
    parser.add_argument("--by-hand", action="store_true", help="measure sysbench, fio and time by hand, too")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.minutes, arguments.platforms = 1, "host"
    if not arguments.table:
        for peer, reason in peers.install_peers().items():
            print(f"{peer} is left out: {reason}", file=sys.stderr)
        if arguments.by_hand:
            record = by_hand.measure_figures()
            with arguments.into.open("a") as file:
                file.write(json.dumps(record) + "\n")
        only = [name for name in arguments.only.split(";") if name]
        collect_records(arguments.platforms.split(","), arguments.minutes, arguments.into, only)
    print(render_tables(read_records(arguments.into)))


if __name__ == "__main__":
    main()

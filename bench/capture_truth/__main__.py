"""Check whether verdicts are right: real programs at both ends of a relay, captured at both, with known causes.

`python -m bench.capture_truth [--seeds 11,12] [--only WORD] [--keep FOLDER]` prints a table: truth and verdict of each
case at each point, and by how much the points differ. It needs root (network namespaces, tunnels) and dumpcap. Cases
were developed with seeds below 50; publish figures of others.

`--disturb` reads the same captures damaged (packets missing, cut, joined, or captured at both points), and counts how
often the wrong side is blamed: without a word of doubt, or with one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.capture_truth.cases import CASES, Case

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection
from guestmark.capture.verdict import find_doubt, list_cause_shares
from tests.framework import captures as cf
from tests.framework.disturbed import DISTURBANCES, one_way, together, written
from tests.framework.relay import relay

TOGETHER = 9
_SYN_S = 0.9  # before a SYN is sent again
AGREED = 0.05
POINTS = ("client", "server")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Captured:
    """A case of one seed: the folder with its captures at both ends, which hold other cases, too."""

    case: Case
    seed: int
    folder: Path

    def at(self, point: str) -> Path:
        return self.folder / f"{point}.pcapng"


def shares_of_time(connection: Connection) -> dict[str, float]:
    """Return the share of the time by cause."""
    return {part.cause: part.share for part in list_cause_shares(connection.causes)}


def found_in(capture: Path, case: Case) -> Connection:
    """Return the case's connection in one capture."""
    known = analyse_file(capture).connections
    found = [one for one in known if one.server.port == case.scenario.port]
    # In a crowd only one client has sent something.
    return max(found, key=lambda one: one.client.unique_bytes)


def difference_of_ends(near: Connection, far: Connection) -> float:
    """Return the largest difference between the ends in a cause, as a share of the time that both captured.

    If the first SYN was lost, the server's capture begins with the one that arrived, and cannot show the waiting
    before.
    """
    before = (
        max(0.0, (far.start_ns - near.start_ns) / 1e9) if near.duration_s > far.duration_s + _SYN_S else 0.0
    )
    spent = [
        {part.cause: part.share * one.duration_s for part in list_cause_shares(one.causes)}
        for one in (near, far)
    ]
    spent[0]["recovery"] -= min(before, spent[0]["recovery"])
    return max(abs(spent[0][cause] - spent[1][cause]) for cause in spent[0]) / far.duration_s


def format_row(case: Case, near: Connection, far: Connection) -> tuple[str, bool, bool]:
    """Return a line of the table, whether both verdicts are right, and whether the points agree."""
    apart = difference_of_ends(near, far)
    right = True
    cells = []
    for found in map(shares_of_time, (near, far)):
        main = max(found, key=lambda cause: found[cause])
        right &= not any(case.truth) or main in case.truth
        top = sorted(found.items(), key=lambda item: -item[1])[:3]
        cells.append(", ".join(f"{_named(cause)} {share:.0%}" for cause, share in top if share >= 0.005))
    mark = "" if right else " **miss**"
    text = " or ".join(map(_named, case.truth)) or "(any)"
    return (
        f"| {case.scenario.name} | {text}{mark} | {cells[0]} | {cells[1]} | {100 * apart:.1f} |",
        right,
        apart <= AGREED,
    )


def _named(cause: str) -> str:
    return cause.replace("client_", "client's ").replace("server_", "server's ").replace("_", " ")


def capture_case(seeds: list[int], only: str, folder: Path) -> Iterator[Captured]:
    """Run the cases that have no capture yet, some at a time."""
    chosen = [case for case in CASES if only in case.scenario.name]
    for seed in seeds:
        for stamps in (True, False):
            alike = [case for case in chosen if case.stamps is stamps]
            for at in range(0, len(alike), TOGETHER):
                some = alike[at : at + TOGETHER]
                numbers = [CASES.index(case) for case in some]
                there = folder / f"{seed}-{numbers[0]}-{numbers[-1]}"
                if not (there / "server.pcapng").exists():
                    there.mkdir(parents=True, exist_ok=True)
                    there.chmod(0o777)
                    command = [sys.executable, "-m", "bench.capture_truth", "--keep", str(there)]
                    command += ["--inside", json.dumps([numbers, seed, stamps])]
                    subprocess.run(command, check=True, cwd=ROOT, env=os.environ, timeout=180)
                yield from (Captured(case, seed, there) for case in some)


def compare_ends(runs: Iterator[Captured]) -> None:
    """Print the table of truth and verdicts."""
    print("| case | truth | on the client | on the server | apart, % |\n| --- | --- | --- | --- | --- |")
    right = agreed = doubted = count = 0
    for run in runs:
        ends = [found_in(run.at(point), run.case) for point in POINTS]
        text, is_right, same = format_row(run.case, *ends)
        print(text, flush=True)
        doubted += not same and any(one.confidence != "high" for one in ends)
        right, agreed, count = right + is_right, agreed + same, count + 1
    print(
        f"\n{right} of {count} right at both points; {agreed} of {count} within {AGREED:.0%} of the duration, "
        f"and {doubted} of the others with a doubt at one point at least"
    )


def judge_capture(packets: list[cf.Packet], case: Case, scratch: Path) -> tuple[str, str]:
    """Compare the verdict on these packets with the truth; returns the outcome and the verdict."""
    scratch.write_bytes(written(packets))
    trace = analyse_file(scratch)
    found, weak = trace.connections, find_doubt(trace)
    if weak is not None and weak.refused:
        return "refused", weak.reason
    if not found or not (known := shares_of_time(max(found, key=lambda one: one.duration_s))):
        return "refused", "no causes"
    longest = max(found, key=lambda one: one.duration_s)
    if case.scenario.port not in {longest.server.port, longest.client.port}:
        return "wrong", "another connection"
    swapped = longest.client.port == case.scenario.port
    main = max(known, key=lambda cause: known[cause])
    blamed = main.replace("client", "server") if swapped and "client" in main else main
    blamed = main.replace("server", "client") if swapped and "server" in main else blamed
    told = ", ".join(
        f"{cause} {share:.0%}" for cause, share in sorted(known.items(), key=lambda item: -item[1])[:3]
    )
    if not any(case.truth) or blamed in case.truth:
        return "right", told
    if blamed == "unknown":
        return "refused", told
    doubted = weak is not None or longest.confidence != "high"
    return ("doubted" if doubted else "wrong"), f"{told} ({longest.confidence})"


def judge_disturbed(run: Captured, scratch: Path) -> Iterator[tuple[str, str, list[cf.Packet]]]:
    """Yield a case's captures after each kind of damage: the kind, the point, and what is left."""
    both, port = [], run.case.scenario.port
    for point in POINTS:
        plain = scratch / "plain.pcap"
        subprocess.run(
            ["tshark", "-r", run.at(point), "-Y", f"tcp.port=={port}", "-F", "nsecpcap", "-w", plain],
            check=True,
            capture_output=True,
        )
        both.append(list(cf.packets_of(plain)))
    for name, suffer in DISTURBANCES.items():
        for point, packets in zip(POINTS, both, strict=True):
            yield name, point, suffer(packets, port)
    yield "both ends merged", "relay", together(*both)
    yield "one direction", "server", one_way(both[1], port)


def disturb_capture(runs: Iterator[Captured], scratch: Path) -> None:
    """Count how often the wrong cause is blamed after captures have been damaged."""
    tallies: dict[str, Counter[str]] = {}
    for run in runs:
        for name, point, packets in judge_disturbed(run, scratch):
            outcome, told = judge_capture(packets, run.case, scratch / "disturbed.pcap")
            tallies.setdefault(name, Counter())[outcome] += 1
            if outcome in {"doubted", "wrong"}:
                what = f"{run.case.scenario.name} ({run.seed}), {name}, at the {point}"
                print(f"{outcome}: {what}: {told}; truth: {' or '.join(run.case.truth)}", flush=True)
    print("\n| captures | right | refused | wrong, doubted | wrong |\n| --- | --- | --- | --- | --- |")
    for name, tally in tallies.items():
        cells = " | ".join(str(tally[outcome]) for outcome in ("right", "refused", "doubted", "wrong"))
        print(f"| {name} | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, help="leave the captures here, or read those that are there")
    parser.add_argument(
        "--disturb", action="store_true", help="judge what the captures say after they have suffered"
    )
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        numbers, seed, stamps = json.loads(given.inside)
        relay(given.keep, [CASES[number].scenario for number in numbers], seed, stamps=stamps)
        return
    with tempfile.TemporaryDirectory() as scratch:
        seeds = [int(seed) for seed in given.seeds.split(",")]
        runs = capture_case(seeds, given.only, given.keep or Path(scratch))
        if given.disturb:
            disturb_capture(runs, Path(scratch))
        else:
            compare_ends(runs)


if __name__ == "__main__":
    main()

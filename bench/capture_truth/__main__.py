"""Is the verdict right? Real programs at both ends of a relay, captured at both, held against what is known of them.

`python -m bench.capture_truth [--seeds 11,12] [--only WORD] [--keep FOLDER]` prints a table: truth and verdict of
each case at each point, and by how much the points differ. It needs root (network namespaces, tunnels) and
dumpcap. Cases were developed with seeds below 10; publish figures of others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.capture_truth.cases import CASES, Case

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection
from guestmark.capture.verdict import parts
from tests.framework.relay import relay

TOGETHER = 9
AGREED = 0.05
ENOUGH = 0.6
ROOT = Path(__file__).resolve().parents[2]


def shares(connection: Connection) -> dict[str, float]:
    """Share of the time by cause."""
    return {part.cause: part.share for part in parts(connection.causes)}


def found_in(capture: Path, case: Case) -> dict[str, float]:
    """Shares of the case's connection in one capture."""
    known = analyse_file(capture).connections
    (connection,) = [one for one in known if one.server.port == case.scenario.port]
    return shares(connection)


def row(case: Case, near: dict[str, float], far: dict[str, float]) -> tuple[str, bool, bool]:
    """A line of the table, whether both verdicts are right, and whether the points agree."""
    apart = max(abs(near[cause] - far[cause]) for cause in near)
    right = True
    cells = []
    for found in (near, far):
        main = max(found, key=lambda cause: found[cause])
        right &= not any(case.truth) or main in case.truth
        top = sorted(found.items(), key=lambda item: -item[1])[:3]
        cells.append(", ".join(f"{cause} {share:.0%}" for cause, share in top if share >= 0.005))
    mark = "" if right else " **miss**"
    text = " or ".join(case.truth) or "(any)"
    return (
        f"| {case.scenario.name} | {text}{mark} | {cells[0]} | {cells[1]} | {100 * apart:.1f} |",
        right,
        apart <= AGREED,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, help="leave the captures here, or read those that are there")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = [case for case in CASES if given.only in case.scenario.name]
    if given.inside:
        numbers, seed = json.loads(given.inside)
        relay(given.keep, [CASES[number].scenario for number in numbers], seed)
        return
    right = agreed = count = 0
    with tempfile.TemporaryDirectory() as scratch:
        print(
            "| case | truth | on the client | on the server | apart, points |\n| --- | --- | --- | --- | --- |"
        )
        for seed in map(int, given.seeds.split(",")):
            for at in range(0, len(chosen), TOGETHER):
                some = chosen[at : at + TOGETHER]
                numbers = [CASES.index(case) for case in some]
                folder = (given.keep or Path(scratch)) / f"{seed}-{numbers[0]}-{numbers[-1]}"
                if not (folder / "server.pcapng").exists():
                    folder.mkdir(parents=True, exist_ok=True)
                    folder.chmod(0o777)
                    command = [sys.executable, "-m", "bench.capture_truth", "--keep", str(folder)]
                    command += ["--inside", json.dumps([numbers, seed])]
                    subprocess.run(command, check=True, cwd=ROOT, env=os.environ, timeout=180)
                for case in some:
                    ends = [found_in(folder / f"{end}.pcapng", case) for end in ("client", "server")]
                    text, is_right, same = row(case, *ends)
                    print(text, flush=True)
                    right, agreed, count = right + is_right, agreed + same, count + 1
    print(
        f"\n{right} of {count} right at both points; {agreed} of {count} within {AGREED:.0%} of the duration"
    )


if __name__ == "__main__":
    main()

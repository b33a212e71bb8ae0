"""Test gates and bisections beside a busy loop: whether a slowdown of 3 % in wall time is found, and no other.

Run from the checkout, on a machine that does nothing else: `.venv/bin/python -m bench.truth.busy [--minutes 10]`. The
loop is started here, and may run on any processor. A gate gets two builds, of which the second is 3 % slower or equal,
and continues as its report advises while it is undecided; a bisection gets ten commits, one of which made it 3 %
slower. Each result is appended to a file of JSON lines (`--into`); an interrupted run continues where it stopped.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench.truth import peers
from bench.truth.contest import UNITS

CHECKOUT = Path(__file__).resolve().parents[2]
SLOWER, LIMIT = 0.03, "> +1.5%"
COMMITS, ROUNDS = 10, 2  # of a bisection; in which an undecided gate gets more blocks
KINDS = ("gate, +3 %", "gate, equal", "bisect, +3 %")
UNDECIDED = 125


def _run(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def run_gate(slower: bool, seed: int, scratch: Path) -> str:
    """Run a gate; returns `broken`, `kept` or `undecided`."""
    spin, ledger = str(peers.BUILD / "spin"), ("--ledger", str(scratch / "ledger.sqlite"))
    units = [UNITS, round(UNITS * (1 + SLOWER * slower))]
    program = ["--", spin, str(units[0]), "---", spin, str(units[1])]
    done = _run(
        CHECKOUT / "guestmark", "ab", "--fail-if", LIMIT, "--seed", str(seed), "--quiet", "--json",
        scratch / "result.json", *ledger, *program,
    )  # fmt: skip
    for _ in range(ROUNDS):
        if done.returncode != UNDECIDED:
            break
        found = json.loads((scratch / "result.json").read_text())
        blocks = max(trial["block"] for cell in found["cells"] for trial in cell["trials"]) + 1
        more = found["gates"][0]["more_blocks"] or blocks
        done = _run(
            CHECKOUT / "guestmark", "resume", "last", "--blocks", str(blocks + min(more, 2 * blocks)),
            "--quiet", "--json", scratch / "result.json", *ledger,
        )  # fmt: skip
    words = {0: "kept", 1: "broken", UNDECIDED: "undecided"}
    return words.get(done.returncode, f"status {done.returncode}: {done.stderr.strip()[-200:]}")


def run_bisect(seed: int, scratch: Path) -> str:
    """Run a bisection; return `found`, `another commit` or `undecided`, and the deciding metric if not wall time."""
    at = random.Random(seed).randrange(1, COMMITS)
    hashes = make_repository(scratch / "repository", at)
    done = _run(
        CHECKOUT / "guestmark", "bisect", "--repo", scratch / "repository", "--good", hashes[0], "--fail-if", LIMIT,
        "--ledger", scratch / "ledger.sqlite", "--", "sh", "{build}/work",
    )  # fmt: skip
    fell_back = ", by user time" if "user_s decided" in done.stderr else ""
    if done.stdout.startswith(hashes[at]):
        return f"found{fell_back}"
    if done.returncode == 0:
        return f"another commit{fell_back}"
    return "undecided" if done.returncode in {1, UNDECIDED} else f"status {done.returncode}"


def make_repository(folder: Path, slow_from: int) -> list[str]:
    """Make commits of a command that is 3 % slower from `slow_from` on; returns their hashes, oldest first."""
    folder.mkdir()
    git = ("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@example.org")
    _run(*git, "init", "--quiet")
    for number in range(COMMITS):
        units = round(UNITS * (1 + SLOWER * (number >= slow_from)))
        (folder / "work").write_text(f"exec {peers.BUILD / 'spin'} {units}\n")
        (folder / "notes").write_text(str(number))
        _run(*git, "add", ".")
        _run(*git, "commit", "--quiet", "--message", f"Change {number}")
    return _run(*git, "rev-list", "--reverse", "HEAD").stdout.split()


def collect_outcomes(kinds: Sequence[str], comparisons: int, minutes: float, into: Path, loops: int) -> None:
    """Run equally many of each kind in turn; one that may end after the time is up is not begun."""
    deadline = time.monotonic() + 60 * minutes
    known = [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []
    known = [each for each in known if each["kind"] in kinds]
    peers.BUILD.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("spin.c")
    subprocess.run(["gcc", "-O2", "-static", "-pthread", "-o", peers.BUILD / "spin", source], check=True)
    busy = [subprocess.Popen([peers.BUILD / "spin", str(1 << 62)]) for _ in range(loops)]
    try:
        for number in range(len(known), comparisons * len(kinds)):
            kind = kinds[number % len(kinds)]
            took = [each["seconds"] for each in known if each["kind"] == kind]
            began = time.monotonic()
            if began + max(took, default=20.0) > deadline:
                return
            scratch = Path(tempfile.mkdtemp(prefix="guestmark-busy-"))
            try:
                said = (
                    run_bisect(number, scratch)
                    if kind == KINDS[2]
                    else run_gate(kind == KINDS[0], number, scratch)
                )
            finally:
                shutil.rmtree(scratch)
            record = {
                "kind": kind,
                "said": said,
                "seconds": time.monotonic() - began,
                "loops": loops,
                "load": os.getloadavg()[0],
            }
            known.append(record)
            with into.open("a") as stream:
                stream.write(json.dumps(record) + "\n")
            print(f"{kind:14} {said}, {record['seconds']:.0f} s", file=sys.stderr, flush=True)
    finally:
        for each in busy:
            each.kill()
            each.wait()


def outcomes_table(into: Path) -> str:
    """Render how the runs of each kind ended."""
    known = [json.loads(line) for line in into.read_text().splitlines()] if into.exists() else []
    lines = ["| what | of | ended | seconds, median |", "| --- | --- | --- | --- |"]
    for kind in KINDS:
        mine = [each for each in known if each["kind"] == kind]
        ended = ", ".join(
            f"{said} {count}" for said, count in Counter(each["said"] for each in mine).most_common()
        )
        seconds = sorted(each["seconds"] for each in mine)
        lines.append(
            f"| {kind} | {len(mine)} | {ended} | {seconds[len(mine) // 2]:.0f} |"
            if mine
            else f"| {kind} | 0 | | |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--comparisons", type=int, default=20, help="of each kind")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", default="", help="kinds that hold this word: gate, bisect")
    parser.add_argument("--loops", type=int, default=1)
    parser.add_argument("--into", type=Path, default=Path(__file__).with_name("busy.jsonl"))
    parser.add_argument("--table", action="store_true", help="measure nothing, print what was measured")
    given = parser.parse_args()
    if not given.table:
        kinds = [kind for kind in KINDS if given.only in kind]
        collect_outcomes(kinds, given.comparisons, given.minutes, given.into, given.loops)
    print(outcomes_table(given.into))


if __name__ == "__main__":
    main()

"""Whether the same disk is always proven: many proofs of each of several honest configurations, each a run of its own.

Run from the checkout: `.venv/bin/python -m bench.powercut --ledger DIR/ledger.sqlite [--proofs 20] [--minutes 60]
[--row xfs]`.
It goes on where it stopped: what the ledger has is counted. Each proof is `guestmark powercut` with a new seed.

Aims: equal words in each row, none "lost", at least 200 proofs.
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from guestmark.core.findings import Proof
from guestmark.ledger import open_ledger

_RECORDS, _RANDOM = "30", "60"


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration that keeps everything that it has acknowledged."""

    platform: str
    filesystem: str
    more: tuple[tuple[str, str], ...]

    def settings(self) -> dict[str, str]:
        return {"filesystem": self.filesystem, **dict(self.more)}

    def __str__(self) -> str:
        return " ".join((self.platform, self.filesystem, *(level for _, level in self.more)))


def _rows() -> list[Row]:
    filesystems = ("ext4", "xfs", "btrfs")
    ways = itertools.product(("threads", "io_uring", "native"), ("raw", "qcow2"))
    tcg = [
        Row("tcg", filesystem, (("aio", aio), ("format", form), ("cache", "none")))
        for (aio, form), filesystem in itertools.product(ways, filesystems)
    ]
    return tcg + [Row("uml", filesystem, (("uml_disk", "vhost-user"),)) for filesystem in filesystems]


def _prove_configuration(row: Row, ledger: Path) -> None:
    command = [
        sys.executable, "-m", "guestmark", "powercut", "--on", row.platform, "--records", _RECORDS, "--states", _RANDOM,
        "--ledger", str(ledger),
    ]  # fmt: skip
    for name, level in row.settings().items():
        command += ["--set", f"{name}={level}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=900, check=False)


def _found(rows: list[Row], ledger: Path) -> dict[Row, list[Proof]]:
    found: dict[Row, list[Proof]] = {row: [] for row in rows}
    if not ledger.exists():
        return found
    with open_ledger(ledger) as opened:
        for overview in opened.list_runs():
            run = opened.load_run(overview.id)
            for cell, trial in ((cell, trial) for cell in run.plan.cells for trial in run.trials):
                proof = trial.facts.find_fact(Proof)
                for row in rows:
                    alike = all(cell.factors.get(name) == level for name, level in row.settings().items())
                    if proof is not None and alike and str(cell.platform) == row.platform:
                        found[row].append(proof)
    return found


def _show_tallies(found: dict[Row, list[Proof]]) -> None:
    print(f"{'configuration':40} proofs  {'words':24} states that lose  states a second")
    for row, proofs in found.items():
        words = Counter(str(proof.proven.word) for proof in proofs)
        states = sum(proof.proven.states for proof in proofs)
        losing = sum(proof.proven.losing for proof in proofs)
        rate = states / sum(proof.proven.judge_s for proof in proofs) if proofs else 0.0
        said = ", ".join(f"{word} {count}" for word, count in words.items())
        print(f"{row!s:40} {len(proofs):6}  {said:24} {f'{losing} of {states:,}':>16}  {rate:15.0f}")
    proofs = [proof for some in found.values() for proof in some]
    words = Counter(str(proof.proven.word) for proof in proofs)
    print(f"\n{len(proofs)} proofs: {', '.join(f'{word} {count}' for word, count in words.items())}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--proofs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--row", default="", help="only rows whose name has this in it")
    given = parser.parse_args()
    rows = [row for row in _rows() if given.row in str(row)]
    deadline = time.monotonic() + given.minutes * 60
    counts = {row: len(proofs) for row, proofs in _found(rows, given.ledger).items()}
    while time.monotonic() < deadline:
        row = min(rows, key=lambda row: counts[row])
        if counts[row] >= given.proofs:
            break
        _prove_configuration(row, given.ledger)
        counts[row] += 1
    _show_tallies(_found(rows, given.ledger))


if __name__ == "__main__":
    main()

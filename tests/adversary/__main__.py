"""All attacks on this machine: `.venv/bin/python -m tests.adversary [--write]`, as root; some minutes.

With `--write` the tables of SECURITY.md are made from what was seen, so that the page claims nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from tests.adversary.host import UNCONFINED, WAYS, taken_over
from tests.adversary.kills import MACHINES, WITHIN_S, left_after

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"
# Material of strangers, and the checks that give it to guestmark.
MATERIAL = {
    "bundles: wrong values, sizes, structures, compression": ["tests/unit/test_ledger_intake.py"],
    "ledger files with code, wrong types, damaged pages; commands in them": ["tests/unit/test_ledger_strangers.py"],
    "agents: garbage, silence, endless frames, lies about time and size": ["tests/unit/test_agent_hostile.py"],
    "ssh peers: endless greetings and errors, garbage, talkative logins": [
        "tests/faults/test_ssh_faults.py", "-k", "garbage or endless or login",
    ],
    "labels, names and output with escape sequences and markup": [
        "tests/unit/test_cli_hostile.py", "tests/unit/test_report_hostile.py",
    ],
}  # fmt: skip
BEGIN, END = "<!-- what was seen: `python -m tests.adversary --write` -->", "<!-- end of what was seen -->"
NOT_HERE = "–"  # not even without a cage
REFUSED, REACHED, LEFT, FAILED = "refused", "**reached**", "**left**", "**only**"


def attempts_table() -> list[str]:
    """What a hypervisor that was taken over could reach, by how it was started."""
    seen = {name: taken_over(way) for name, way in WAYS.items()}
    rows = ["| an attempt by its own code | " + " | ".join(seen) + " |", "| --- " * (len(seen) + 1) + "|"]
    for attempt in next(iter(seen.values())):
        cells = [
            REACHED if found[attempt] == "reached" else NOT_HERE if name == UNCONFINED else REFUSED
            for name, found in seen.items()
        ]
        rows.append(f"| {attempt} | " + " | ".join(cells) + " |")
    return rows


def kills_table() -> list[str]:
    """What was left of each machine."""
    blows = list(dict.fromkeys(blow for machine in MACHINES.values() for blow in machine.blows))
    rows = [
        f"| at once | {' | '.join(f'left of {name} after {WITHIN_S:g} s' for name in MACHINES)} |",
        "| --- " * (len(MACHINES) + 1) + "|",
    ]
    for blow in blows:
        left = [left_after(machine, blow) if blow in machine.blows else None for machine in MACHINES.values()]
        print(blow, left, flush=True)
        said = ["" if one is None else LEFT if one else "nothing" for one in left]
        rows.append(f"| {blow} | " + " | ".join(said) + " |")
    return rows


def material_table() -> list[str]:
    """How many of the checks held, by what was given."""
    rows = ["| given | held | tested by |", "| --- | --- | --- |"]
    for name, arguments in MATERIAL.items():
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", f"--junitxml={report.name}", *arguments],
                cwd=PAGE.parent, stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            (found,) = ElementTree.parse(report.name).iter("testsuite")
        counts = {key: int(found.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
        tried = counts["tests"] - counts["skipped"]
        held = tried - counts["failures"] - counts["errors"]
        files = ", ".join(f"`{word}`" for word in arguments if word.startswith("tests/"))
        rows.append(
            f"| {name} | {f'all {tried}' if held == tried > 0 else f'{FAILED} {held} of {tried}'} | {files} |"
        )
        print(rows[-1], flush=True)
    return rows


def written() -> dict[str, list[str]]:
    """The rows of the page's tables, by their first cells."""
    section = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows if set(row[0]) != {"-"}}


def main() -> int:
    """Prints all tables; exits with 1 if something was left, or did not hold."""
    parser = argparse.ArgumentParser(prog="tests.adversary", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="make the tables of SECURITY.md from what is seen"
    )
    given = parser.parse_args()
    attempts = attempts_table()
    print("\n".join(attempts), flush=True)
    kills = kills_table()
    material = material_table()
    if given.write:
        where = f"Seen on Linux {os.uname().release}, {os.uname().machine}, as root and as another user."
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(
            "\n".join([before + BEGIN, where, "", *attempts, "", *kills, "", *material, "", END + after])
        )
    return int(any(LEFT in row for row in kills) or any(FAILED in row for row in material))


if __name__ == "__main__":
    sys.exit(main())

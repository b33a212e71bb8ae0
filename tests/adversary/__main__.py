"""All attacks on this machine: `.venv/bin/python -m tests.adversary [--write]`, as root; some minutes.

With `--write` the tables of SECURITY.md are made from what was seen, so that the page claims nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

from tests.adversary.host import UNCONFINED, WAYS, taken_over
from tests.adversary.kills import MACHINES, WITHIN_S, left_after

PAGE = Path(__file__).resolve().parents[2] / "SECURITY.md"
BEGIN, END = "<!-- what was seen: `python -m tests.adversary --write` -->", "<!-- end of what was seen -->"
NOT_HERE = "–"  # not even without a cage
REFUSED, REACHED, LEFT = "refused", "**reached**", "**left**"


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


def written() -> dict[str, list[str]]:
    """The rows of the page's tables, by their first cells."""
    section = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1:] for row in rows if set(row[0]) != {"-"}}


def main() -> int:
    """Prints both tables; exits with 1 if something was left."""
    parser = argparse.ArgumentParser(prog="tests.adversary", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="make the tables of SECURITY.md from what is seen"
    )
    given = parser.parse_args()
    attempts = attempts_table()
    print("\n".join(attempts), flush=True)
    kills = kills_table()
    if given.write:
        where = f"Seen on Linux {os.uname().release}, {os.uname().machine}, as root and as another user."
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text("\n".join([before + BEGIN, where, "", *attempts, "", *kills, "", END + after]))
    return int(any(LEFT in row for row in kills))


if __name__ == "__main__":
    sys.exit(main())

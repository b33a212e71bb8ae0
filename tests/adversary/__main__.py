"""All attacks on this machine: `.venv/bin/python -m tests.adversary [--write] [PART …]`, as root; some minutes.

With `--write` the results are kept, and the tables of docs/reference/confinement.md are made from them. Parts that are
left out stay as they were seen on this kernel.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

from guestmark.platforms.sandbox.runtimes import RUNTIMES
from tests.adversary.host import OWN, UNCONFINED, WAYS, in_sandbox, taken_over
from tests.adversary.kills import MACHINES, WITHIN_S, left_after
from tests.adversary.results import PAGE, Held, Outcome, Results, this_kernel

# Material of strangers, and the checks that give it to guestmark.
MATERIAL = {
    "bundles: wrong values, sizes, structures, compression": ["tests/unit/ledger/test_intake.py"],
    "ledger files with code, wrong types, damaged pages; commands in them": ["tests/unit/ledger/test_strangers.py"],
    "agents: garbage, silence, endless frames, lies about time and size": ["tests/unit/agent/test_hostile.py"],
    "hypervisors: monitors that lie; links, pipes and devices in place of files": [
        "tests/unit/platforms/test_hypervisor_hostile.py"
    ],
    "ssh peers: endless greetings and errors, garbage, talkative logins": [
        "tests/faults/test_ssh_faults.py", "-k", "garbage or endless or login",
    ],
    "labels, names and output with escape sequences and markup": [
        "tests/unit/cli/test_hostile.py", "tests/unit/report/test_hostile.py",
    ],
}  # fmt: skip


def outcomes(name: str) -> dict[str, Outcome]:
    """What became of each attempt of a hypervisor that was started in the way of that name."""
    not_reached = Outcome.NOT_HERE if name == UNCONFINED else Outcome.REFUSED
    return {
        attempt: Outcome.REACHED if said == "reached" else not_reached
        for attempt, said in taken_over(WAYS[name]).items()
    }


def escapes(name: str) -> dict[str, Outcome]:
    """What became of each attempt of a program in that sandbox."""
    outcome = {"reached": Outcome.REACHED, OWN: Outcome.OWN}
    return {attempt: outcome.get(said, Outcome.REFUSED) for attempt, said in in_sandbox(name).items()}


def _sandboxes() -> dict[str, dict[str, Outcome]]:
    seen = {f"`{name}`": escapes(name) for name in RUNTIMES}
    return {attempt: {name: found[attempt] for name, found in seen.items()} for attempt in seen["`bwrap`"]}


def _attempts() -> dict[str, dict[str, Outcome]]:
    seen = {name: outcomes(name) for name in WAYS}
    return {attempt: {name: found[attempt] for name, found in seen.items()} for attempt in seen[UNCONFINED]}


def _kills() -> dict[str, dict[str, Outcome]]:
    found: dict[str, dict[str, Outcome]] = {}
    for name, machine in MACHINES.items():
        for blow in machine.blows:
            left = left_after(machine, blow)
            found.setdefault(str(blow), {})[name] = Outcome.LEFT if left else Outcome.NOTHING
            print(f"{name}: {blow}: {left or 'nothing'}", flush=True)
    return found


def _material() -> dict[str, Held]:
    found = {}
    for name, arguments in MATERIAL.items():
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", f"--junitxml={report.name}", *arguments],
                cwd=PAGE.parents[2], stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            (suite,) = ElementTree.parse(report.name).iter("testsuite")
        counts = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
        tried = counts["tests"] - counts["skipped"]
        files = tuple(word for word in arguments if word.startswith("tests/"))
        found[name] = Held(tried - counts["failures"] - counts["errors"], tried, files)
        print(name, found[name], flush=True)
    return found


_PARTS = ("attempts", "sandboxes", "kills", "material")


def main() -> int:
    """Prints the tables; exits with 1 if something was left, or did not hold."""
    parser = argparse.ArgumentParser(prog="tests.adversary", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(_PARTS)}; default: all")
    parser.add_argument(
        "--write", action="store_true", help="keep the results, and make the tables of confinement.md"
    )
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = given.parts or list(_PARTS)
    results = Results(this_kernel(), WITHIN_S)
    kept = Results.kept()
    if set(parts) <= {"sandboxes", "kills"} or (
        len(set(parts)) < len(_PARTS) and kept.kernel == results.kernel
    ):
        results = kept
    on = "" if results.kernel == this_kernel() else this_kernel()
    results = Results(
        results.kernel,
        WITHIN_S,
        _attempts() if "attempts" in parts else results.attempts,
        _sandboxes() if "sandboxes" in parts else results.sandboxes,
        _kills() if "kills" in parts else results.kills,
        _material() if "material" in parts else results.material,
        on if "sandboxes" in parts else results.sandboxes_kernel,
        on if "kills" in parts else results.kills_kernel,
    )
    print(results.section())
    if given.write:
        results.keep()
    return 0 if results.is_safe else 1


if __name__ == "__main__":
    sys.exit(main())

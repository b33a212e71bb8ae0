"""Compares two commands whose difference is known: by guestmark, and by its peers in the same time."""

import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.truth import peers

from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.platforms import registry
from guestmark.stats import Verdict, half_width

_CHECKOUT = Path(__file__).resolve().parents[2]
UNITS = 10_000_000  # some 20 ms of a processor of 2026
ITERATIONS = 5
BLOCKS = {"host": 10, "uml": 8, "tcg": 8}


@dataclass(frozen=True, slots=True)
class Scenario:
    """B runs `more` of A's work, or twice the work in one start of `one_in`; with `both`, A does so as well.

    `beside` has a command of five times the length measured between them.
    """

    name: str
    more: float = 0.0
    threads: int = 1
    one_in: int = 0
    both: bool = False
    beside: bool = False

    @property
    def differs(self) -> bool:
        return self.more > 0 or (self.one_in > 0 and not self.both)

    def commands(self) -> list[list[str]]:
        """Return the commands A and B, and those measured beside them."""

        def spin(units: float, *rest: int) -> list[str]:
            return [str(peers.BUILD / "spin"), str(round(units)), *map(str, rest)]

        extra = (self.threads, self.one_in) if self.one_in else (self.threads,)
        a = spin(UNITS, *(extra if self.both else (self.threads,)))
        b = spin(UNITS * (1 + self.more), *extra)
        return [a, b, *([spin(5 * UNITS, self.threads)] if self.beside else [])]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("A/A"),
        Scenario("A/A beside ×5", beside=True),
        Scenario("A/A, 2 threads", threads=2),
        Scenario("A/A, ×2 in every other start", one_in=2, both=True),
        Scenario("+1 %", 0.01),
        Scenario("+2 %", 0.02),
        Scenario("+5 %", 0.05),
        Scenario("+5 %, 2 threads", 0.05, threads=2),
        Scenario("×2 in one start of 10", one_in=10),
        Scenario("×2 in one start of 20", one_in=20),
    )
}


def plan(scenario: Scenario, platform: str) -> str:
    """Return the plan as a user would write it."""
    workloads = "".join(
        f"[workloads.{name}]\nkind = 'exec'\nparams.command = {json.dumps(command)}\n"
        for name, command in zip("abc", scenario.commands(), strict=False)
    )
    return f"""schema = "guestmark-plan/1"
name = "truth"
title = "Is a known difference found, and no other?"
platforms = ["{platform}"]
baseline = {{ workload = "a" }}
compare_within = ["platform"]
metrics = ["wall_s"]
{workloads}[repetition]
warmup = 1
iterations = {ITERATIONS}
"""


def _typed(scenario: Scenario, platform: str, scratch: Path, *options: str) -> list[str | Path]:
    """Return what a user types: on the host two commands and nothing else, which takes 3 s for each of them."""
    if platform == "host" and not scenario.beside:
        named = [word for name in "ab" for word in ("-n", name)]
        a, b = scenario.commands()
        return ["exec", *named, *options, "--", *a, "---", *b]
    (scratch / "plan.toml").write_text(plan(scenario, platform))
    return ["run", scratch / "plan.toml", "--blocks", str(BLOCKS[platform]), *options]


def guestmark(scenario: Scenario, platform: str, seed: int) -> dict[str, Any]:
    """Run the command line; returns its verdict and its duration."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="guestmark-truth-") as name:
        scratch = Path(name)
        options = ("--seed", str(seed), "--quiet", "--json", "-", "--ledger", str(scratch / "ledger.sqlite"))
        done = subprocess.run(
            [_CHECKOUT / "guestmark", *_typed(scenario, platform, scratch, *options)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        took = time.monotonic() - began
    if done.returncode != 0:
        raise SystemExit(f"guestmark: status {done.returncode}\n{done.stderr}")
    return judge_output(json.loads(done.stdout)) | {"seconds": took}


def judge_output(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document's verdicts on typical run, total and slow runs, and the first that claims a difference."""
    cells = {cell["id"].split()[0]: cell for cell in document["cells"]}
    headline = cells["b"]["vs_baseline"]["wall_s"]
    answers = cells["b"]["answers"]["wall_s"]
    said = {
        name: (answers[name] or {}).get("verdict", Verdict.INCONCLUSIVE)
        for name in ("typical", "total", "slow")
    }
    said["typical"] = headline["verdict"]
    claims = [verdict for verdict in said.values() if verdict in (Verdict.FASTER, Verdict.SLOWER)]
    low, high = headline["ci"]
    return {
        "ratio": headline["ratio"],
        "half_width": half_width((low, high)) if low else None,
        "claim": claims[0] if claims else "",
        "verdicts": said,
        "typical_s": statistics.median(
            statistics.median(trial["iterations"]["wall_s"]) for trial in cells["a"]["trials"]
        ),
        "reason": headline["reason"],
    }


def run_contest(scenario: Scenario, platform: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run one contest; returns what each peer concludes in `seconds`, booting included."""
    commands = scenario.commands()
    began = time.monotonic()
    weight = sum(5.0 if i == 2 else 1 + scenario.more + (1 / scenario.one_in if scenario.one_in else 0)
                 for i in range(len(commands)))  # fmt: skip
    order = [0, 2, 1] if len(commands) == 3 else [0, 1]

    def runs(left: float, one: float) -> int:
        return max(peers.SAMPLES, math.floor(left / (weight * one)))

    listed = [commands[i] for i in order]
    if platform == "host":
        pilot = statistics.median(peers.on_host(commands[:1], 3)[0])
        times = peers.on_host(listed, runs(seconds - (time.monotonic() - began), pilot))
    else:
        (spec,) = parse_platforms([platform])
        cell = Cell("bench", WorkloadSpec("bench"), spec, {}, processors=1)
        with registry.get_platform(spec).start(cell) as machine:
            pilot = statistics.median(peers.in_guest(machine, commands[:1], 3)[0])
            times = peers.in_guest(machine, listed, runs(seconds - (time.monotonic() - began), pilot))
    took = time.monotonic() - began
    by_command = dict(zip(order, times, strict=True))
    found: dict[str, Any] = {"seconds": took, "runs": len(times[0])}
    for name, judge in peers.PEERS.items():
        finding = judge(by_command[0], by_command[1])
        if finding is not None:
            found[name] = asdict(finding)
    return found


def describe_contest(commands: Sequence[Sequence[str]]) -> list[str]:
    """Return the commands as records show them: without the directory of this checkout."""
    return [" ".join([Path(command[0]).name, *command[1:]]) for command in commands]

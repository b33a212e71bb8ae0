"""Simulate how often a run that equal machines share claims a difference falsely: `python bench/statistics/shared.py`.

Each simulated run goes through the whole analysis. A machine's ratio differs from that of the class, which is 1;
`heterogeneity` is the standard deviation of that as a multiple of the standard error of one machine's blocks.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import guestmark.core.single_threaded_blas  # noqa: F401, I001  (before numpy)
import math

import numpy as np

from guestmark.core.findings import Facts, MeasuredOn, add_fact
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Plan, Policy, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import Verdict

WALL = Metric("wall_s", "s")
SPEC = WorkloadSpec("exec", {}, "true")
PLAN = Plan("shared", (Cell("a", SPEC, HOST, {}, True), Cell("b", SPEC, HOST, {})), Policy(), (WALL,))
NOISE = 0.02  # standard deviation of the log of one trial
SIMS = 400


def run(
    chance: np.random.Generator, shares: list[int], heterogeneity: float, effect: float = 0.0
) -> list[Trial]:
    """Make the trials of a run of which machine i measures `shares[i]` blocks."""
    blocks = sum(shares)
    between = heterogeneity * NOISE * math.sqrt(2 / (blocks / len(shares)))
    trials, block = [], 0
    for number, share in enumerate(shares):
        ratio, level = effect + chance.normal(0, between), chance.normal(0, 0.05)
        facts = add_fact(Facts(), MeasuredOn(machine=f"m{number}"))
        for _ in range(share):
            for order, cell in enumerate(("a", "b")):
                log = level + (ratio if cell == "b" else 0.0) + chance.normal(0, NOISE)
                value = Measurement(WALL, math.exp(log), (math.exp(log),))
                trials.append(Trial(cell, block, order, TrialStatus.OK, measurements=(value,), facts=facts))
            block += 1
    return trials


def main() -> None:
    """Print one line for each case."""
    print(
        "| blocks of each machine | heterogeneity | false claims | as one machine | width, to one machine's |"
    )
    print("| --- | ---: | ---: | ---: | ---: |")
    for shares in ([6] * 4, [3] * 4, [12] * 4, [3] * 8, [9, 7, 5, 3], [12] * 2):
        for heterogeneity in (0.0, 1.0, 3.0):
            chance = np.random.default_rng(11)
            claims = blind = 0
            widths = []
            for _ in range(SIMS):
                trials = run(chance, shares, heterogeneity)
                here, there = (_found(each) for each in (trials, [_alone(trial) for trial in trials]))
                claims += here[0]
                blind += there[0]
                widths.append(here[1] / there[1])
            print(
                f"| {', '.join(map(str, shares))} | {heterogeneity:g} | {claims / SIMS:.3f} | {blind / SIMS:.3f} | "
                f"{float(np.median(widths)):.2f} |",
                flush=True,
            )


def _alone(trial: Trial) -> Trial:
    from dataclasses import replace

    return replace(trial, facts=Facts())


def _found(trials: list[Trial]) -> tuple[bool, float]:
    comparison = analyse_run(PLAN, trials).workloads[0].cells[1].comparison[WALL.name]
    assert comparison.ci is not None
    claimed = comparison.verdict in {Verdict.FASTER, Verdict.SLOWER}
    return claimed, math.log(comparison.ci[1] / comparison.ci[0])


if __name__ == "__main__":
    main()

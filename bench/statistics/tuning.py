"""Races with known winners, simulated: `python -m bench.statistics.tuning [--runs N] [--seed S] [--only TEXT]
[--limit SHARE]`.

Matrices of 48 cells (factors of 2, 2, 3 and 4 levels) with random main effects and interactions, one cell planted as
the best. Counted are the runs whose final set holds the true best, or one within the margin of it, those with such a
one in front, those that call theirs the best, and wrongly so, those that drop such a one after measuring it, and the
trials that were used, as a share of the full matrix in as many blocks as a race may take.
With a limit each race has the time of that share of the full matrix (all trials take equally long), as with
`--time-limit`.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from guestmark.core.metric import Better
from guestmark.core.tuning import Candidate, Settings
from guestmark.stats.tuning import race
from guestmark.stats.tuning.race import DropReason

LEVELS = {"a": 2, "b": 2, "c": 3, "d": 4}
SETTINGS = Settings("wall_s", Better.LOWER)
Noise = Callable[[random.Random, str, int], float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """How trials scatter and cells differ: standard deviations of logs."""

    name: str
    noise: float = 0.03
    spread: tuple[float, float] = (1.0, 1.0)  # of the noise of cells, relative
    host: float = 0.0  # of an autocorrelated load that all trials share, in their order
    spikes: float = 0.0  # share of trials that take twice as long
    main: float = 0.15
    interactions: float = 0.02
    lead: float = 0.02  # of the planted winner before the next best


SCENARIOS = (
    Scenario("normal noise of 3 %"),
    Scenario("no lead: several are best", lead=0.0),
    Scenario("strong interactions", interactions=0.15),
    Scenario("noise unequal, 1 to 8 %", spread=(0.33, 2.7)),
    Scenario("autocorrelated load", host=0.1),
    Scenario("5 % of trials twice as long", spikes=0.05),
    Scenario("nothing matters", main=0.0, interactions=0.0, lead=0.0),
    Scenario("noise of 15 %", noise=0.15),
    Scenario("noise of 15 %, weak effects", noise=0.15, main=0.05, interactions=0.01),
    Scenario("nothing matters, 30 %", noise=0.3, main=0.0, interactions=0.0, lead=0.0),
    Scenario("nothing, noise 3 to 60 %", noise=0.2, spread=(0.15, 3.0), main=0.0, interactions=0.0, lead=0.0),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one race."""

    found: bool  # the true best, or one within the margin, is in the final set
    share: float  # of the full matrix's trials
    size: int  # of the final set
    first: bool  # whether the one that is named best is within the margin of it
    alone: bool  # whether the one in front is called the best
    false: bool  # although another one is better
    wrongly: bool  # whether one within the margin of it was dropped by the race's own rule


def simulate_races(
    scenario: Scenario, seed: int, settings: Settings = SETTINGS, limit: float | None = None
) -> Outcome:
    """Simulate one race over one random matrix; `limit` is its time as a share of the full matrix's."""
    generator = random.Random(f"{scenario.name}:{seed}")
    candidates, truth = _random_matrix(scenario, generator)
    scatter = {name: scenario.noise * generator.uniform(*scenario.spread) for name in truth}
    values: dict[int, dict[str, float]] = {}
    ended: dict[int, frozenset[str]] = {}
    load, trials = 0.0, 0
    # The full matrix at the same confidence: every cell in every block, and the same confirmation.
    full = len(candidates) * settings.max_blocks + settings.confirm * settings.finalists
    while True:
        spent = {block: float(len(row)) for block, row in values.items()}
        budget = None if limit is None else race.TimeBudget(limit * full, spent)
        state = race.run_race(settings, candidates, values, ended, budget=budget)
        if not state.due:
            break
        row = {}
        for name in generator.sample(state.due, len(state.due)):
            load = 0.8 * load + generator.gauss(0, scenario.host * 0.6)
            spike = 0.69 if generator.random() < scenario.spikes else 0.0
            row[name] = truth[name] + generator.gauss(0, scatter[name]) + load + spike
            trials += 1
        values[state.block] = row
        ended[state.block] = frozenset(row)
    good = {
        name for name, value in truth.items() if value <= min(truth.values()) + math.log1p(settings.margin)
    }
    dropped = {entry.id for entry in state.dropped if entry.kind is DropReason.RACED}
    measured = {
        *state.alive,
        *dropped,
        *(entry.id for entry in state.dropped if entry.kind is DropReason.CONFIRMED),
    }
    return Outcome(
        not good.isdisjoint(state.alive), trials / full, len(state.alive), state.leader in good, state.leads_alone,
        state.leads_alone and truth[state.leader] > min(truth[name] for name in measured),
        not good.isdisjoint(dropped),
    )  # fmt: skip


def _random_matrix(scenario: Scenario, generator: random.Random) -> tuple[list[Candidate], dict[str, float]]:
    main = {
        (name, level): generator.gauss(0, scenario.main)
        for name, count in LEVELS.items()
        for level in range(count)
    }
    pairs: dict[tuple[str, int, str, int], float] = {}
    candidates, truth = [], {}
    for levels in itertools.product(*(range(count) for count in LEVELS.values())):
        cell = dict(zip(LEVELS, levels, strict=True))
        name = " ".join(f"{factor}={level}" for factor, level in cell.items())
        effect = sum(main[item] for item in cell.items())
        for (one, x), (other, y) in itertools.combinations(cell.items(), 2):
            if (one, x, other, y) not in pairs:
                pairs[one, x, other, y] = generator.gauss(0, scenario.interactions)
            effect += pairs[one, x, other, y]
        candidates.append(Candidate(name, {factor: str(level) for factor, level in cell.items()}))
        truth[name] = effect
    if scenario.lead:
        winner = generator.choice(sorted(truth, key=truth.__getitem__)[:12])
        truth[winner] = min(truth.values()) - scenario.lead
    return candidates, truth


def main() -> None:
    """Print a line for each scenario."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    parser.add_argument("--limit", type=float, help="time for each race, as a share of the full matrix's")
    given = parser.parse_args()
    for scenario in SCENARIOS:
        if given.only not in scenario.name:
            continue
        outcomes = [
            simulate_races(scenario, given.seed + number, limit=given.limit) for number in range(given.runs)
        ]
        found = statistics.fmean(outcome.found for outcome in outcomes)
        first = statistics.fmean(outcome.first for outcome in outcomes)
        share = statistics.fmean(outcome.share for outcome in outcomes)
        size = statistics.median(outcome.size for outcome in outcomes)
        alone = statistics.fmean(outcome.alone for outcome in outcomes)
        false = statistics.fmean(outcome.false for outcome in outcomes)
        wrongly = statistics.fmean(outcome.wrongly for outcome in outcomes)
        print(
            f"{scenario.name:28} found {found:.3f}  in front {first:.3f}  called best {alone:.3f}, falsely {false:.3f} "
            f" trials {share:.3f} of the full matrix  final set {size:g}  as good dropped {wrongly:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

# ruff: noqa: A005  (a directory of scripts, nothing imports it)
"""Print how `guestmark.stats` does against simulated hosts, as the Markdown that RESULTS.md holds.

`python bench/statistics [--sims N] [--jobs N] > bench/statistics/RESULTS.md`: about a quarter of an hour on one core.
A figure outside what is wanted is marked with *.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import guestmark.core.single_threaded_blas  # noqa: F401, I001  (before numpy)
import numpy as np
from acceptance import (
    MARGIN,
    Outcome,
    Rates,
    Rule,
    candidates,
    false_positives_at_first_p,
    inside_the_floor,
    many_cells,
    whole_rule,
)
from scenarios import BY_NAME, TAILS
from warmup import CURVES, bias, disagreement

CANDIDATES = ("iid", "bimodal", "regime", "spikes", "heavy tails", "one-sided spikes", "x2 in 5 % of trials")


def number(value: float, low: float = 0.0, high: float = 1.0) -> str:
    text = f"{value:.3f}".removeprefix("0")
    return text if low <= value <= high else f"{text}*"


def row(*fields: str) -> None:
    print("| " + " | ".join(fields) + " |", flush=True)


def heading(*fields: str) -> None:
    row(*fields)
    row(*("---" for _ in fields))


def wanted(rates: Rates) -> str:
    return number(rates.claims, 0, 0.05)


def coverage(rates: Rates, what: str = "covered") -> str:
    return number(rates.share(what), 0.93, 1)


Task = tuple[str, float, int, int, Rule]  # as `whole_rule` takes them, the scenario by its name


def simulate(task: Task) -> Outcome:
    name, effect, sims, seed, rule = task
    return whole_rule(BY_NAME[name], effect, sims, seed, rule)


def print_rule(sims: int, run: Callable[[list[Task]], list[Outcome]]) -> None:
    """Equal cells, cells that differ by the margin and ×5 as the rule stops; cells 5 % apart at 20 blocks."""
    names = list(BY_NAME)
    tasks: list[Task] = []
    for seed, name in enumerate(names):
        tasks += [
            (name, 0.0, sims, 100 * seed, Rule()),
            (name, float(np.log1p(MARGIN)), sims, 100 * seed + 1, Rule()),
            (name, float(np.log(5)), sims // 4, 100 * seed + 2, Rule()),
            (name, float(np.log(1.05)), sims // 4, 100 * seed + 3, Rule(blocks=20)),
        ]
    tails = [scenario.name for scenario in TAILS]
    fixed: list[Task] = [
        (name, 0.0, sims // 4, 7_000 + seed, Rule(blocks=blocks))
        for seed, name in enumerate(tails)
        for blocks in (20, 40)
    ]
    outcomes = run([*tasks, *fixed])
    results = {name: tuple(outcomes[4 * i : 4 * i + 4]) for i, name in enumerate(names)}
    later = {name: outcomes[len(tasks) + 2 * i : len(tasks) + 2 * i + 2] for i, name in enumerate(tails)}
    print("## The whole rule\n\n### Typical run\n")
    print(
        'False claims on equal cells; coverage on equal cells and at ×5; "no difference" of cells that differ by the'
    )
    print("margin; power at +5 % in 20 blocks; blocks used on equal cells and at ×5; verdicts taken back.\n")
    heading(
        "scenario",
        "false claims",
        "coverage",
        "at ×5",
        'false "no difference"',
        "power",
        "blocks",
        "at ×5",
        "taken back",
    )
    for name, (equal, margin, large, power) in results.items():
        row(
            name,
            wanted(equal.typical),
            coverage(equal.typical),
            coverage(large.typical),
            number(margin.typical.share("equal"), 0, 0.05),
            number(power.typical.share("slower")),
            f"{equal.blocks:.1f}",
            f"{large.blocks:.1f}",
            number(equal.refused),
        )
    print("\n### Total\n")
    print(
        "Coverage of the interval of what was seen, and of that with what could not have been seen. In the scenarios"
    )
    print(
        "with tails the totals do differ: there, claims in the wrong direction, and power at equal typical runs.\n"
    )
    heading(
        "scenario",
        "false claims",
        "coverage, seen",
        "with unseen",
        "at ×5, seen",
        "with unseen",
        'false "no difference"',
        "power",
    )
    for name, (equal, margin, large, power) in results.items():
        tail = name in tails
        row(
            name,
            number(equal.total.share("faster"), 0, 0.05) if tail else wanted(equal.total),
            coverage(equal.total),
            coverage(equal.total, "covered_with_unseen"),
            coverage(large.total),
            coverage(large.total, "covered_with_unseen"),
            number((equal if tail else margin).total.share("equal"), 0, 0.05),
            number((equal if tail else power).total.share("slower")),
        )
    print("\n### Slow runs\n")
    print(
        "Power in the scenarios with tails, cells with equal typical runs, as the run stops and at 20 and 40 blocks.\n"
    )
    heading(
        "scenario", "false claims", "coverage", 'false "no difference"', "power", "20 blocks", "40 blocks"
    )
    for name, (equal, *_) in results.items():
        slow = equal.slow
        if name not in tails or name == "one-sided spikes":
            row(name, wanted(slow), coverage(slow), "-", "-", "-", "-")
            continue
        row(
            name,
            number(slow.share("faster"), 0, 0.05),
            coverage(slow),
            number(slow.share("equal"), 0, 0.05),
            number(slow.share("slower")),
            *(number(outcome.slow.share("slower")) for outcome in later[name]),
        )


def print_candidates(sims: int) -> None:
    print("\n## How the typical run's method was chosen\n")
    print(
        "False claims / coverage of what each estimates / power at +5 % / median half-width, single looks, no floor.\n"
    )
    names = list(candidates(BY_NAME["iid"], 10, 10, 0))
    heading("scenario, blocks", *names)
    for seed, name in enumerate(CANDIDATES):
        for blocks in (8, 10, 20):
            found = candidates(BY_NAME[name], blocks, sims, 1_000 + 10 * seed + blocks)
            shown = (
                f"{number(c.false)} / {number(c.coverage, 0.93, 1)} / {number(c.power)} / {c.width:.3f}"
                for c in found.values()
            )
            row(f"{name}, {blocks}", *shown)


def print_looks(sims: int, run: Callable[[list[Task]], list[Outcome]]) -> None:
    print("\n## The first look and the precision\n")
    looks = [(first, precision) for first in (6, 8, 10) for precision in (0.02, 0.01)]
    heading("scenario", *(f"first {first}, ±{precision:.0%}: coverage, blocks" for first, precision in looks))
    names = ("iid", "AR .8", "bimodal", "heavy tails", "unequal variance")
    rules = [Rule(first=first, precision=precision, cap=60) for first, precision in looks]
    tasks: list[Task] = [
        (name, 0.0, sims // 4, 3_000 + seed, rule) for seed, name in enumerate(names) for rule in rules
    ]
    outcomes = iter(run(tasks))
    for name in names:
        row(
            name,
            *(
                f"{coverage(outcome.typical)}, {outcome.blocks:.1f}"
                for outcome in itertools.islice(outcomes, len(rules))
            ),
        )
    print(
        "\nFalse claims on equal cells if p < .05 were looked for after every block from 6 to 60: "
        + number(false_positives_at_first_p(sims, 1), 0, 0.05)
    )


def print_families(sims: int) -> None:
    print("\n## Many cells, many metrics\n")
    print(
        "False discovery rate [0, .05], tables with a false claim, power, tables with one if nothing were adjusted.\n"
    )
    heading("table", "FDR", "any false", "power", "unadjusted")
    for name, blocks, options in (
        ("40 cells, 8 of them 2 % slower, 10 blocks", 10, {}),
        ("the same, 20 blocks", 20, {}),
        ("40 equal cells, 12 blocks", 12, {"slower": 0}),
        ("2 equal cells, 5 secondary metrics, 12 blocks", 12, {"cells": 2, "slower": 0, "metrics": 5}),
        ("4 cells, one 5 % slower, 5 metrics, 12 blocks", 12, {"cells": 4, "slower": 1, "metrics": 5, "effect": 0.05}),
        ("10 cells, 2 of them 5 % slower, Pareto 2.5, 20 blocks", 20,
         {"cells": 10, "slower": 2, "effect": 0.05, "scenario": BY_NAME["heavy tails"]}),
    ):  # fmt: skip
        family = many_cells(blocks, sims // 2, blocks, **options)
        row(
            name,
            number(family.fdr, 0, 0.05),
            number(family.any_false),
            number(family.power) if options.get("slower", 1) else "-",
            number(family.uncorrected_any_false),
        )


def print_floor(sims: int) -> None:
    print("\n## The noise floor and earlier runs\n")
    print("Share of equal cells within the floor, 12 blocks; wanted: .95 or more.\n")
    heading("each cell of a run is off by", "no earlier run", "5", "20")
    for between in (0.0, 0.01, 0.03):
        shares = (inside_the_floor(between, earlier, 12, sims // 2, 9) for earlier in (0, 5, 20))
        row(f"{between:.0%}", *(number(share, 0.95, 1) for share in shares))


def print_warmup(sims: int) -> None:
    print("\n## The warm-up\n")
    print(
        "If it were chosen from what a run shows: pairs of runs of one experiment that choose differently, three"
    )
    print(
        "cells, without and with spikes in 10 % of the runs. Beside it, how much the median of seven iterations is"
    )
    print("too long after one warm-up, which is what every run has.\n")
    sizes = ((1, 5), (1, 8), (10, 8))
    heading("runs on a fresh machine", *(f"{blocks} x {runs}" for blocks, runs in sizes), "after one")
    for seed, (name, curve) in enumerate(CURVES.items()):
        both = [
            tuple(disagreement(curve, (blocks, runs), spikes, sims, seed) for spikes in (0.0, 0.1))
            for blocks, runs in sizes
        ]
        off = [bias(curve, 1, spikes, 10 * sims, seed) for spikes in (0.0, 0.1)]
        row(
            name,
            *(f"{number(plain)}, {number(spiked)}" for plain, spiked in both),
            ", ".join(f"{each:+.1%}" for each in off),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sims", type=int, default=2_000, help="simulated runs per figure")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    options = parser.parse_args()
    sims = options.sims
    began = time.monotonic()
    print("# What the statistics do on simulated hosts\n")
    print(
        f"{sims:,} simulated runs per figure of the whole rule, seven iterations a trial, margin 3 %, up to 40 blocks"
    )
    print(
        "(a quarter of the runs for power, ×5 and looks). A star marks what is not as wanted: false claims and"
    )
    print('false "no difference" ≤ .05, coverage ≥ .93.\n')
    with ProcessPoolExecutor(options.jobs) as pool:

        def run(tasks: list[Task]) -> list[Outcome]:
            return list(pool.map(simulate, tasks))

        print_rule(sims, run)
        print_candidates(sims)
        print_looks(sims, run)
    print_families(sims)
    print_floor(sims)
    print_warmup(sims)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

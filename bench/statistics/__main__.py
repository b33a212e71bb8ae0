# ruff: noqa: A005  (a directory of scripts, nothing imports it)
"""Print how `guestmark.stats` does against simulated hosts: `python bench/statistics [--sims N]`, about six minutes.

A figure outside what is wanted is marked with *; docs/results/statistics.md says why where one is.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from acceptance import (
    coverage_at_stop,
    equivalence,
    false_positives_at_first_p,
    fixed_blocks,
    many_cells,
    verdicts,
)
from scenarios import BY_NAME, ONE_SIDED_SPIKES, QUIET, SCENARIOS

BLOCKS = (6, 10, 20, 30)


def mark(value: float, low: float, high: float, digits: int = 3) -> str:
    text = f"{value:.{digits}f}".removeprefix("0")
    return text + (" " if low <= value <= high else "*")


def row(*fields: str) -> None:
    print(f"{fields[0]:18}" + "".join(f"{field:>9}" for field in fields[1:]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sims", type=int, default=2_000, help="simulated runs per figure")
    sims = parser.parse_args().sims
    began = time.monotonic()

    print(f"{sims} simulated runs per figure, nominal .05 and .95\n")
    print(
        "False positives of the sign-flip test [.035, .065]; coverage of the t interval of the mean [.93, .97]"
    )
    print("and of the median interval [.93, 1], by number of blocks")
    row("", *(f"{what} {k}" for what in ("false", "mean", "med.") for k in BLOCKS))
    for seed, scenario in enumerate((*SCENARIOS, ONE_SIDED_SPIKES)):
        results = [fixed_blocks(scenario, k, sims, 1_000 * seed + k) for k in BLOCKS]
        null = scenario is not ONE_SIDED_SPIKES
        row(
            scenario.name,
            *(mark(r.false_positives, 0.035, 0.065) if null else "-  " for r in results),
            *(mark(r.coverage, 0.93, 0.97) for r in results),
            *(mark(r.median_coverage, 0.93, 1) for r in results),
        )

    print("\nCoverage when stopped at ± 1 % after at least 10 blocks [.93, 1]")
    row("", "coverage", "blocks")
    for seed, scenario in enumerate(SCENARIOS):
        coverage, used = coverage_at_stop(scenario, 0.01, sims, seed)
        row(scenario.name, mark(coverage, 0.93, 1), f"{used:.1f} ")
    row("3 blocks suffice", mark(coverage_at_stop(BY_NAME["iid"], 0.01, sims, 0, first=3)[0], 0.93, 1))
    row("until p < .05", "false", mark(false_positives_at_first_p(sims, 0, BY_NAME["iid"]), 0.035, 0.065))

    print("\n40 cells, 8 of them 2 % slower: false discovery rate [0, .05], tables with a false claim, power")
    row("", "FDR", "any", "power", "raw any")
    for method in ("bh", "holm"):
        for k in (6, 10, 11, 20):
            table = many_cells(QUIET, k, sims, k, method=method)
            row(
                f"{method}, {k} blocks",
                mark(table.fdr, 0, 0.05),
                f"{table.any_false:.3f} ",
                f"{table.power:.3f} ",
                f"{table.uncorrected_any_false:.3f} ",
            )

    print(
        "\nVerdicts of whole runs of 20 blocks with one null pair: power at twice the noise floor [.9, 1], false"
    )
    print(
        "claims [0, .065], runs downgraded without cause; equivalence at ± 3 % claimed at the margin [0, .065]"
    )
    print("and for equal cells")
    row("", "floor", "power", "wrong", "false", "null", "at edge", "equal")
    for seed, scenario in enumerate(SCENARIOS):
        v = verdicts(scenario, 20, sims, seed)
        edge, equal = equivalence(scenario, 20, sims, seed, 0.03)
        row(
            scenario.name,
            f"{v.floor:.4f} ",
            mark(v.power, 0.9, 1),
            mark(v.wrong_way, 0, 0.005),
            mark(v.false_claims, 0, 0.065),
            f"{v.null_differs:.3f} ",
            mark(edge, 0, 0.065),
            f"{equal:.3f} ",
        )
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

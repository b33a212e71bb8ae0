# ruff: noqa: A005  (a directory of scripts, nothing imports it)
"""Print how well `guestmark.stats` works on simulated hosts, as the Markdown that RESULTS.md contains.

`python bench/statistics > bench/statistics/RESULTS.md` takes about 40 minutes on one core. Whole runs are simulated in
pieces: with `--pieces FILE` each is appended to a file as soon as it is done, and after `--minutes` the rest is left
to the next call, which continues from there; the page is printed once no piece is missing. A star marks figures
outside their limits.
"""

import argparse
import json
import re
import sys
import time
import zlib
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import guestmark.core.single_threaded_blas  # noqa: F401, I001  (before numpy)
import sentences
from acceptance import (
    candidates,
    false_positives_at_first_p,
    inside_the_floor,
    many_cells,
    over_runs,
)
from forecasts import AT, RUNS, figures
from scenarios import BY_NAME
from shipped import CASES, Counts, simulate_runs
from warmup import CURVES, bias_after_one, share_of_disagreement

from guestmark.stats.across_runs import FEWEST_IN_DRIFT

CANDIDATES = ("iid", "bimodal", "regime", "spikes", "heavy tails", "one-sided spikes", "x2 in 5 % of trials")


def star_miss(value: float, low: float = 0.0, high: float = 1.0) -> str:
    """Format a share; a star marks a value outside the limits."""
    text = f"{value:.3f}".removeprefix("0")
    return text if low <= value <= high else f"{text}*"


def print_row(*fields: str) -> None:
    print("| " + " | ".join(fields) + " |", flush=True)


def print_heading(*fields: str) -> None:
    print_row(*fields)
    print_row(*("---" for _ in fields))


PIECE = 25  # simulated runs


def simulate_cases(
    sims: int, seed: int, pieces: Path | None, until: float, only: str
) -> dict[str, Counts] | None:
    """Simulate `sims` whole runs of each case, and return the counts; None if the time is up before all are done."""
    found = {name: Counts() for name in CASES if re.search(only, name)}
    done: dict[str, set[int]] = {name: set() for name in found}
    kept = pieces.read_text().splitlines() if pieces is not None and pieces.exists() else []
    for piece in map(json.loads, kept):
        name, first = piece["case"], piece["first"]
        if name in found and piece["seed"] == seed and first not in done[name]:
            done[name].add(first)
            found[name] += Counts(piece["runs"], Counter(piece["found"]))
    for first in range(0, sims, PIECE):
        for name in found:
            if first in done[name]:
                continue
            if time.monotonic() > until:
                return None
            counts = simulate_runs(CASES[name], PIECE, zlib.crc32(name.encode()) + seed, first)
            found[name] += counts
            if pieces is not None:
                piece = {
                    "case": name,
                    "seed": seed,
                    "first": first,
                    "runs": counts.runs,
                    "found": counts.found,
                }
                with pieces.open("a") as stream:
                    stream.write(json.dumps(piece) + "\n")
    return found


def print_whole(results: dict[str, Counts]) -> None:
    """Print the rates of whole runs, through the program's own pilot, analysis and stopping rule."""
    print("## Whole runs, at the counts that are shipped\n")
    print(
        "Each with pilot, warm-up, the null copy that guestmark adds and secondary metrics, to where its rule"
    )
    print("stops it. A report has a false claim if any of its answers, or any metric, is called different.\n")
    print("### Equal cells\n")
    print(
        "Claims of the typical run, of any of four answers, of anything in the report; coverage; blocks; seconds.\n"
    )
    print_heading(
        "cells, command",
        "runs a trial",
        "typical",
        "any answer",
        "any claim",
        "coverage",
        "of the total",
        "typical run alike",
        "blocks",
        "seconds",
    )
    for name, found in results.items():
        if CASES[name].equal:
            claims = (star_miss(found.share(kind), 0, 0.05) for kind in ("typical", "any", "anything"))
            alike = star_miss(found.share("alike"))
            print_row(name, *_counted(found), *claims, *_covered(found), alike, *_cost(found))
    print("\n### Cells that differ\n")
    print(
        'What typical run, total and slow runs find, and "no difference", which is false. The interval of the total'
    )
    print("allows for what so few runs cannot show.\n")
    print_heading(
        "cells, command",
        "runs a trial",
        "typical",
        "total",
        "slow runs",
        "any claim",
        '"no difference"',
        "coverage",
        "of the total",
        "blocks",
        "seconds",
    )
    for name, found in results.items():
        if not CASES[name].equal:
            slower = (star_miss(found.share(f"{kind} slower")) for kind in ("typical", "total", "slow"))
            claimed = star_miss(found.share("with secondary"))
            alike = star_miss(found.share("typical no difference"), 0, 0.05)
            print_row(name, *_counted(found), *slower, claimed, alike, *_covered(found), *_cost(found))


def _counted(found: Counts) -> tuple[str]:
    return (f"{found.share('iterations'):.0f}",)


def _covered(found: Counts) -> tuple[str, str]:
    return star_miss(found.share("covered"), 0.93, 1), star_miss(found.share("total covered"), 0.93, 1)


def _cost(found: Counts) -> tuple[str, str]:
    return f"{found.share('blocks'):.1f}", f"{found.share('seconds'):.0f}"


def print_candidates(sims: int) -> None:
    print("\n## How the typical run's method was chosen\n")
    print(
        "False claims / coverage of what each estimates / power at +5 % / median half-width, single looks, no floor.\n"
    )
    names = list(candidates(BY_NAME["iid"], 10, 10, 0))
    print_heading("scenario, blocks", *names)
    for seed, name in enumerate(CANDIDATES):
        for blocks in (8, 10, 20):
            found = candidates(BY_NAME[name], blocks, sims, 1_000 + 10 * seed + blocks)
            shown = (
                f"{star_miss(c.false)} / {star_miss(c.coverage, 0.93, 1)} / {star_miss(c.power)} / {c.width:.3f}"
                for c in found.values()
            )
            print_row(f"{name}, {blocks}", *shown)


def print_families(sims: int) -> None:
    print("\n## Many cells, many metrics\n")
    print(
        "False discovery rate [0, .05], tables with a false claim, power, tables with one if nothing were adjusted.\n"
    )
    print_heading("table", "FDR", "any false", "power", "unadjusted")
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
        print_row(
            name,
            star_miss(family.fdr, 0, 0.05),
            star_miss(family.any_false),
            star_miss(family.power) if options.get("slower", 1) else "-",
            star_miss(family.uncorrected_any_false),
        )


def print_floor(sims: int) -> None:
    print("\n## The noise floor and earlier runs\n")
    print("Share of equal cells within the floor, 12 blocks; wanted: .95 or more.\n")
    print_heading("each cell of a run is off by", "no earlier run", "5", "20")
    for between in (0.0, 0.01, 0.03):
        shares = (inside_the_floor(between, earlier, 12, sims // 2, 9) for earlier in (0, 5, 20))
        print_row(f"{between:.0%}", *(star_miss(share, 0.95, 1) for share in shares))


def print_over_runs(sims: int) -> None:
    """Print how often `history` and "measured here before" report a change or a drift, truly and falsely."""
    print("\n## Runs over time\n")
    print(
        "Ratios of runs that differ by 2 % (standard deviation) beyond the 1 % of each run: called changed where the"
    )
    print(
        "last did not change, and where it is 10 % higher; called drifting without a drift, and with 10 % in all.\n"
    )
    print_heading("runs", "changed, falsely", "changed by 10 %", "drift, falsely", "drift of 10 %")
    for runs in (4, 5, 6, 8, 10, 20, 40):
        found = over_runs(runs, sims, 20 + runs)
        drifts = (
            (star_miss(found.drifts, 0, 0.05), star_miss(found.drift_found))
            if runs >= FEWEST_IN_DRIFT
            else ("-", "-")
        )
        print_row(f"{runs}", star_miss(found.changed, 0, 0.05), star_miss(found.found), *drifts)


def print_forecasts(sims: int) -> None:
    """Print how often the displayed time left is right."""
    print("\n## The time left\n")
    print(
        "Share of forecasts that hold, by the block that they are made after: one time within a factor of 1.5, a"
    )
    print(
        "range from end to end, either within a block. Before the fourth block there is no estimate. Then how many"
    )
    print("show one time, and how far the ends of the usual range are apart.\n")
    print_heading("run", *(f"block {blocks}" for blocks in AT), "all", "one time", "range")
    for case in RUNS:
        print_row(case.name, *figures(case, sims))


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
    print_heading("runs on a fresh machine", *(f"{blocks} x {runs}" for blocks, runs in sizes), "after one")
    for seed, (name, curve) in enumerate(CURVES.items()):
        both = [
            tuple(share_of_disagreement(curve, (blocks, runs), spikes, sims, seed) for spikes in (0.0, 0.1))
            for blocks, runs in sizes
        ]
        off = [bias_after_one(curve, 1, spikes, 10 * sims, seed) for spikes in (0.0, 0.1)]
        print_row(
            name,
            *(f"{star_miss(plain)}, {star_miss(spiked)}" for plain, spiked in both),
            ", ".join(f"{each:+.1%}" for each in off),
        )


def print_sentences(sims: int) -> None:
    """Print the rates of other sentences: false at most .05, or as the row says."""
    print("\n## Other sentences\n")
    print("How often each is false, and how often it is found where it is true.\n")
    print_heading("sentence", "where", "false", "found")
    for what, where, false, found in sentences.sentence_rows(sims):
        print_row(what, where, *("-" if each is None else star_miss(each) for each in (false, found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sims", type=int, default=500, help="simulated runs per figure at least, in pieces of 25"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="added to that of each case, a checksum of its name"
    )
    parser.add_argument("--pieces", type=Path, help="a file that keeps what was simulated")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which the rest is left")
    parser.add_argument("--only", default="", help="an expression: such cases, and nothing else")
    options = parser.parse_args()
    sims, began = options.sims, time.monotonic()
    until = began + 60 * options.minutes
    results = simulate_cases(sims, options.seed, options.pieces, until, options.only)
    if results is None:
        print("not all runs are simulated yet: call again", file=sys.stderr)
        sys.exit(3)
    if options.only:
        print_whole(results)
        return
    print("# What the statistics do on simulated hosts\n")
    print(
        f"{sims:,} simulated runs or more per figure of whole runs (seed {options.seed} plus a checksum of its name),"
    )
    print(
        f"{max(sims, 2_000):,} of the rest, margin 3 %. A star marks what is not as wanted: false claims and false"
    )
    print('"no difference" ≤ .05, coverage ≥ .93.\n')
    print_whole(results)
    sims = max(sims, 2_000)  # the rest takes less time
    print_candidates(sims)
    print("\nFalse claims on equal cells if p < .05 were looked for after every block from 6 to 60: "
          + star_miss(false_positives_at_first_p(sims, 1), 0, 0.05))  # fmt: skip
    print_families(sims)
    print_floor(sims)
    print_over_runs(sims)
    print_forecasts(options.sims // 5)
    print_warmup(sims)
    print_sentences(options.sims // 5)
    print(f"\n{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Declares `guestmark compare`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option
from guestmark.core.units import parse_fraction


@dataclass(frozen=True, kw_only=True)
class Options:
    """Compare runs cell by cell, and the environments they were measured in.

    Only ratios to each run's own baseline are compared. Earlier runs of the same cells show how far unchanged runs
    differ here, and the intervals allow for that. To judge a change, `guestmark ab` is better: it measures both sides
    at the same time. --confirm does so with two stored runs: one new run measures the programs, guest kernels and QEMUs
    of both, and the documents describe the new run.

    `compare a,b,c d,e,f` compares two sides of several runs, with the run as the unit. The runs of a side show how far
    runs differ, so no earlier runs are needed, and they may come from different machines.

    --fail-if limits the change of a ratio from the first run to the other: 'tcg > +5%' fails if tcg's ratio grew by
    more than 5 %; --fail-above 5% is '> +5%'. Exit status: 0; with a limit also 1 broken, 125 undecided, 128+ a cell
    cannot be compared; with --confirm as for exec.
    """

    runs: Annotated[
        list[str],
        Argument(
            "RUN RUN...",
            "Runs by id, by the beginning or end of an id, by name, or `last`; all are compared with the "
            "first. Runs joined by commas are sessions of one side.",
            candidates=Candidates.RUNS,
        ),
    ]
    fail_above: Annotated[
        float | None,
        Option(
            "--fail-above",
            "Exit with 1 when a cell's ratio is shown to have grown by more than this, with 125 when "
            "undecided.",
            metavar="PERCENT",
            parse=parse_fraction,
        ),
    ] = None
    confirm: Annotated[
        bool,
        Option(
            "--confirm",
            "Measure both sides of two runs again, side by side in one new run, as far as their "
            "programs and files still exist.",
        ),
    ] = False
    only_list: Annotated[
        bool,
        Option("--list", "With --confirm: show what would be measured and what cannot be; measure nothing."),
    ] = False
    trust: options.Trust = False
    blocks: options.Blocks = None
    precision: options.Precision = None
    time_limit_s: options.TimeLimit = None
    fail_if: options.FailIf = None
    json: options.Json = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: options.Quiet = False

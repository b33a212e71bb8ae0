"""Declares `guestmark run`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Run a plan: workloads, platforms and factors from a TOML file.

    Options take precedence over the plan. Every block measures each cell once on a fresh machine, in random order.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line or the plan is
    wrong, 3 nothing could be measured, 130 interrupted (guestmark resume continues).
    """

    plan: Annotated[
        str,
        Argument(
            "PLAN|FILE",
            "A built-in plan (guestmark plans lists them) or a TOML file.",
            candidates=Candidates.PLANS,
        ),
    ]
    on: Annotated[
        list[str] | None,
        options.make_platforms_option("Where to run it, instead of the platforms in the plan."),
    ] = None
    machine: options.Machine = None
    scale: options.Scale = None
    only: options.Only = None
    only_list: options.OnlyList = False
    prepare_only: Annotated[
        bool,
        Option("--prepare-only", "Create the run and print its id; measure nothing. See guestmark block."),
    ] = False
    override_: Annotated[
        list[str] | None,
        Option(
            "--override",
            "Replace a value of the plan, e.g. workloads.gzip.params.values.events=100. Repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None
    published: options.Published = False
    budget_s: options.Budget = None

"""Declares `guestmark tune`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Race configurations within your limits, and find the fastest.

    guestmark tune fastest-safe --only 'platform=tcg and bus=virtio-blk' --for 5m

    With many cells, a fraction is measured first, to drop those that cannot win. The others race: after each block, a
    cell shown to be worse than the leader by more than the margin drops out. The finalists are measured again in fresh
    blocks. With --durability proven, the power is cut first, and configurations that lose data drop out.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line or the plan is
    wrong, 3 nothing could be measured, 130 interrupted (guestmark resume continues).
    """

    plan: Annotated[
        str,
        Argument(
            "PLAN|FILE",
            "A built-in plan, such as fastest-safe, or a TOML file. Its cells are the candidates.",
            candidates=Candidates.PLANS,
        ),
    ]
    objective: Annotated[
        str | None,
        Option(
            "--objective", "The metric to optimise. Default: the plan's primary metric.", metavar="METRIC"
        ),
    ] = None
    durability: Annotated[
        list[str] | None,
        Option(
            "--durability",
            "Accept only configurations of this durability, e.g. proven. Repeatable: any of them is "
            "accepted.",
            metavar="WORD",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        Option("--limit", "A limit for another metric, e.g. 'guest_cpu_s < 5'.", metavar="LIMIT"),
    ] = None
    on_disk: Annotated[bool, Option("--on-disk", "Leave out disks that are in memory.")] = False
    no_screen: Annotated[bool, Option("--no-screen", "Measure every candidate from the start.")] = False
    race_blocks: Annotated[
        int | None,
        Option("--max-blocks", "End the race after this many blocks (default 10).", metavar="N", minimum=2),
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option("Where to run it, instead of the platforms in the plan."),
    ] = None
    machine: options.Machine = None
    scale: options.Scale = None
    only: options.Only = None
    only_list: options.OnlyList = False
    budget_s: options.Budget = None

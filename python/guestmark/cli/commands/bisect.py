"""Declares `guestmark bisect`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Option

OPTIONS_FIRST = True
# Every candidate gets this many blocks, and twice as many while it is undecided.
FIRST_BLOCKS = 8


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Find the commit that made a command slower or lose data, as git bisect does, with "undecided" as a third verdict.

    The good commit is built once and kept. Every candidate is measured beside it in one run, in random order, never
    against an earlier figure. A candidate gets 8 blocks, and twice as many while --fail-if is undecided. Both are
    built in temporary worktrees; your checkout stays as it is.

    With --fail-if lost, part or unproven, the power of each candidate is cut instead, as by guestmark powercut. This
    finds the commit that removed a sync.

    Exit status: 0 the commit was found, 1 the bad commit meets the limit, 125 only commits that could not be judged are
    left, 128 or more could not be measured.
    """

    argv: Annotated[
        list[str],
        Argument("-- COMMAND...", "The command; {build} stands for the directory of the build to measure."),
    ]
    good: Annotated[str, Option("--good", "A commit that is fast enough.", metavar="COMMIT")]
    bad: Annotated[str, Option("--bad", "A later commit that is too slow.", metavar="COMMIT")] = "HEAD"
    build: Annotated[
        str,
        Option(
            "--build",
            "Build each commit with this command, which a shell runs in the commit's directory.",
            metavar="COMMAND",
        ),
    ] = ""
    repository: Annotated[
        str, Option("--repo", "The repository (default: the one that holds this directory).", metavar="DIR")
    ] = "."
    most_blocks: Annotated[
        int,
        Option(
            "--max-blocks",
            "Skip a commit that is still undecided after this many blocks.",
            metavar="N",
            minimum=FIRST_BLOCKS,
        ),
    ] = 64
    by: Annotated[
        str,
        Option(
            "--by",
            "The metric that decides. auto: the one that --fail-if or --metric names, else wall "
            "time, or user time if wall time cannot decide.",
            metavar="auto|METRIC",
        ),
    ] = "auto"
    check: Annotated[
        str | None,
        Option(
            "--check",
            "With --fail-if lost, part or unproven: the same as powercut --check. Without it, the "
            "command's own syncs are judged. {build} stands for the directory of the build.",
            metavar="COMMAND",
        ),
    ] = None
    on: Annotated[list[str] | None, options.make_platforms_option("Where to run it. Default: host.")] = None
    machine: options.Machine = None
    metrics: options.Metrics = None
    stdin: options.Input = None
    ignore_failure: options.IgnoreFailure = False

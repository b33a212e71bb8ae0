"""`guestmark bisect`: which commit made it slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring
from guestmark.page.say import say

if TYPE_CHECKING:
    from guestmark.cli.bisecting import Steps
    from guestmark.engine.git_bisect import Bisection, Commit

SETTINGS = {"allow_interspersed_args": False}
_FIRST_LOOK = 8  # blocks


@measuring
def command(
    argv: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND...",
            help="The command; {build} in it is the directory of the build to measure.",
        ),
    ],
    *,
    good: Annotated[str, typer.Option("--good", metavar="COMMIT", help="A commit that is fast enough.")],
    bad: Annotated[
        str, typer.Option("--bad", metavar="COMMIT", help="A later one that is too slow.")
    ] = "HEAD",
    build: Annotated[
        str,
        typer.Option(
            "--build", metavar="COMMAND", help="How a commit is built, for a shell in its directory."
        ),
    ] = "",
    repository: Annotated[
        str,
        typer.Option("--repo", metavar="DIR", help="The repository (default: that around this directory)."),
    ] = ".",
    max_blocks: Annotated[
        int,
        typer.Option(
            "--max-blocks", min=_FIRST_LOOK, help="Skip a commit that this many blocks cannot judge."
        ),
    ] = 64,
    on: Annotated[list[str] | None, options.on("Where to run it. Default: host.")] = None,
    metrics: options.Metrics = None,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
    given: Measuring,
) -> None:
    """Find the commit that made a command slower, as git bisect does, with measurements that can say "undecided".

    The good commit is built once and kept; every candidate is measured beside it in one run, in random order, and never
    held against an earlier figure. A candidate gets 8 blocks, and twice as many as long as --fail-if is undecided. Your
    checkout is not touched: both are built in worktrees that are removed at the end.

    Exit status: 0 the commit was found, 1 the bad commit is not slower, 125 only commits that could not be judged are
    left, 128 or more measuring failed.
    """

    from guestmark.agent.keeper import keeper
    from guestmark.appliance.paths import scratch_parent
    from guestmark.cli.bisecting import Building, Steps
    from guestmark.core.context import Caller
    from guestmark.core.errors import GateStatus, UsageError
    from guestmark.engine.git_bisect import Bisection
    from guestmark.workloads.exec.plan import ExecOptions

    if not given.fail_if or len(given.fail_if) > 1:
        raise UsageError(
            "bisect takes one --fail-if", hint="e.g. --fail-if '> +2%', half of what you look for"
        )
    if not any("{build}" in word for word in argv):
        raise UsageError("the command holds no {build}", hint="e.g. -- '{build}/program'")
    folder = keeper().directory("bisect", scratch_parent())
    try:
        bisection = Bisection(Path(repository).resolve(), folder, good, bad)
        with bisection.started():
            if said := bisection.build(bisection.good_build, build):
                raise UsageError(f"the good commit cannot be built: {said}", hint=f"--build {build!r}")
            options_of_run = ExecOptions(
                on=on or ("host",),
                metrics=metrics or (),
                stdin_path=stdin,
                ignore_failure=ignore_failure,
                caller=Caller.current(),
                **{**given.overrides(), "precision": None, "time_limit_s": None},
            )
            steps = Steps(given, argv, options_of_run, bisection, Building(build, max_blocks))
            status = _search(bisection, steps)
    finally:
        keeper().remove(folder)
    raise typer.Exit(int(status) if status is not None else GateStatus.UNDECIDED)


def _search(bisection: Bisection, steps: Steps) -> int | None:
    from guestmark.core.errors import GateStatus
    from guestmark.stats.gates import Outcome

    words = {Outcome.KEPT: "good", Outcome.BROKEN: "bad", Outcome.UNDECIDED: "skip"}
    at_bad = steps.judge(bisection.bad)
    bad, good = bisection.bad.shown, bisection.good.shown
    if at_bad is Outcome.KEPT:
        say(f"{bad}: it is not shown to be slower than {good}; nothing is searched")
        return GateStatus.BROKEN
    if at_bad is not Outcome.BROKEN:
        say(f"{bad}: whether it is slower than {good} could not be told; nothing is searched")
        say("guestmark show last says why; stop what else runs here, or give more --max-blocks")
        return GateStatus.UNDECIDED
    found: Commit | str | None = bisection.begin() or bisection.bad.hash
    while found is not None and not isinstance(found, str):
        found = bisection.tell(words[steps.judge(found)])
    if found is None:
        say("only commits that could not be judged are left; more --max-blocks, or a quieter host, may help")
        return None
    steps.tell_first_bad(bisection.commit(found))
    return GateStatus.KEPT

"""`guestmark bisect`: which commit made it slower, or removed a sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.core.errors import GateStatus
    from guestmark.engine.bisection import Bisection, BisectionSearch, Commit

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
            "--max-blocks",
            metavar="N",
            min=_FIRST_LOOK,
            help="Skip a commit that this many blocks cannot judge.",
        ),
    ] = 64,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="auto|METRIC",
            help="The metric that decides. auto: what --fail-if or --metric names, else wall time; user time if"
            " wall time cannot decide.",
        ),
    ] = "auto",
    check: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="With --fail-if lost, part or unproven: as --check of powercut; without it the command's own syncs "
            "are judged. {build} in it is the directory of the build.",
        ),
    ] = None,
    on: Annotated[list[str] | None, options.on("Where to run it. Default: host.")] = None,
    metrics: options.Metrics = None,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
    given: Measuring,
) -> None:
    """Find the commit that made a command slower, or lose data, as git bisect does, but with "undecided" as a verdict.

    The good commit is built once and kept. Every candidate is measured beside it in one run, in random order, never
    against an earlier figure. A candidate gets 8 blocks, and twice as many while --fail-if is undecided. Both are
    built in temporary worktrees; your checkout stays as it is.

    With --fail-if lost, part or unproven the power of each candidate is cut instead, as by guestmark powercut: this
    finds the commit that removed a sync.

    Exit status: 0 the commit was found, 1 the bad commit keeps the limit, 125 only commits that could not be judged are
    left, 128 or more measuring failed.
    """

    from guestmark.appliance.paths import scratch_parent
    from guestmark.core.context import Caller
    from guestmark.core.errors import UsageError
    from guestmark.core.gate import is_about_power
    from guestmark.core.keeper import keeper
    from guestmark.engine.audience import Audience
    from guestmark.engine.bisection import (
        PARAMETER,
        Bisection,
        BisectionRequest,
        BisectionSearch,
        PowerCutOptions,
    )
    from guestmark.ledger import open_ledger
    from guestmark.plan.outline import Overrides
    from guestmark.workloads.exec.plan import ExecOptions

    if not given.fail_if or len(given.fail_if) > 1:
        raise UsageError(
            "bisect takes one --fail-if", hint="e.g. --fail-if '> +2%', half of what you look for"
        )
    if not any(f"{{{PARAMETER}}}" in word for word in argv):
        raise UsageError("the command holds no {build}", hint="e.g. -- '{build}/program'")
    given.refuse("bisect", quiet_host=True, over=True)
    options_of_run = ExecOptions(
        on=on or ("host",),
        metrics=metrics or (),
        stdin_path=stdin,
        ignore_failure=ignore_failure,
        caller=Caller.current(),
        **{**given.overrides(), "precision": None, "time_limit_s": None},
    )
    caller = Caller.current()
    power = None
    if is_about_power(given.fail_if[0]):
        overrides = Overrides(on=on or ("host",), **given.overrides())
        power = PowerCutOptions(overrides, caller, check)
    elif check is not None:
        raise UsageError("--check is for a limit about power cuts", hint="e.g. --fail-if lost")
    wanted = BisectionRequest(
        argv,
        options_of_run,
        given.fail_if,
        build,
        max_blocks,
        given.wait,
        _deciding(by, metrics or ()),
        power,
    )

    def looking(commit: Commit, blocks: int) -> None:
        if not given.quiet:
            doing = "cutting its power" if power else f"measuring it beside the good one, {blocks} blocks"
            say(f"{commit.description}: {doing} …")

    folder = keeper().directory("bisect", scratch_parent())
    try:
        bisection = Bisection(Path(repository).resolve(), folder, good, bad)
        with bisection.worktrees():
            if said := bisection.run_build(bisection.good_build, build):
                raise UsageError(f"the good commit cannot be built: {said}", hint=f"--build {build!r}")
            with open_ledger(given.ledger) as ledger:
                search = BisectionSearch(bisection, wanted, ledger, Audience(say), looking)
                status = _told(search, bisection)
    finally:
        keeper().remove(folder)
    raise typer.Exit(int(status))


def _deciding(by: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """The metrics that may decide, the preferred one first; "" is what the gate or the run names."""
    from guestmark.core.errors import unknown
    from guestmark.core.metric_spec import DEFAULT_METRICS, USER, parse_metrics

    if by == "auto":
        return ("",) if metrics else ("", USER.name)
    names = [spec.metric.name for spec in parse_metrics(metrics)] + [
        metric.name for metric in DEFAULT_METRICS
    ]
    if by not in names:
        raise unknown("metric", by, names)
    return (by,)


def _told(search: BisectionSearch, bisection: Bisection) -> GateStatus:
    """Says what becomes of each candidate, and prints what was found; the exit status."""
    from guestmark.core.errors import GateStatus
    from guestmark.engine.bisection import SearchEnd
    from guestmark.page.claims import Claim
    from guestmark.report.sections.gate_outcomes import explain_outcome
    from guestmark.stats.gates import Outcome

    words = {Outcome.KEPT: "good", Outcome.BROKEN: "bad", Outcome.UNDECIDED: "skipped"}
    shown: dict[str, str] = {}  # by hash, what was found
    if search.cuts_power:
        good_one = search.check_good()
        if good_one.judged is not None and good_one.outcome is not Outcome.KEPT:
            say(
                f"{bisection.good.description}: {explain_outcome(good_one.judged)}; "
                "the good commit does not keep the limit itself"
            )
            return GateStatus.UNDECIDED
    for step in search.judge_candidates():
        if step.judged is None:
            say(f"{step.commit.description}: not built ({step.failed}), skipped")
            continue
        found = shown[step.commit.hash] = explain_outcome(replace(step.judged, blocks=None, finds=None))
        blocks = "" if search.cuts_power else f", {step.judged.n} blocks"
        say(f"{step.commit.description}: {words[step.outcome]}, {found}{blocks}")
    bad, good = bisection.bad.description, bisection.good.description
    if search.fell_back:
        say(f"{search.fell_back} decided: wall time could not on this machine")
    if search.end is SearchEnd.NOT_SLOWER:
        why = "it keeps the limit" if search.cuts_power else f"it is not shown to be slower than {good}"
        say(f"{bad}: {why}; nothing is searched")
        return GateStatus.BROKEN
    if search.end is SearchEnd.UNJUDGED:
        verdict = "judged" if search.cuts_power else f"shown slower than {good}"
        say(f"{bad}: could not be {verdict}; nothing is searched")
        say("guestmark show last says why; stop what else runs here, or give more --max-blocks")
    if search.found is None:
        if search.end is SearchEnd.ONLY_SKIPPED:
            say(
                "only commits that could not be judged are left; more --max-blocks, or a quieter host, may help"
            )
        return GateStatus.UNDECIDED
    tell(f"{search.found.hash}{Claim.FIRST_BAD}")
    said_of_it = shown.get(search.found.hash)
    tell(f"  {search.found.description}{f': {said_of_it}' if said_of_it else ''}")
    return GateStatus.KEPT

"""Finds the commit that made a command slower, or removed a sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from guestmark.appliance.paths import choose_scratch_parent
from guestmark.cli.commands.bisect import Options
from guestmark.cli.options import list_platforms
from guestmark.core.context import Caller
from guestmark.core.errors import GateStatus, UsageError, make_unknown_name_error
from guestmark.core.gate import is_power_cut_gate
from guestmark.core.keeper import keeper
from guestmark.core.metric_spec import DEFAULT_METRICS, USER, parse_metrics
from guestmark.core.platform_spec import parse_platforms
from guestmark.core.registry import parse_settings
from guestmark.engine.audience import Audience
from guestmark.engine.bisection import (
    PARAMETER,
    Bisection,
    BisectionRequest,
    BisectionSearch,
    Commit,
    PowerCutOptions,
    SearchEnd,
)
from guestmark.ledger import open_ledger
from guestmark.page.claims import Claim
from guestmark.page.say import say, tell
from guestmark.plan.outline import Overrides
from guestmark.report.sections.gate_outcomes import explain_outcome
from guestmark.stats.gates import Outcome
from guestmark.workloads.exec.plan import ExecOptions

_VERDICTS = {Outcome.KEPT: "good", Outcome.BROKEN: "bad", Outcome.UNDECIDED: "skipped"}


def run(given: Options) -> int:
    """Searches between the good and the bad commit; the exit status tells what was found."""
    if not given.fail_if or len(given.fail_if) > 1:
        raise UsageError(
            "bisect takes one --fail-if",
            hint="e.g. --fail-if '> +2%': half of the slowdown that you look for",
        )
    # Without it, the good commit and every candidate would run the same program.
    if not any(f"{{{PARAMETER}}}" in word for word in given.argv):
        raise UsageError("the command does not contain {build}", hint="e.g. -- '{build}/program'")
    given.refuse_options("bisect", quiet_host=True, over=True)
    wanted = _build_request(given, given.fail_if)

    def announce(commit: Commit, blocks: int) -> None:
        if not given.quiet:
            doing = f"measuring it beside the good one, {blocks} blocks"
            if wanted.power is not None:
                doing = "cutting its power"
            say(f"{commit.description}: {doing} …")

    # A search that is killed must not leave worktrees and builds behind.
    folder = keeper().directory("bisect", choose_scratch_parent())
    try:
        bisection = Bisection(Path(given.repository).resolve(), folder, given.good, given.bad)
        with bisection.make_worktrees():
            if failure := bisection.run_build(bisection.good_build, given.build):
                raise UsageError(
                    f"the good commit cannot be built: {failure}",
                    hint=f"check the build command: --build {given.build!r}",
                )
            with open_ledger(given.ledger) as ledger:
                return _search_commits(
                    BisectionSearch(bisection, wanted, ledger, Audience(say), announce), bisection
                )
    finally:
        keeper().remove(folder)


def _build_request(given: Options, limits: Sequence[str]) -> BisectionRequest:
    """Builds the request for measuring each candidate."""
    caller = Caller.current()
    # The search itself decides on the number of blocks.
    overrides = {**given.collect_overrides(), "precision": None, "time_limit_s": None}
    on = list_platforms(given.on, given.machine) or ("host",)
    platforms = tuple(map(str, parse_platforms(on)))
    settings = parse_settings(overrides["settings"])
    several = [",".join(levels) for levels in (platforms, *settings.values()) if len(levels) > 1]
    if several:
        # Each further machine would be compared with the good build on the first one.
        raise UsageError(
            f"bisect compares two builds on one machine, but was given {' and '.join(several)}",
            hint="give one platform, and one level for each --set",
        )
    request = ExecOptions(
        on=on,
        metrics=given.metrics or (),
        stdin_path=given.stdin,
        ignore_failure=given.ignore_failure,
        caller=caller,
        **overrides,
    )
    power = None
    if is_power_cut_gate(limits[0]):
        power = PowerCutOptions(
            Overrides(on=on, **given.collect_overrides()),
            caller,
            given.check,
        )
    elif given.check is not None:
        raise UsageError("--check requires a limit about power cuts", hint="e.g. --fail-if lost")
    deciding = _choose_metrics(given.by, given.metrics or ())
    return BisectionRequest(
        given.argv, request, limits, given.build, given.most_blocks, given.wait, deciding, power
    )


def _choose_metrics(by: str, metrics: Sequence[str]) -> tuple[str, ...]:
    """Chooses the metrics that may decide, the preferred one first.

    "" stands for the metric that a gate names, or else the one that the run itself compares.
    """
    if by == "auto":
        return ("",) if metrics else ("", USER.name)
    names = [spec.metric.name for spec in parse_metrics(metrics)]
    names += [metric.name for metric in DEFAULT_METRICS]
    if by not in names:
        raise make_unknown_name_error("metric", by, names)
    return (by,)


def _search_commits(search: BisectionSearch, bisection: Bisection) -> GateStatus:
    """Reports each candidate's verdict as it comes, prints what was found, and returns the exit status."""
    if search.cuts_power and not _is_good_commit_within_limit(search, bisection):
        return GateStatus.UNDECIDED
    finding_by_hash: dict[str, str] = {}
    for step in search.judge_candidates():
        if step.judged is None:
            say(f"{step.commit.description}: skipped, as it could not be built ({step.failed})")
            continue
        finding = explain_outcome(replace(step.judged, blocks=None, finds=None))
        finding_by_hash[step.commit.hash] = finding
        blocks = "" if search.cuts_power else f", {step.judged.n} blocks"
        say(f"{step.commit.description}: {_VERDICTS[step.outcome]}, {finding}{blocks}")
    if search.fell_back:
        say(f"{search.fell_back} decided, because wall time could not on this machine")
    if search.found is None:
        return _explain_no_commit(search, bisection)
    tell(f"{search.found.hash}{Claim.FIRST_BAD}")
    description = search.found.description
    if finding := finding_by_hash.get(search.found.hash, ""):
        description += f": {finding}"
    tell(f"  {description}")
    return GateStatus.KEPT


def _is_good_commit_within_limit(search: BisectionSearch, bisection: Bisection) -> bool:
    step = search.check_good()
    if step.judged is None or step.outcome is Outcome.KEPT:
        return True
    say(
        f"{bisection.good.description}: {explain_outcome(step.judged)}; the good commit itself does not meet the limit"
    )
    return False


def _explain_no_commit(search: BisectionSearch, bisection: Bisection) -> GateStatus:
    """Prints why the search found no commit, and returns the exit status."""
    bad, good = bisection.bad.description, bisection.good.description
    if search.end is SearchEnd.NOT_SLOWER:
        reason = f"it is not shown to be slower than {good}"
        if search.cuts_power:
            reason = "it meets the limit"
        say(f"{bad}: {reason}; there is nothing to search")
        return GateStatus.BROKEN
    if search.end is SearchEnd.UNJUDGED:
        verdict = "judged" if search.cuts_power else f"shown to be slower than {good}"
        say(f"{bad}: could not be {verdict}; there is nothing to search")
        say("guestmark show last shows why; stop other programs on this host, or raise --max-blocks")
    elif search.end is SearchEnd.ONLY_SKIPPED:
        say("only commits that could not be judged are left; a higher --max-blocks or a quiet host may help")
    return GateStatus.UNDECIDED

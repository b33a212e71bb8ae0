"""Compares stored runs, and measures two of them again side by side."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from guestmark.cli.commands.compare import Options
from guestmark.cli.gate_status import derive_gate_status
from guestmark.cli.measure import measure_plan
from guestmark.cli.outputs import Outputs
from guestmark.cli.page_output import write_page
from guestmark.cli.stored_runs import load_distinct_runs, refuse_repeated_runs
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.engine.confirmation import make_confirmation
from guestmark.engine.stored_run import require_trust
from guestmark.ledger import open_ledger
from guestmark.page.say import say
from guestmark.plan.policy_options import check_conflicts, select_given_values
from guestmark.report import ci_reports, limits_between_runs, run_comparison, session_comparison


def run(given: Options) -> int:
    """Compares the runs as they are, by sides, or by measuring again; returns the exit status."""
    if len(given.runs) < 2:
        raise UsageError("one run alone cannot be compared", hint="name another; guestmark runs lists them")
    policy = _collect_policy(given)
    if given.confirm:
        return _confirm_difference(given, policy)
    if given.only_list or given.trust or policy:
        raise UsageError(
            "--list, --trust, --blocks, --precision and --time-limit apply to a new run", hint="add --confirm"
        )
    limits = list(given.fail_if or ())
    if given.fail_above is not None:
        limits.append(f"> x{1 + given.fail_above:.12g}")
    paths = {"json": given.json, "markdown": given.markdown, "html": given.html}
    if any("," in name for name in given.runs):
        return _compare_sides(given.runs, limits, paths, given.ledger)
    return _compare_runs(given.runs, limits, paths, given.ledger)


def _collect_policy(given: Options) -> dict[str, Any]:
    values = {"blocks": given.blocks, "precision": given.precision, "time_limit_s": given.time_limit_s}
    return select_given_values(values)


def _compare_runs(
    names: Sequence[str], limits: Sequence[str], paths: Mapping[str, str | None], ledger_path: str | None
) -> int:
    """Compares every run with the first."""
    with open_ledger(ledger_path, writable=False) as ledger:
        first, *others = load_distinct_runs(ledger, names)
        comparisons = []
        for other in others:
            comparisons.append(run_comparison.compare_runs(ledger, first, other, beside=len(others)))
    judged = limits_between_runs.judge_comparisons(comparisons, limits) if limits else ()
    write_page(
        run_comparison.make_page(comparisons, judged),
        lambda: run_comparison.make_document(comparisons, judged),
        paths,
    )
    if not judged:
        return ExitStatus.ALL_MEASURED
    ci_reports.append_summary(judged, comparisons[-1].after)
    return derive_gate_status(judged)


def _compare_sides(
    sides_of_names: Sequence[str],
    limits: Sequence[str],
    paths: Mapping[str, str | None],
    ledger_path: str | None,
) -> int:
    """Compares two sides of several runs each, with the run as the unit."""
    if len(sides_of_names) != 2:
        raise UsageError(
            f"compare takes two sides, but {len(sides_of_names)} were given",
            hint="write `compare a,b,c d,e,f`",
        )
    with open_ledger(ledger_path, writable=False) as ledger:
        sides = []
        for names in sides_of_names:
            sides.append([ledger.resolve_run(name) for name in names.split(",") if name])
        refuse_repeated_runs(list(itertools.chain.from_iterable(sides)))
        if not all(sides):
            raise UsageError("a side has no run", hint="write `compare a,b,c d,e,f`")
        titles = ("before", "after")
        sessions_by_side = []
        for title, side in zip(titles, sides, strict=True):
            sessions_by_side += [(title, run_id) for run_id in side]
        result = session_comparison.compare_sessions(
            ledger, "Sessions compared", titles, sessions_by_side, session_comparison.SessionKind.SESSION
        )
    judged = limits_between_runs.judge_sides(result, limits) if limits else ()
    write_page(
        session_comparison.make_page(result, judged),
        lambda: session_comparison.make_document(result, judged),
        paths,
    )
    if not judged:
        return ExitStatus.ALL_MEASURED
    ci_reports.append_summary(judged, *result.runs)
    return derive_gate_status(judged)


def _confirm_difference(given: Options, policy: Mapping[str, Any]) -> int:
    """Plans both sides as one run, tells the user what it can show, and measures it."""
    if len(given.runs) != 2 or given.fail_above is not None:
        raise UsageError("--confirm takes two runs, and limits by --fail-if, not --fail-above")
    check_conflicts(policy)
    with open_ledger(given.ledger, writable=False) as ledger:
        before, after = (ledger.load_run(ledger.resolve_run(name)) for name in given.runs)
    # Both sides are executed again, and either may come from somebody else.
    for side in (before, after):
        require_trust(side, say, trust=given.trust)
    confirmation = make_confirmation(before, after, policy)
    say(f"side by side: {', '.join(confirmation.differing)}")
    for missing in confirmation.missing:
        say(f"cannot be compared side by side: {missing}")
    if given.only_list:
        for cell in confirmation.plan.cells:
            if cell.null_of is None:
                say(f"  {cell.id}")
        return ExitStatus.ALL_MEASURED
    outputs = Outputs(
        json=given.json,
        markdown=given.markdown,
        html=given.html,
        quiet=given.quiet,
        gates=tuple(given.fail_if or ()),
    )
    return measure_plan(confirmation.plan, given.ledger, outputs)

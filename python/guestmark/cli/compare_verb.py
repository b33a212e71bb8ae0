"""`guestmark compare`: runs that have been made, beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from guestmark.cli import options

if TYPE_CHECKING:
    from guestmark.cli.session import Outputs


def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...",
            help="Runs by id, beginning, end, name, or `last`; all are compared with the first. "
            "Runs joined by commas are sessions of one side.",
            autocompletion=options.complete_run,
        ),
    ],
    *,
    fail_above: Annotated[
        str | None,
        typer.Option(
            "--fail-above",
            metavar="PERCENT",
            help="Exit with 1 when a cell is shown to have grown by more, 125 when undecided.",
        ),
    ] = None,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Measure both sides of two runs again, side by side in one run, as far as both are still here.",
        ),
    ] = False,
    list_: Annotated[
        bool,
        typer.Option("--list", help="With --confirm: only say what would be measured, and what cannot be."),
    ] = False,
    trust: options.Trust = False,
    blocks: options.Blocks = None,
    precision: options.Precision = None,
    time_limit: options.TimeLimit = None,
    fail_if: options.FailIf = None,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Compare runs, cell by cell, and the environments they were measured in.

    Only ratios to each run's own baseline are compared. Earlier runs of the same cells show how far unchanged runs
    differ here, and the intervals allow for that. `guestmark ab` is better for a change: it measures both sides at the
    same time. --confirm does so with two stored runs: one new run measures the programs, guest kernels and QEMUs of
    both, and its documents are written.

    `compare a,b,c d,e,f` compares two sides of several runs, with the run as the unit. The runs of a side show how far
    runs differ, so no earlier ones are needed, and they may be of different machines.

    --fail-if limits the change of a ratio from the first run to the other: 'tcg > +5%' fails if tcg's ratio grew by
    more than 5 %; --fail-above 5% is '> +5%'. Exit status: 0; with a limit also 1 broken, 125 undecided, 128+ a cell
    cannot be compared; with --confirm as exec.
    """
    from guestmark.cli.documents import write_all
    from guestmark.cli.gates import status_of
    from guestmark.core.errors import UsageError
    from guestmark.core.units import parse_fraction
    from guestmark.ledger import open_ledger
    from guestmark.report import ci_reports, limits_between_runs, run_comparison

    if len(runs) < 2:
        raise UsageError("one run alone cannot be compared", hint="guestmark runs lists others")
    limit = options.value("--fail-above", parse_fraction, fail_above)
    if not confirm and (list_ or trust or blocks or precision or time_limit):
        raise UsageError(
            "--list, --trust, --blocks, --precision and --time-limit are of a new run", hint="add --confirm"
        )
    if confirm:
        from guestmark.cli.session import Outputs

        if len(runs) != 2 or limit is not None:
            raise UsageError("--confirm takes two runs, and --fail-if instead of --fail-above")
        if blocks is not None and (precision or time_limit):
            raise UsageError(
                "--blocks already fixes how long to measure", hint="leave out --precision and --time-limit"
            )
        policy = {
            "blocks": blocks,
            "precision": options.value("--precision", parse_fraction, precision),
            "time_limit_s": options.positive_duration("--time-limit", time_limit),
        }
        outputs = Outputs(json=json, markdown=markdown, html=html, quiet=quiet, gates=tuple(fail_if or ()))
        _confirm(runs, policy, outputs, ledger, only_list=list_, trust=trust)
        return
    limits = [*(fail_if or ()), *([] if limit is None else [f"> x{1 + limit:.12g}"])]
    paths = {"json": json, "markdown": markdown, "html": html}
    if any("," in run for run in runs):
        _sides(runs, limits, paths, ledger)
    with open_ledger(ledger, writable=False) as opened:
        ids = [opened.resolve(run) for run in runs]
        if len(set(ids)) < len(ids):
            raise UsageError(f"run {ids[0]} is given twice", hint="guestmark runs lists others")
        first, *others = [opened.load_run(run_id) for run_id in ids]
        found = [run_comparison.compare(opened, first, other, beside=len(others)) for other in others]
    judged = limits_between_runs.judge_comparisons(found, limits) if limits else ()
    write_all(run_comparison.page(found, judged), lambda: run_comparison.document(found, judged), paths)
    if judged:
        ci_reports.append_summary(judged, found[-1].after)
        raise typer.Exit(status_of(judged))


def _sides(
    texts: Sequence[str], limits: Sequence[str], paths: Mapping[str, str | None], ledger: str | None
) -> NoReturn:
    """Compares two sides of several runs each, with the run as the unit."""
    from guestmark.cli.documents import write_all
    from guestmark.cli.gates import status_of
    from guestmark.core.errors import UsageError
    from guestmark.ledger import open_ledger
    from guestmark.report import ci_reports, limits_between_runs, session_comparison

    if len(texts) != 2:
        raise UsageError(f"{len(texts)} sides, and two can be compared", hint="write `compare a,b,c d,e,f`")
    with open_ledger(ledger, writable=False) as opened:
        sides = [[opened.resolve(name) for name in text.split(",") if name] for text in texts]
        both = [run for side in sides for run in side]
        for run in both:
            if both.count(run) > 1:
                raise UsageError(f"run {run} is given twice", hint="guestmark runs lists others")
        if not all(sides):
            raise UsageError("a side has no run", hint="write `compare a,b,c d,e,f`")
        placed = [(name, run) for name, side in zip(("before", "after"), sides, strict=True) for run in side]
        found = session_comparison.result(
            opened, "Sessions compared", ("before", "after"), placed, session_comparison.Unit.SESSION
        )
    judged = limits_between_runs.judge_sides(found, limits) if limits else ()
    write_all(
        session_comparison.page(found, judged), lambda: session_comparison.document(found, judged), paths
    )
    if judged:
        ci_reports.append_summary(judged, *found.runs)
        raise typer.Exit(status_of(judged))
    raise typer.Exit(0)


def _confirm(
    runs: Sequence[str],
    policy: Mapping[str, Any],
    outputs: Outputs,
    ledger: str | None,
    *,
    only_list: bool,
    trust: bool,
) -> None:
    """Plans both sides as one run, says what it can show, and measures it."""
    from guestmark.cli import session
    from guestmark.engine.confirmation import make_confirmation
    from guestmark.engine.stored_run import require_trust
    from guestmark.ledger import open_ledger
    from guestmark.page.say import say

    with open_ledger(ledger, writable=False) as opened:
        before, after = (opened.load_run(opened.resolve(run)) for run in runs)
    for side in (before, after):
        require_trust(side, say, trust=trust)
    found = make_confirmation(before, after, policy)
    say(f"side by side: {', '.join(found.differing)}")
    for said in found.missing:
        say(f"not shown by it: {said}")
    if only_list:
        for cell in found.plan.cells:
            if cell.null_of is None:
                say(f"  {cell.id}")
        return
    raise typer.Exit(session.execute(found.plan, ledger, outputs))

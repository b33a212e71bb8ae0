"""Checks a run's results against the limits that it must meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from guestmark.cli.commands.gate import Options
from guestmark.cli.gate_status import derive_gate_status, report_gates
from guestmark.cli.outputs import Outputs
from guestmark.cli.page_output import write_page
from guestmark.cli.present import show_result
from guestmark.cli.stored_runs import load_distinct_runs
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.core.gate import add_gates
from guestmark.core.home import LATEST
from guestmark.ledger import open_ledger, run_history
from guestmark.page.nodes import Page, Part, Section
from guestmark.report import ci_reports, limits_between_runs
from guestmark.report.sections import gate_outcomes


def run(given: Options) -> int:
    """Judges one run, or several together; the exit status is for build servers and `git bisect run`."""
    outputs = Outputs(
        json=given.json, markdown=given.markdown, html=given.html, junit=given.junit, quiet=given.quiet
    )
    outputs.check()
    if given.runs and len(given.runs) > 1:
        return _judge_sessions(given.runs, given.fail_if, outputs, given.ledger)
    with open_ledger(given.ledger, writable=False) as ledger:
        stored = ledger.load_run(given.runs[0] if given.runs else LATEST)
        if given.fail_if:
            # Limits on the command line replace the run's own limits.
            plan = replace(stored.plan, context=replace(stored.plan.context, gates=()))
            stored = replace(stored, plan=add_gates(plan, given.fail_if))
        if not stored.plan.context.gates:
            raise _make_missing_gate_error(stored.id)
        analysis = run_history.analyse_with_history(ledger, stored)
    status = report_gates(stored, analysis, outputs.save_junit)
    if not given.quiet or outputs.list_files():
        nodes = gate_outcomes.make_nodes(gate_outcomes.judge_own_gates(analysis), analysis, stored)
        section = Section(Part.CONCLUSION, "Gates", tuple(nodes), titled=False)
        page = Page(stored.plan.title or stored.plan.name, stored.id, (section,))
        show_result(stored, replace(outputs, page=lambda _run: page), analysis)
    return ExitStatus.ALL_MEASURED if status is None else status


def _judge_sessions(
    names: Sequence[str], limits: Sequence[str] | None, outputs: Outputs, ledger_path: str | None
) -> int:
    """Judges several runs together, with the run as the unit, because all blocks of a run shift alike."""
    with open_ledger(ledger_path, writable=False) as ledger:
        stored = load_distinct_runs(ledger, names)
        analyses = [(session, run_history.analyse_with_history(ledger, session)) for session in stored]
        judged = limits_between_runs.judge_sessions(analyses, limits)
    if not judged:
        raise _make_missing_gate_error(stored[0].id)
    if outputs.save_junit is not None:
        outputs.save_junit(ci_reports.make_junit(judged, *stored))
    ci_reports.append_summary(judged, *stored)
    if not outputs.quiet or outputs.list_files():
        paths = {"json": outputs.json, "markdown": outputs.markdown, "html": outputs.html}
        page = limits_between_runs.make_sessions_page(stored, judged)
        write_page(
            page, lambda: limits_between_runs.make_sessions_document(stored, judged), paths, outputs.junit
        )
    return derive_gate_status(judged)


def _make_missing_gate_error(run_id: str) -> UsageError:
    return UsageError(f"run {run_id} has no gate", hint="give one, e.g. --fail-if 'tcg wall_s > +5%'")

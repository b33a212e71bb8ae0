"""Continues a run where it stopped, with the same seed in the same order."""

from __future__ import annotations

from guestmark.cli.commands.resume import Options
from guestmark.cli.measure import continue_run
from guestmark.cli.outputs import Outputs
from guestmark.engine.stored_run import ExtensionRequest
from guestmark.plan.policy_options import check_conflicts


def run(given: Options) -> int:
    """Measures the rest of the run, or extends it, and returns the exit status."""
    further = ExtensionRequest(given.blocks, given.precision, given.time_limit_s)
    check_conflicts(further.asked)
    outputs = Outputs(
        json=given.json,
        csv=given.csv,
        markdown=given.markdown,
        html=given.html,
        junit=given.junit,
        quiet=given.quiet,
        published=given.published,
        details=given.details,
        keep=given.keep,
        wait=given.wait,
        quiet_host=given.quiet_host,
    )
    return continue_run(given.run, given.ledger, outputs, further, trust=given.trust)

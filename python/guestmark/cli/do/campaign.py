"""Compares a host before and after a restart (its two sides), boot by boot."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import guestmark
from guestmark.cli.commands.campaign import Options
from guestmark.cli.measure import build_audience
from guestmark.cli.options import list_platforms
from guestmark.cli.outputs import Outputs
from guestmark.cli.page_output import write_page
from guestmark.core.context import Caller
from guestmark.core.errors import ExitStatus, UsageError
from guestmark.core.model import Plan
from guestmark.engine import preflight
from guestmark.engine.campaign import Campaign, CampaignPause, SideCommands, make_systemd_unit
from guestmark.ledger import open_ledger
from guestmark.page.say import say, tell
from guestmark.report import session_comparison
from guestmark.workloads.exec.plan import ExecOptions, build_plan


def run(given: Options) -> int:
    """Begins, continues, shows or ends a campaign, and returns the exit status."""
    _refuse_options_of_one_run(given)
    campaign = Campaign(given.campaign)
    if given.forget:
        # Reading the state raises `UsageError` for a campaign that does not exist.
        _ = campaign.state
        campaign.remove()
    elif given.unit and not given.argv:
        _print_systemd_unit(campaign)
    elif given.status:
        _show_status(campaign, given)
    else:
        with campaign.lock():
            if not given.argv:
                return _continue_campaign(campaign, given)
            _begin_campaign(campaign, given.argv, given)
            if not given.unit:
                return _continue_campaign(campaign, given)
            _print_systemd_unit(campaign)
    return ExitStatus.ALL_MEASURED


def _refuse_options_of_one_run(given: Options) -> None:
    """Raises `UsageError` for options that apply to a single run only."""
    values = {
        "--fail-if": given.fail_if,
        "--junit": given.junit,
        "--csv": given.csv,
        "--prove": given.prove,
        "--keep": given.keep,
        "--quiet-host": given.quiet_host,
        "--over": given.over_s,
        "--name": given.name,
        "--note": given.note,
        "--label": given.label,
        "--tag": given.tag,
    }
    for option, value in values.items():
        if value:
            raise UsageError(
                f"{option} applies to one run, but a campaign consists of many", hint="leave it out"
            )


def _begin_campaign(campaign: Campaign, argv: list[str], given: Options) -> None:
    if campaign.exists:
        raise UsageError(
            f"campaign {given.campaign} already exists",
            hint=f"guestmark campaign {given.campaign} continues it; --forget ends it",
        )
    if given.in_place and not given.reboot_command:
        raise UsageError("--in-place requires --reboot-command", hint="add --reboot-command COMMAND")
    commands = SideCommands(given.switch, given.verify, given.reboot_command, given.in_place)
    campaign.begin(
        _build_plan(argv, given),
        commands,
        sides=given.sides,
        rounds=given.rounds,
        ledger=_make_absolute(given.ledger or ""),
    )


def _build_plan(argv: list[str], given: Options) -> Plan:
    request = ExecOptions(
        on=list_platforms(given.on, given.machine) or ("host",),
        metrics=given.metrics or (),
        stdin_path=given.stdin,
        caller=Caller.current(),
        **given.collect_overrides(),
    )
    plan = build_plan(request, argv)
    # Weeks may pass until the last boot, so what cannot be measured is refused before the first one.
    preflight.check_requests(plan, plan.cells)
    return plan


def _make_absolute(ledger: str) -> str:
    """Makes the ledger's path absolute, because a unit starts in another directory."""
    if not ledger or "://" in ledger:
        return ledger
    return os.path.abspath(ledger)


def _continue_campaign(campaign: Campaign, given: Options) -> int:
    ended = campaign.continue_campaign(given.ledger, build_audience(Outputs(quiet=given.quiet)))
    if ended is CampaignPause.DONE:
        _show_status(campaign, given)
    return ExitStatus.INTERRUPTED if ended is CampaignPause.INTERRUPTED else ExitStatus.ALL_MEASURED


def _show_status(campaign: Campaign, given: Options) -> None:
    """Shows the progress of the campaign, and the results of the boots measured so far."""
    state = campaign.state
    if state.next_side is not None:
        say(f"{len(state.done)} of {len(state.order)} boots are measured; the next one is {state.next_side}")
    if not state.done:
        return
    boots = [(boot.side, boot.run) for boot in state.done]
    with open_ledger(state.ledger or given.ledger, writable=False) as ledger:
        result = session_comparison.compare_sessions(ledger, state.name, state.sides, boots)
    paths = {"json": given.json, "markdown": given.markdown, "html": given.html}
    write_page(session_comparison.make_page(result), lambda: session_comparison.make_document(result), paths)


def _print_systemd_unit(campaign: Campaign) -> None:
    tell(make_systemd_unit(campaign.state, [_find_program(), "campaign", campaign.state.name]).rstrip())


def _find_program() -> str:
    """Finds the path by which a unit starts guestmark: the checkout's launcher, or the installed program."""
    for folder in (Path(guestmark.__file__).parents[2], Path(sys.executable).parent):
        launcher = folder / "guestmark"
        if launcher.is_file() and os.access(launcher, os.X_OK):
            return str(launcher)
    return shutil.which("guestmark") or "guestmark"

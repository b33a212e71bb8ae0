"""`guestmark campaign`: two sides of a host, boot by boot."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.core.model import Plan
    from guestmark.engine.campaign import Campaign


def _complete(incomplete: str) -> list[str]:
    from guestmark.engine.campaign import list_campaigns

    return [name for name in list_campaigns() if name.startswith(incomplete)]


@measuring
def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the campaign is called.", autocompletion=_complete)
    ],
    argv: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]",
            help="Begin a campaign that measures this command. Without it: continue.",
        ),
    ] = None,
    *,
    sides: Annotated[
        str, typer.Option("--sides", metavar="A,B", help="What the host's two sides are called.")
    ] = "A,B",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="Rounds of four boots, A B B A.")
    ] = 2,
    switch: Annotated[
        str,
        typer.Option(
            "--switch",
            metavar="COMMAND",
            help="Make the host start as {side} the next time, e.g. grub-reboot {side}.",
        ),
    ] = "",
    verify: Annotated[
        str,
        typer.Option("--verify", metavar="COMMAND", help="Succeeds if the host runs as {side}."),
    ] = "",
    reboot_command: Annotated[
        str,
        typer.Option(
            "--reboot-command",
            metavar="COMMAND",
            help="Restarts the host, e.g. systemctl reboot. Default: you do.",
        ),
    ] = "",
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="The reboot command restarts something else, and returns when it is done: continue at once.",
        ),
    ] = False,
    unit: Annotated[
        bool,
        typer.Option(
            "--unit",
            help="Print a systemd unit that continues after every start of the host. With a command: only begin.",
        ),
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only show progress and results.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="End the campaign; its runs stay in the ledger.")
    ] = False,
    on: Annotated[list[str] | None, options.on("Where to run it. Default: host.")] = None,
    metrics: options.Metrics = None,
    stdin: options.Input = None,
    given: Measuring,
) -> None:
    """Compare a host before and after a restart, for instance with another kernel: A B B A, boot by boot.

    Every boot is one run of the command and one observation, so intervals show how far boots differ. After a restart,
    `guestmark campaign NAME` continues, by hand or from a systemd unit (--unit). The end, and --status, compares the
    sides.

    Exit status: 0 done, or restart the host now; 2 the command line is wrong, 3 nothing could be measured, 130
    interrupted.
    """
    from guestmark.core.errors import UsageError
    from guestmark.engine import campaign as campaigns

    _check(given)
    campaign = campaigns.Campaign(name)
    if forget:
        _ = campaign.state
        campaign.remove()
        return
    if unit and not argv:
        _tell_unit(campaign)
        return
    if status:
        _tell_status(campaign, given)
        return
    with campaign.lock():
        if argv:
            if campaign.exists:
                raise UsageError(
                    f"campaign {name} has been begun",
                    hint=f"guestmark campaign {name} continues it; --forget ends it",
                )
            if in_place and not reboot_command:
                raise UsageError("--in-place is about --reboot-command", hint="give that, too")
            commands = campaigns.SideCommands(switch, verify, reboot_command, in_place)
            plan = _plan(argv, given, on, metrics, stdin)
            campaign.begin(plan, commands, sides=sides, rounds=rounds, ledger=_lasting(given.ledger or ""))
            if unit:
                _tell_unit(campaign)
                return
        raise typer.Exit(_go_on(campaign, given))


def _tell_unit(campaign: Campaign) -> None:
    from guestmark.engine.campaign import make_systemd_unit

    tell(make_systemd_unit(campaign.state, [_program(), "campaign", campaign.state.name]).rstrip())


def _program() -> str:
    """The path by which a unit starts guestmark: the checkout's launcher, or what was installed."""
    import shutil
    from pathlib import Path

    import guestmark

    beside = (Path(guestmark.__file__).parents[2], Path(sys.executable).parent)
    found = (folder / "guestmark" for folder in beside)
    there = next((path for path in found if path.is_file() and os.access(path, os.X_OK)), None)
    return str(there or shutil.which("guestmark") or "guestmark")


def _check(given: Measuring) -> None:
    """Raises `UsageError` for options that are about one run alone."""
    from guestmark.core.errors import UsageError

    alone = {
        "--fail-if": given.fail_if,
        "--junit": given.junit,
        "--csv": given.csv,
        "--prove": given.prove,
        "--keep": given.keep,
        "--quiet-host": given.quiet_host,
        "--over": given.over,
        "--name": given.name,
        "--note": given.note,
        "--label": given.label,
        "--tag": given.tag,
    }
    for option, value in alone.items():
        if value:
            raise UsageError(f"{option} is about one run, and a campaign makes many", hint="leave it out")


def _plan(
    argv: list[str],
    given: Measuring,
    on: list[str] | None,
    metrics: list[str] | None,
    stdin: str | None,
) -> Plan:

    from guestmark.core.context import Caller
    from guestmark.engine import preflight
    from guestmark.workloads.exec.plan import ExecOptions, build

    wanted = ExecOptions(
        on=on or ("host",),
        metrics=metrics or (),
        stdin_path=stdin,
        caller=Caller.current(),
        **given.overrides(),
    )
    plan = build(wanted, argv)
    preflight.check_requests(plan, plan.cells)
    return plan


def _lasting(ledger: str) -> str:
    """The ledger as it is named from anywhere."""
    return os.path.abspath(ledger) if ledger and "://" not in ledger else ledger


def _go_on(campaign: Campaign, given: Measuring) -> int:
    from guestmark.cli.session import Outputs, audience_of
    from guestmark.core.errors import ExitStatus
    from guestmark.engine.campaign import CampaignPause

    ended = campaign.continue_campaign(given.ledger, audience_of(Outputs(quiet=given.quiet)))
    if ended is CampaignPause.DONE:
        _tell_status(campaign, given)
    return ExitStatus.INTERRUPTED if ended is CampaignPause.INTERRUPTED else ExitStatus.ALL_MEASURED


def _tell_status(campaign: Campaign, given: Measuring) -> None:
    """How far it is, and what it shows by now."""
    from guestmark.cli.documents import write_all
    from guestmark.ledger import open_ledger
    from guestmark.report import session_comparison

    state = campaign.state
    if state.next_side is not None:
        say(f"{len(state.done)} of {len(state.order)} boots are measured; the next one is {state.next_side}")
    if not state.done:
        return
    with open_ledger(state.ledger or given.ledger, writable=False) as ledger:
        found = session_comparison.result(
            ledger, state.name, state.sides, [(boot.side, boot.run) for boot in state.done]
        )
    paths = {"json": given.json, "markdown": given.markdown, "html": given.html}
    write_all(session_comparison.page(found), lambda: session_comparison.document(found), paths)

"""`guestmark powercut`: what a power cut would leave of a guest's disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, budgeted, measuring
from guestmark.core.errors import UsageError

_REPLAY = "replay"


def _complete(incomplete: str) -> list[str]:
    return [word for word in (_REPLAY,) if word.startswith(incomplete)]


@measuring
def command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[replay LOG | -- COMMAND...]",
            help="A command, whose own fsyncs and the like are judged; with --check the lines it prints. Or look "
            "into a kept log: its directory, or the end of its name.",
            autocompletion=_complete,
        ),
    ] = None,
    *,
    on: Annotated[
        list[str] | None,
        options.on("Whose disks: tcg, kvm, uml, tcg/kvm, or host for a loop device here. Default: tcg,uml."),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="METHOD",
            help="How records are made durable: append, replace, overwrite, dsync, sqlite, mariadb or postgresql.",
        ),
    ] = "append",
    records: Annotated[
        int, typer.Option(metavar="N", min=2, max=100_000, help="How many records are written.")
    ] = 100,
    states: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=100_000,
            help="How many crash states are judged. Default: 300, of a database server 40.",
        ),
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Runs here, on the disk of each crash state, with the acknowledged lines as its input. It must fail "
            "if one of them is lost, or if the disk of a program that acknowledges nothing is not whole.",
        ),
    ] = None,
    check_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long the check may take for one state; over it, the state is not judged. Default: ten times as "
            "long as with nothing cut, at least 20s.",
        ),
    ] = None,
    acknowledge: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="With --check: which lines of the command's standard output acknowledge something. Default: each.",
        ),
    ] = None,
    for_: options.For = None,
    after: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="replay: only the states after this many requests.")
    ] = None,
    shell: Annotated[
        bool,
        typer.Option(
            "--shell", help="replay: open a shell on the recovered disk of --after, which is thrown away."
        ),
    ] = False,
    rerun: Annotated[
        bool, typer.Option("--rerun", help="replay: run the check on the recovered disk of --after again.")
    ] = False,
    image: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="replay: write the image that the cut --after leaves to FILE."),
    ] = None,
    survival: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="replay: what of the writes in flight survives: all, half or none."
        ),
    ] = None,
    given: Measuring,
) -> None:
    """Cut the power at every moment of a guest's writes, and look for lost data.

    Numbered records are made durable one by one on a disk whose writes and flushes are logged as this host's kernel
    sees them. Crash states of the log are recovered and searched for every acknowledged record. Two controls, one
    without barriers and one without flushes, must lose some; otherwise nothing is proven.

    Exit status: 0 all judged, 1 some failed or a platform was left out, 2 the command line is wrong, 3 nothing could be
    judged, 130 interrupted.
    """
    if what and what[0] == _REPLAY and check is None:
        _replay(what, _Look(after, survival, image, shell, rerun), given.ledger)
        return
    if after is not None or image is not None or survival is not None or shell or rerun:
        raise UsageError(
            "--after, --survival, --image, --shell and --rerun are for a log that was kept",
            hint="guestmark powercut replay LOG",
        )

    from guestmark.cli import session
    from guestmark.core.context import Caller
    from guestmark.plan.outline import Overrides
    from guestmark.workloads.powercut.plan import build

    wanted = Overrides(on=on or ("tcg", "uml"), **given.overrides())
    raw: dict[str, object] = {"method": method, "records": records, "states": states}
    if check is not None:
        raw |= {"method": "command", "command": what or [], "check": check}
        raw |= {"check_limit": check_limit or "", "acknowledge": acknowledge or ""}
    elif check_limit is not None or acknowledge is not None:
        raise UsageError(
            "--check-limit and --acknowledge go with --check", hint="guestmark powercut --check COMMAND"
        )
    elif what:
        raw |= {"method": "syncs", "command": what}
    plan = build(wanted, raw, Caller.current())
    outputs = replace(given.outputs(), budget_s=budgeted(for_, given))
    raise typer.Exit(session.execute(plan, given.ledger, outputs))


@dataclass(frozen=True, slots=True)
class _Look:
    """Which state of a kept log is looked at, and how."""

    after: int | None
    survival: str | None
    image: str | None
    shell: bool
    rerun: bool


def _replay(what: list[str], look: _Look, named: str | None) -> None:
    from guestmark.page.say import tell
    from guestmark.powercut import evidence, rerun

    if len(what) != 2:
        raise UsageError(f"there is no {' '.join(what)!r} here", hint="guestmark powercut replay LOG")
    ledger = Path(named) if named and "://" not in named else None
    wanted = [
        option
        for option, given in (("--image", look.image), ("--shell", look.shell), ("--rerun", look.rerun))
        if given
    ]
    if len(wanted) > 1:
        raise UsageError(f"{' and '.join(wanted)} cannot be combined", hint="one of them at a time")
    if not wanted:
        for line in evidence.describe_log(what[1], look.after, ledger):
            tell(line)
        return
    if look.after is None:
        raise UsageError(
            f"{wanted[0]} needs --after, which says where the power is cut", hint="e.g. --after 212"
        )
    if look.image is not None:
        tell(evidence.write_cut_image(what[1], look.after, look.survival, look.image, ledger))
    elif look.shell:
        raise typer.Exit(rerun.open_shell(what[1], look.after, look.survival, ledger))
    else:
        for line in rerun.check_again(what[1], look.after, look.survival, ledger):
            tell(line)

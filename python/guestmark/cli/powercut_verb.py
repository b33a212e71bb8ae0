"""`guestmark powercut`: what a power cut would leave of a guest's disk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring
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
            "if one of them is lost.",
        ),
    ] = None,
    after: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="replay: only the states after this many requests.")
    ] = None,
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
        _replay(what, after, survival, image, given.ledger)
        return
    if after is not None or image is not None or survival is not None:
        raise UsageError(
            "--after, --survival and --image are for a log that was kept",
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
    elif what:
        raw |= {"method": "syncs", "command": what}
    plan = build(wanted, raw, Caller.current())
    raise typer.Exit(session.execute(plan, given.ledger, given.outputs()))


def _replay(
    what: list[str], after: int | None, survival: str | None, image: str | None, named: str | None
) -> None:
    from guestmark.page.say import tell
    from guestmark.powercut import evidence

    if len(what) != 2:
        raise UsageError(f"there is no {' '.join(what)!r} here", hint="guestmark powercut replay LOG")
    ledger = Path(named) if named and "://" not in named else None
    if image is not None:
        if after is None:
            raise UsageError(
                "--image needs --after, which says where the power is cut", hint="e.g. --after 212"
            )
        tell(evidence.write(what[1], after, survival or "none", image, ledger))
        return
    for line in evidence.lines(what[1], after, ledger):
        tell(line)

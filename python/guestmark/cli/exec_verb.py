"""`guestmark exec`: one command, several platforms."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring

SETTINGS = {"allow_interspersed_args": False}


@measuring
def command(
    argv: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")
    ],
    *,
    on: Annotated[
        list[str] | None,
        options.on(
            "Where to run it: host, kvm, tcg, uml; naming one twice makes a null comparison. Default: host."
        ),
    ] = None,
    metrics: options.Metrics = None,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
    given: Measuring,
) -> None:
    """Measure any command on the host and in guests.

    Every block starts a fresh machine for each platform, in random order. The command is the host's own binary, run in
    the current directory with the current environment and user, in guests as on the host.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """
    from dataclasses import asdict

    from guestmark.cli import session
    from guestmark.platforms.base import Caller
    from guestmark.workloads.exec.plan import ExecOptions, build

    wanted = ExecOptions(
        on=on or ("host",),
        metrics=metrics or (),
        stdin_path=stdin,
        ignore_failure=ignore_failure,
        caller=asdict(Caller.current()),
        **given.overrides(),
    )
    raise typer.Exit(session.execute(build(wanted, argv), given.ledger, given.outputs()))

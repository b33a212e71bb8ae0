"""`guestmark boot`: where the time of a guest's start goes."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring

SETTINGS = {"allow_interspersed_args": False}


@measuring
def command(
    argv: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND...]", help="Runs in the guest after it is ready and before it shuts down."
        ),
    ] = None,
    *,
    on: Annotated[
        list[str] | None,
        options.on("What to boot: kvm, tcg, uml, or one inside another, such as tcg/kvm. Default: tcg,uml."),
    ] = None,
    initcalls: Annotated[
        bool,
        typer.Option(
            "--initcalls",
            help="List the kernel's slowest initcalls; tracing makes the start a little slower.",
        ),
    ] = False,
    guestfish: Annotated[
        bool,
        typer.Option("--guestfish", help="Also measure how libguestfs launches its guest, on tcg and kvm."),
    ] = False,
    given: Measuring,
) -> None:
    """Measure how guests start and end, phase by phase.

    From the hypervisor's start through firmware, kernel, modules, root filesystem and agent to an orderly shutdown, by
    the host's clock. Every block boots each platform once, in random order.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    from guestmark.cli import session
    from guestmark.core.context import Caller
    from guestmark.plan.outline import Overrides
    from guestmark.workloads.boot.plan import build

    wanted = Overrides(on=on or ("tcg", "uml"), **given.overrides())
    plan = build(wanted, argv or (), initcalls=initcalls, guestfish=guestfish, caller=Caller.current())
    raise typer.Exit(session.execute(plan, given.ledger, given.outputs()))

"""`guestmark fleet`: one plan on the machines of a lab."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options

_ACTIONS = {"run": "PLAN", "exec": "COMMAND", "resume": "FLEET", "show": "FLEET", "doctor": "", "worker": ""}
_OFFERED = ["run", "exec", "resume", "show", "doctor"]


def _complete(ctx: typer.Context, incomplete: str) -> list[str] | list[tuple[str, str]]:
    """Plans for `run`, fleets in the ledger for `resume` and `show`."""
    from guestmark.fleet.order import names

    wanted = _ACTIONS.get(ctx.params.get("action", ""))
    if wanted == "PLAN":
        return options.complete_plan(incomplete)
    if wanted != "FLEET":
        return []
    return options.complete_from_ledger(
        ctx, "the newest fleet", lambda ledger: [(name, "") for name in reversed(names(ledger))]
    )


def command(
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION", help="run, exec, resume, show or doctor.", autocompletion=lambda: _OFFERED
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGUMENT",
            help="run: a plan or a TOML file; exec: a command after --; resume, show: a fleet's name, or `last`.",
            autocompletion=_complete,
        ),
    ] = None,
    *,
    machines: Annotated[
        str | None, typer.Option("--machines", metavar="FILE", help="The lab: a TOML file of machines.")
    ] = None,
    on: Annotated[
        list[str] | None, options.on("run: where on each machine, instead of the platforms in the plan.")
    ] = None,
    settings: options.Settings = None,
    blocks: options.Blocks = None,
    precision: options.Precision = None,
    time_limit: options.TimeLimit = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="FACTOR", help="run: multiply what the plan marks, e.g. 0.05."),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="EXPR", help="run: only these cells.")] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="run: everything on each machine, also where machines are of one class."
        ),
    ] = False,
    json: options.Json = None,
    markdown: options.Markdown = None,
    html: options.Html = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Run a plan on the machines of a lab, and compare them.

    run PLAN --machines FILE: machines of one class divide the blocks of the plan among them, in one run. Any other
    machine, and with --whole every one, measures all of it in a separate run. All use one ledger that each of them
    reaches (a PostgreSQL server, or a file when this machine is alone). A block stays on one machine. Ctrl-C stops it.

    exec -- COMMAND: the same for one command, on the host unless --on names other platforms.

    resume FLEET: continues, from any machine that reaches the ledger.

    show FLEET: results by machine, and for machines of one class together.

    doctor --machines FILE: what each machine can measure, what makes them differ, and whether the ledger's server has
    room for all of them.

    Exit status: 0 all measured (lost trials were replaced), 1 some trials failed, something was left out on a machine,
    or a machine was given up, 2 the command line, the lab or the plan is wrong, 3 nothing could be measured, 130
    interrupted.
    """
    from guestmark.core.errors import UsageError, unknown

    if action not in _ACTIONS:
        raise unknown("action", action, _OFFERED)
    given = arguments or []
    if action == "exec":
        if not given:
            raise UsageError(
                "fleet exec needs a command", hint="guestmark fleet exec --machines lab.toml -- COMMAND"
            )
    elif len(given) != len(_ACTIONS[action].split()):
        usage = f"guestmark fleet {action} {_ACTIONS[action]}".rstrip()
        raise UsageError(f"fleet {action} takes {_ACTIONS[action] or 'no argument'}", hint=usage)
    if action == "worker":
        from guestmark.fleet import worker

        raise typer.Exit(worker.run())
    if action in {"run", "exec", "doctor"} and machines is None:
        raise UsageError(
            f"fleet {action} needs the lab's machines", hint="--machines lab.toml, see docs/guide/lab.md"
        )
    from guestmark.cli import fleets

    outputs = fleets.Outputs(json, markdown, html, quiet)
    if action == "doctor":
        assert machines is not None
        from guestmark.cli import fleet_doctor

        raise typer.Exit(fleet_doctor.doctor(machines, ledger, outputs))
    if action == "show":
        raise typer.Exit(fleets.show(given[0], ledger, outputs))
    if action == "resume":
        raise typer.Exit(fleets.resume(given[0], machines, ledger, outputs))
    from guestmark.core.units import parse_fraction
    from guestmark.plan.scale import parse_scale

    assert machines is not None
    overrides = {
        "on": on or None,
        "settings": settings or (),
        "only": only,
        "blocks": blocks,
        "precision": options.value("--precision", parse_fraction, precision),
        "time_limit_s": options.positive_duration("--time-limit", time_limit),
    }
    factor = options.value("--scale", parse_scale, scale)
    wanted = fleets.Wanted(
        fleets.plan_of(given) if action == "exec" else given[0],
        1.0 if factor is None else factor,
        {name: value for name, value in overrides.items() if value},
        whole,
    )
    raise typer.Exit(fleets.run(wanted, machines, ledger, outputs))

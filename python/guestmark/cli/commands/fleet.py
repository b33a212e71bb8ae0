"""Declares `guestmark fleet`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option
from guestmark.plan.scale import parse_scale

# What each action takes. The coordinator starts `worker` on the machines of a lab; nobody types it.
ACTIONS = {"run": "PLAN", "exec": "COMMAND", "resume": "FLEET", "show": "FLEET", "doctor": "", "worker": ""}
OFFERED_ACTIONS = ("run", "exec", "resume", "show", "doctor")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Run a plan on the machines of a lab, and compare them.

    run PLAN --machines FILE: machines of one class divide the blocks of the plan among them, in one run. Any other
    machine, and with --whole every one, measures all of it in a separate run. All use one ledger that each of them
    reaches (a PostgreSQL server, or a file if this machine is the only one). A block stays on one machine. Ctrl-C stops
    the fleet.

    exec -- COMMAND: does the same for one command, on the host unless --on names other platforms.

    resume FLEET: continues, from any machine that reaches the ledger.

    show FLEET: shows results by machine, and for machines of one class together.

    doctor --machines FILE: shows what each machine can measure, how they differ, and whether the ledger's server has
    room for all of them.

    Exit status: 0 all measured (lost trials were replaced), 1 some trials failed, something was left out on a machine,
    or a machine was given up, 2 the command line, the lab or the plan is wrong, 3 nothing could be measured, 130
    interrupted.
    """

    action: Annotated[
        str, Argument("ACTION", "run, exec, resume, show or doctor.", candidates=Candidates.FLEET_ACTIONS)
    ]
    arguments: Annotated[
        list[str] | None,
        Argument(
            "ARGUMENT...",
            "run: a plan or a TOML file; exec: a command after --; resume, show: a fleet's name, or `last`.",
            candidates=Candidates.FLEET_ARGUMENTS,
        ),
    ] = None
    machines: Annotated[
        str | None, Option("--machines", "The lab: a TOML file that lists its machines.", metavar="FILE")
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option(
            "run: where to run it on each machine, instead of the platforms in the plan."
        ),
    ] = None
    settings: options.Settings = None
    blocks: options.Blocks = None
    precision: options.Precision = None
    time_limit_s: options.TimeLimit = None
    scale: Annotated[
        float | None,
        Option(
            "--scale",
            "run: multiply the sizes, durations and counts that the plan marks, e.g. 0.05.",
            "FACTOR",
            parse=parse_scale,
        ),
    ] = None
    only: Annotated[str | None, Option("--only", "run: measure only these cells.", metavar="EXPR")] = None
    whole: Annotated[
        bool,
        Option("--whole", "run: measure everything on each machine, even if several are of one class."),
    ] = False
    json: options.Json = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: options.Quiet = False

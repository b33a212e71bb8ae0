"""`guestmark exec`: one command, several platforms."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.cli import options
from guestmark.plan.matrix import Null

SETTINGS = {"allow_interspersed_args": False}


def command(
    argv: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")
    ],
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on",
            metavar="PLATFORM,...",
            help="Where to run it: host, kvm, tcg, uml; twice the same is a null comparison. Default: host.",
            autocompletion=options.complete_platform,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="PLATFORM",
            help="What the others are compared with; a platform, or a cell as `tcg memory=1G`. Default: the first.",
            autocompletion=options.complete_platform,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FACTOR=LEVEL,...",
            help="Give guests this setting; several levels are compared with each other. May be repeated.",
            autocompletion=options.complete_setting,
        ),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Boot guests from this kernel: short for --set kernel=PATH."),
    ] = None,
    null: Annotated[
        Null, typer.Option(help="Which cells get a second copy that shows the noise floor.")
    ] = Null.BASELINE,
    blocks: Annotated[int | None, typer.Option(min=1, help="Run exactly this many blocks.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT", help="Stop when all ratios are known to this (default 2%), after 10 blocks."
        ),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Stop after this time at the latest (default 10m).")
    ] = None,
    trial_limit: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Kill the command after this time; the trial fails (default 10m)."
        ),
    ] = None,
    margin: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Differences below this do not matter (default 3%).")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option(min=0, help="Unmeasured runs on each fresh machine (default 1).")
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(min=1, help="Measured runs on each fresh machine (default: 1 to 10, by duration)."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME[:UNIT[:higher|lower]]=REGEX",
            help="Read a number from the output: group `value`, or the only group; the last match counts. The first "
            "--metric decides when the run is precise enough. May be repeated.",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the random order.")] = None,
    stdin: Annotated[
        str | None, typer.Option("--input", metavar="FILE", help="Give the command this file as input.")
    ] = None,
    ignore_failure: Annotated[
        bool,
        typer.Option(
            "--ignore-failure", "-i", help="Measure the command even when its exit status is not 0."
        ),
    ] = False,
    json: options.Json = None,
    csv: options.Csv = None,
    markdown: options.Markdown = None,
    ledger: options.Ledger = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure any command on the host and in guests.

    Every block starts a fresh machine for each platform, in random order. The command is the host's own binary, run in
    the current directory with the current environment and user, in guests as on the host.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """
    from dataclasses import asdict

    from guestmark.cli import session
    from guestmark.errors import UsageError
    from guestmark.plan.exec_plan import ExecOptions, build
    from guestmark.plan.units import parse_fraction
    from guestmark.platforms.base import Caller

    if blocks is not None and time_limit is not None:
        raise UsageError("--blocks and --time-limit exclude each other", hint="give one of them")
    given = ExecOptions(
        on=on or ("host",),
        baseline=baseline,
        settings=options.with_kernel(settings, kernel),
        null=null,
        blocks=blocks,
        precision=options.value("--precision", parse_fraction, precision),
        margin=options.value("--margin", parse_fraction, margin),
        time_limit_s=options.positive_duration("--time-limit", time_limit),
        trial_limit_s=options.positive_duration("--trial-limit", trial_limit),
        warmup=warmup,
        iterations=iterations,
        metrics=metrics or (),
        seed=seed,
        stdin_path=stdin,
        ignore_failure=ignore_failure,
        caller=asdict(Caller.current()),
    )
    outputs = session.Outputs(json=json, csv=csv, markdown=markdown, quiet=quiet)
    raise typer.Exit(session.execute(build(given, argv), ledger, outputs))

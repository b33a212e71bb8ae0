"""`guestmark exec`: one command, several platforms."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.agent.wire import StandardOutput
from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring
from guestmark.cli.style import Style
from guestmark.page.figures import TimeUnit
from guestmark.report.row_order import Sort

SETTINGS = {"allow_interspersed_args": False}


@measuring
def command(
    argv: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND... [--- COMMAND...]",
            help="The command and its arguments; several, with --- between them, are compared with the first.",
        ),
    ] = None,
    *,
    on: Annotated[
        list[str] | None,
        options.on(
            "Where to run it: host, kvm, tcg, uml, ssh:DEST; naming one twice makes a null comparison. Default: host."
        ),
    ] = None,
    command_: Annotated[
        list[str] | None,
        typer.Option(
            "--command",
            metavar="TEXT",
            help="One more command, as one word; what needs a shell gets one. Repeatable.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--command-name",
            "-n",
            metavar="NAME",
            help="The name of a command in tables. Repeat in the commands' order.",
        ),
    ] = None,
    lists: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter-list",
            "-L",
            metavar="NAME A,B,...",
            help="Levels of {NAME} in the commands. Repeatable.",
        ),
    ] = None,
    scans: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter-scan",
            "-P",
            metavar="NAME FIRST LAST",
            help="The same for numbers, in steps of 1 or -D.",
        ),
    ] = None,
    step: Annotated[
        str | None, typer.Option("--parameter-step-size", "-D", metavar="STEP", help="The step of -P.")
    ] = None,
    setup: options.Setup = None,
    prepare: options.Prepare = None,
    check: options.Check = None,
    conclude: options.Conclude = None,
    cleanup: options.Cleanup = None,
    shell: Annotated[
        str | None,
        typer.Option(
            "--shell",
            "-S",
            metavar="SHELL",
            help="Run every command in this shell, whose start is subtracted. Default: sh for texts that need one; "
            "none: no shell.",
        ),
    ] = None,
    no_shell: Annotated[bool, typer.Option("--no-shell", "-N", help="The same as --shell none.")] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="TEXT",
            help="One more command, the first, which the others are compared with.",
        ),
    ] = None,
    reference_name: Annotated[
        str | None, typer.Option("--reference-name", metavar="NAME", help="Its name in tables.")
    ] = None,
    min_runs: Annotated[
        int | None,
        typer.Option("--min-runs", "-m", metavar="N", min=1, help="Run at least this many blocks."),
    ] = None,
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", "-M", metavar="N", min=1, help="Run at most this many blocks.")
    ] = None,
    min_time: Annotated[
        float | None,
        typer.Option(
            "--min-benchmarking-time",
            metavar="SECONDS",
            min=0,
            hidden=True,
            help="Time each command for at least this long (default 3).",
        ),
    ] = None,
    style: Annotated[
        Style,
        typer.Option("--style", help="How the terminal is used: colours, a display that is drawn anew."),
    ] = Style.AUTO,
    sort: Annotated[
        Sort, typer.Option("--sort", help="The order of rows: the command line's, or the fastest first.")
    ] = Sort.AUTO,
    unit: Annotated[
        TimeUnit | None, typer.Option("--time-unit", "-u", help="Show times in this unit.")
    ] = None,
    metrics: options.Metrics = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Six blocks or 20 s, whichever comes first: a verdict, or 'not yet'."),
    ] = False,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="WHERE",
            help="Where standard output goes: null (/dev/null, the default unless --metric reads it), pipe, or "
            "inherit (as --show-output). Once, or once for each command.",
        ),
    ] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Keep the output, and show the end of it after each trial.")
    ] = False,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
    ignored_statuses: Annotated[str | None, typer.Option("--ignored-statuses", hidden=True)] = None,
    push: Annotated[
        list[str] | None,
        typer.Option(
            "--push",
            metavar="FILE",
            help="Bring this file to other machines (ssh:DEST) for each trial; the command runs beside it there. May "
            "be repeated.",
        ),
    ] = None,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Continue even if most platforms named with --on cannot be used here."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=options.show_version, is_eager=True, hidden=True)
    ] = False,
    given: Measuring,
) -> None:
    """Measure any command on the host and in guests.

    Every block starts a fresh machine for each platform, in random order. Guests run the host's own binary, in the
    current directory with the current environment and user. Another machine (ssh:DEST) runs its own, in the home
    directory there, unless --push brings the file. With disk factors (--set filesystem=xfs) the command runs in a new
    directory on that disk; {disk} in the command stands for its path.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    import gc

    gc.disable()  # until the run begins
    from dataclasses import replace

    from guestmark.cli import hyperfine, session
    from guestmark.core.context import Caller
    from guestmark.core.errors import UsageError
    from guestmark.page.say import say
    from guestmark.workloads.exec.plan import ExecOptions, build

    del version
    shell_words = hyperfine.shell_of(shell, without=no_shell)
    if not argv and not command_:
        raise UsageError(
            "missing argument '-- COMMAND...'", hint="guestmark exec --help shows what can be given"
        )
    if reference is not None:
        names = [reference_name or "", *(names or ())]
    elif reference_name is not None:
        raise UsageError(
            "--reference-name goes with --reference", hint="e.g. --reference ./old --reference-name old"
        )
    if texts := hyperfine.as_texts(argv or ()):
        argv, command_ = None, [*texts, *(command_ or ())]
    commands = hyperfine.typed((), [reference] if reference is not None else (), shell_words)
    commands += hyperfine.typed(argv or (), command_, shell_words)
    in_shell = {number: one.text for number, one in enumerate(commands) if one.text is not None}
    if in_shell and shell_words is None and not given.quiet:
        say("sh -c runs what needs a shell; its start is measured, too, and subtracted")
    first, *others = (one.words for one in commands)
    machines = (any(on or ()) and on != ["host"]) or bool(given.settings or given.kernel)
    outputs_of, inherit = hyperfine.output_of(output)
    show_output = show_output or inherit
    statuses = hyperfine.ignored(ignored_statuses)
    wanted = ExecOptions(
        on=on or ("host",),
        metrics=metrics or (),
        stdin_path=None if stdin == hyperfine.NO_INPUT else stdin,
        ignore_failure=ignore_failure or statuses == (),
        statuses=(0, *(statuses or ())),
        push=push or (),
        commands=others,
        names=names or (),
        output=(StandardOutput.PIPE,) if show_output else outputs_of,
        texts=in_shell,
        min_blocks=min_runs,
        max_blocks=max_runs,
        enough_s=min_time,
        quick=quick,
        timing=not given.fail_if and not given.prove,
        parameters=hyperfine.parameters(lists, scans, step, machines=machines),
        hooks=options.hooks(
            1 + len(others), setup=setup, prepare=prepare, check=check, conclude=conclude, cleanup=cleanup
        ),
        caller=Caller.current(),
        **given.overrides(),
    )
    outputs = replace(
        given.outputs(show_output=show_output), partial=partial, style=style, sort=sort, unit=unit,
        referenced=reference is not None, quiet=given.quiet or style is Style.NONE,
    )  # fmt: skip
    raise typer.Exit(session.execute(build(wanted, first), given.ledger, outputs))

"""`guestmark exec`: one command, several platforms."""

from __future__ import annotations

from typing import Annotated

import typer

from guestmark.agent.wire import StandardOutput
from guestmark.cli import options
from guestmark.cli.measuring import Measuring, measuring

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
    no_shell: Annotated[
        bool,
        typer.Option("--no-shell", "-N", help="Accepted and ignored: commands run without a shell anyway."),
    ] = False,
    metrics: options.Metrics = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Six blocks or 20 s, whichever comes first: a verdict, or 'not yet'."),
    ] = False,
    output: Annotated[
        StandardOutput | None,
        typer.Option(
            "--output",
            help="Where standard output goes: null (/dev/null, the default unless --metric reads it) or pipe.",
        ),
    ] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Keep the output, and show the end of it after each trial.")
    ] = False,
    stdin: options.Input = None,
    ignore_failure: options.IgnoreFailure = False,
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
    from guestmark.core.shell_syntax import needs_shell
    from guestmark.page.say import say
    from guestmark.workloads.exec.plan import ExecOptions, build

    del no_shell
    if not argv and not command_:
        raise UsageError(
            "missing argument '-- COMMAND...'", hint="guestmark exec --help shows what can be given"
        )
    if texts := hyperfine.as_texts(argv or ()):
        argv, command_ = None, [*texts, *(command_ or ())]
    first, *others = hyperfine.commands(argv or (), command_)
    if not given.quiet and any(map(needs_shell, command_ or ())):
        say("sh -c runs what needs a shell, whose start is in the figures")
    wanted = ExecOptions(
        on=on or ("host",),
        metrics=metrics or (),
        stdin_path=stdin,
        ignore_failure=ignore_failure,
        push=push or (),
        commands=others,
        names=names or (),
        output=StandardOutput.PIPE if show_output else output,
        quick=quick,
        timing=not given.fail_if and not given.prove,
        parameters=hyperfine.parameters(lists, scans, step),
        hooks=options.hooks(
            1 + len(others), setup=setup, prepare=prepare, check=check, conclude=conclude, cleanup=cleanup
        ),
        caller=Caller.current(),
        **given.overrides(),
    )
    outputs = replace(given.outputs(show_output=show_output), partial=partial)
    raise typer.Exit(session.execute(build(wanted, first), given.ledger, outputs))

"""Declares `guestmark exec`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.cli.style import Style
from guestmark.core.option import Argument, Option
from guestmark.page.figures import TimeUnit
from guestmark.report.row_order import RowOrder

OPTIONS_FIRST = True


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Measure any command on the host and in guests.

    Every block starts a fresh machine for each platform, in random order. Guests run the host's own binary, in the
    current directory with the current environment and user. Another machine (ssh:DEST) runs its own binary, in the home
    directory there, unless --push copies the file. With disk factors (--set filesystem=xfs) the command runs in a new
    directory on that disk; {disk} in the command stands for its path.

    Exit status: 0 all measured, 1 some trials failed or a platform was left out, 2 the command line is wrong, 3 nothing
    could be measured, 130 interrupted (guestmark resume continues).
    """

    argv: Annotated[
        list[str] | None,
        Argument(
            "-- COMMAND... [--- COMMAND...]",
            "The command and its arguments. Put --- between several commands to compare them with the first.",
        ),
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option(
            "Where to run the command: host, kvm, tcg, uml, ssh:DEST. The same platform twice makes "
            "a null comparison. Default: host."
        ),
    ] = None
    machine: options.Machine = None
    command_texts: Annotated[
        list[str] | None,
        Option(
            "--command",
            "Another command, as one quoted argument; it runs in a shell if it needs one. Repeatable.",
            metavar="TEXT",
        ),
    ] = None
    names: Annotated[
        list[str] | None,
        Option(
            "--command-name -n",
            "A command's name in tables. Repeat it in the order of the commands.",
            metavar="NAME",
        ),
    ] = None
    lists: Annotated[
        list[str] | None,
        Option(
            "--parameter-list -L", "Levels of {NAME} in the commands. Repeatable.", metavar="NAME A,B,..."
        ),
    ] = None
    scans: Annotated[
        list[str] | None,
        Option(
            "--parameter-scan -P",
            "Levels of {NAME} from FIRST to LAST, in steps of 1 or of -D. Repeatable.",
            metavar="NAME FIRST LAST",
        ),
    ] = None
    step: Annotated[
        str | None, Option("--parameter-step-size -D", "The step of --parameter-scan.", metavar="STEP")
    ] = None
    setup: options.Setup = None
    prepare: options.Prepare = None
    check: options.Check = None
    conclude: options.Conclude = None
    cleanup: options.Cleanup = None
    shell: Annotated[
        str | None,
        Option(
            "--shell -S",
            "Run every command in this shell; the time that the shell takes to start is subtracted. "
            "Default: sh for commands that need a shell. none: no shell.",
            metavar="SHELL",
        ),
    ] = None
    no_shell: Annotated[bool, Option("--no-shell -N", "The same as --shell none.")] = False
    reference: Annotated[
        str | None,
        Option(
            "--reference",
            "Another command, which becomes the first: the others are compared with it.",
            metavar="TEXT",
        ),
    ] = None
    reference_name: Annotated[
        str | None, Option("--reference-name", "The reference command's name in tables.", metavar="NAME")
    ] = None
    min_time: Annotated[
        float | None,
        Option(
            "--min-benchmarking-time",
            "Time each command for at least this long (default 3).",
            metavar="SECONDS",
            minimum=0,
            hidden=True,
        ),
    ] = None
    style: Annotated[
        Style,
        Option(
            "--style",
            "How to use the terminal: with or without colours, redrawing progress or printing lines.",
        ),
    ] = Style.AUTO
    sort: Annotated[
        RowOrder, Option("--sort", "Order of the rows: as on the command line, or the fastest first.")
    ] = RowOrder.AUTO
    unit: Annotated[TimeUnit | None, Option("--time-unit -u", "Show times in this unit.")] = None
    metrics: options.Metrics = None
    quick: Annotated[
        bool,
        Option(
            "--quick",
            "Stop after six blocks or 20 s, whichever comes first: the answer is a verdict or 'not yet'.",
        ),
    ] = False
    output: Annotated[
        list[str] | None,
        Option(
            "--output",
            "Where standard output goes: null (/dev/null, the default unless --metric reads it), "
            "pipe, or inherit (as --show-output). Give it once, or once for each command.",
            metavar="WHERE",
        ),
    ] = None
    show_output: Annotated[
        bool, Option("--show-output", "Keep the output, and show its end after each trial.")
    ] = False
    stdin: options.Input = None
    ignore_failure: options.IgnoreFailure = False
    # An option cannot have an optional value; --ignore-failure=STATUSES becomes this one before it is parsed.
    ignored_statuses: Annotated[str | None, Option("--ignored-statuses", hidden=True)] = None
    push: Annotated[
        list[str] | None,
        Option(
            "--push",
            "Copy this file to other machines (ssh:DEST) for each trial; the command runs in the "
            "copy's directory there. Repeatable.",
            metavar="FILE",
        ),
    ] = None
    partial: Annotated[
        bool, Option("--partial", "Continue even if most platforms named with --on cannot be used here.")
    ] = False
    # hyperfine accepts it anywhere on its command line.
    version: Annotated[bool, Option("--version -V", "Show the version and exit.", hidden=True)] = False

"""Declares `guestmark powercut`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.cli.measure_options import MeasureOptions
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options(MeasureOptions):
    """Cut the power at every moment of a guest's writes, and look for lost data.

    Numbered records are made durable one by one, on a disk whose writes and flushes are logged as this host's kernel
    sees them. Crash states are built from the log, recovered, and searched for every acknowledged record. Two controls,
    one without barriers and one without flushes, must lose some records; otherwise nothing is proven.

    Exit status: 0 all judged, 1 some failed or a platform was left out, 2 the command line is wrong, 3 nothing could be
    judged, 130 interrupted.
    """

    what: Annotated[
        list[str] | None,
        Argument(
            "[replay LOG | -- COMMAND...]",
            "A command, whose own fsyncs and other syncs are judged, or with --check the lines that "
            "it prints. Or a kept log to inspect: its directory, or the end of its name.",
            candidates=Candidates.POWERCUT_WORDS,
        ),
    ] = None
    on: Annotated[
        list[str] | None,
        options.make_platforms_option(
            "Whose disks to test: tcg, kvm, uml, tcg/kvm, or host for a loop device here. Default: tcg,uml."
        ),
    ] = None
    method: Annotated[
        str,
        Option(
            "--method",
            "How records are made durable: append, replace, overwrite, dsync, sqlite, mariadb or postgresql.",
            metavar="METHOD",
        ),
    ] = "append"
    records: Annotated[
        int, Option("--records", "Number of records to write.", metavar="N", minimum=2, maximum=100_000)
    ] = 100
    states: Annotated[
        int | None,
        Option(
            "--states",
            "Number of crash states to judge. Default: 300, or 40 for a database server.",
            metavar="N",
            minimum=1,
            maximum=100_000,
        ),
    ] = None
    check: Annotated[
        str | None,
        Option(
            "--check",
            "Run this here, on the disk of each crash state, with the acknowledged lines as its "
            "input. It must fail if one of them is lost, or, for a program that acknowledges "
            "nothing, if the disk is damaged.",
            metavar="COMMAND",
        ),
    ] = None
    check_limit: Annotated[
        str | None,
        Option(
            "--check-limit",
            "Time limit of the check for one state; a state whose check takes longer is not judged. "
            "Default: ten times as long as without a cut, at least 20s.",
            metavar="DURATION",
        ),
    ] = None
    acknowledge: Annotated[
        str | None,
        Option(
            "--acknowledge",
            "With --check: the lines of the command's standard output that count as "
            "acknowledgements. Default: every line.",
            metavar="REGEX",
        ),
    ] = None
    budget_s: options.Budget = None
    after: Annotated[
        int | None,
        Option("--after", "replay: show only the states after this many requests.", metavar="N", minimum=1),
    ] = None
    shell: Annotated[
        bool,
        Option(
            "--shell",
            "replay: open a shell on the recovered disk of --after; the disk is discarded afterwards.",
        ),
    ] = False
    rerun: Annotated[
        bool, Option("--rerun", "replay: run the check on the recovered disk of --after again.")
    ] = False
    image: Annotated[
        str | None,
        Option("--image", "replay: write the disk image as the cut of --after leaves it.", metavar="FILE"),
    ] = None
    survival: Annotated[
        str | None,
        Option(
            "--survival",
            "replay: how many of the writes in flight survive: all, half or none.",
            metavar="KIND",
        ),
    ] = None

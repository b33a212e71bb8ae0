"""Declares `guestmark gate`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Judge whether a run meets its limits, and exit as build servers and `git bisect run` expect.

    Several runs, from other times or machines, are judged together. The run is then the unit, because the
    machine and the time shift all blocks of a run alike.

    Without --fail-if, the run's own gates are used. If GITHUB_STEP_SUMMARY names a file, a table is appended to it.

    Exit status: 0 all limits are met, 1 one is broken, 125 undecided (the output tells how many more blocks are
    needed), 128 or more it could not be judged.
    """

    runs: Annotated[
        list[str] | None,
        Argument(
            "[RUN...]",
            "A run's id, the beginning or end of its id, or `last`. Several runs are judged together.",
            candidates=Candidates.RUNS,
        ),
    ] = None
    fail_if: options.FailIf = None
    junit: options.Junit = None
    json: options.Json = None
    markdown: options.Markdown = None
    html: options.Html = None
    ledger: options.Ledger = None
    quiet: Annotated[bool, Option("--quiet -q", "Print nothing; only set the exit status.")] = False

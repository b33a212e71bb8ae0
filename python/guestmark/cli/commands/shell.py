"""Declares `guestmark shell`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.cli import options
from guestmark.core.option import Argument, Candidates, Option

OPTIONS_FIRST = True


@dataclass(frozen=True, kw_only=True)
class Options:
    """Open a shell in the very guest that would be measured.

    The guest boots as for a trial, with the current directory, environment and user. Everything written in it is lost
    when it ends. Without a terminal, the shell reads its commands from standard input. The exit status is the
    shell's.
    """

    argv: Annotated[list[str] | None, Argument("[-- COMMAND...]", "Run this instead of a shell.")] = None
    on: Annotated[str, options.make_platforms_option("The platform.", "PLATFORM")]
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            "Give the guest this setting. Repeatable.",
            metavar="FACTOR=LEVEL",
            candidates=Candidates.SETTINGS,
        ),
    ] = None
    kernel: Annotated[
        str | None,
        Option("--kernel", "Boot guests from this kernel; short for --set kernel=PATH.", metavar="PATH"),
    ] = None

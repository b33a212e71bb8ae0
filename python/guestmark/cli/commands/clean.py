"""Declares `guestmark clean`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.core.option import Argument, Option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Remove what crashes have left behind; with --all, also empty the cache.

    Runs clean up after themselves, even when killed. This command finds what a crash of the machine or an older version
    has left: scratch directories, disk images, control groups, unfinished files in the cache, and stopped processes of
    a killed guestmark. It touches nothing that a running process uses or that belongs to another user.
    """

    directories: Annotated[
        list[str] | None,
        Argument(
            "[DIRECTORY...]",
            "Other directories that held disk images: those given with --set location=DIRECTORY.",
        ),
    ] = None
    on: Annotated[
        str | None,
        Option(
            "--on",
            "Clean these other machines instead of this one, e.g. ssh:lab1, including the agents "
            "that are kept there.",
            metavar="PLATFORMS",
        ),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run -n", "List what would be removed; remove nothing.")] = False
    everything: Annotated[
        bool,
        Option(
            "--all",
            "Also empty the cache, and show what else guestmark keeps on this machine: runs, keys, set-up.",
        ),
    ] = False

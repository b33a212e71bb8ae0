"""`guestmark clean`: removes what crashes have left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.core.errors import ExitStatus, UsageError
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.engine.leavings import Orphan


def command(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIRECTORY...]",
            help="Other directories that held images: those given with --set location=DIRECTORY.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")
    ] = False,
) -> None:
    """Remove what crashes have left behind.

    Runs clean up after themselves, also when they are killed. What is left by a crash of the machine or by an older
    version is found here: scratch directories, images of disks, control groups, half-made files in the cache, and
    processes that were stopped when their guestmark was killed. Nothing is touched that a running process uses, or that
    is another user's.
    """
    from guestmark.core.units import format_size
    from guestmark.engine import leavings

    for directory in directories or ():
        if not Path(directory).is_dir():
            raise UsageError(f"there is no directory {directory}", hint="guestmark clean --help")
    orphans = leavings.orphans()
    failed = bool([orphan for orphan in orphans if not _ended(orphan, dry_run=dry_run)])
    found = leavings.find([Path(directory) for directory in directories or ()])
    if not found and not orphans:
        say("nothing is left behind")
        return
    for leaving in found:
        said = f"{leaving.path} ({format_size(leaving.size)})"
        if leaving.keeps:
            say(f"{said} stays: {leaving.keeps}")
            failed = True
            continue
        if dry_run:
            tell(f"would remove {said}")
            continue
        try:
            leaving.remove()
        except OSError as error:
            say(f"{said} cannot be removed: {error.strerror}")
            failed = True
        else:
            tell(f"removed {said}")
    if failed:
        raise typer.Exit(ExitStatus.SOME_FAILED)


def _ended(orphan: Orphan, *, dry_run: bool) -> bool:
    said = f"process {orphan.pid}, whose guestmark is gone: {orphan.command}"
    if dry_run:
        tell(f"would end {said}")
    elif orphan.end():
        tell(f"ended {said}")
    else:
        say(f"cannot end {said}")
        return False
    return True

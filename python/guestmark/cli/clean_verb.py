"""`guestmark clean`: removes what crashes have left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guestmark.core.errors import ExitStatus, UsageError
from guestmark.core.units import counted
from guestmark.page.say import say, tell

if TYPE_CHECKING:
    from guestmark.engine.leftovers import Orphan


def command(
    directories: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIRECTORY...]",
            help="Other directories that held images: those given with --set location=DIRECTORY.",
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="PLATFORMS",
            help="Clean these other machines instead of this one, e.g. ssh:lab1: the agents that are kept there, too.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only list what would be removed.")
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Empty the cache too, and show what else guestmark has on this machine: runs, keys, set-up.",
        ),
    ] = False,
) -> None:
    """Remove what crashes have left behind; with --all the cache, too.

    Runs clean up after themselves, even when killed. This finds what a crash of the machine or an older version has
    left: scratch directories, disk images, control groups, half-made files in the cache, and stopped processes of a
    killed guestmark. It touches nothing that a running process uses or that is another user's.
    """
    from guestmark.core.units import format_size
    from guestmark.engine import leftovers

    if on is not None:
        _elsewhere(on, dry_run=dry_run)
        return
    for directory in directories or ():
        if not Path(directory).is_dir():
            raise UsageError(f"there is no directory {directory}", hint="guestmark clean --help")
    orphans = leftovers.find_orphans()
    failed = bool([orphan for orphan in orphans if not _ended(orphan, dry_run=dry_run)])
    found = leftovers.find_leftovers([Path(directory) for directory in directories or ()])
    if not found and not orphans:
        say("no crash has left anything behind")
    for leaving in found:
        said = f"{leaving.path} ({format_size(leaving.size)})"
        if leaving.reason_to_keep:
            say(f"{said} stays: {leaving.reason_to_keep}")
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
    if everything:
        failed = not _cache_emptied(dry_run=dry_run) or failed
        _say_what_stays()
    if failed:
        raise typer.Exit(ExitStatus.SOME_FAILED)


def _cache_emptied(*, dry_run: bool) -> bool:
    """Removes the cache while nobody measures; whether that worked."""
    import shutil

    from guestmark.appliance.paths import cache_directory
    from guestmark.platforms.exclusive import LockPolicy, locking_machines

    cache = cache_directory()
    if dry_run:
        tell(f"would remove {cache}")
        return True
    with locking_machines(LockPolicy("guestmark clean --all", wait=False), here=True):
        try:
            shutil.rmtree(cache)
        except OSError as error:
            say(f"{error.filename} cannot be removed: {error.strerror}")
            return False
    tell(f"removed {cache}")
    return True


def _say_what_stays() -> None:
    """Names what only the user can give up, with the command that removes it."""
    import shlex

    from guestmark.core.home import default_path, state_directory
    from guestmark.core.own_program import checkout

    places = [("runs", default_path().parent), ("keys, campaigns and reports of crashes", state_directory())]
    if (checkout() / "tools" / "setup.sh").is_file():
        places += [
            ("set-up of this checkout", checkout() / name) for name in (".venv", "target", ".setup", "share")
        ]
    there = [(what, path) for what, path in places if path.exists()]
    for what, path in there:
        say(f"{path} stays: {what}")
    if there:
        say(f"to remove that, too: rm -r {shlex.join(str(path) for _, path in there)}", prefix="  ")
    if packages := _installed():
        say(
            f"set-up of this checkout has installed {counted(len(packages), 'package')}: {' '.join(packages)}"
        )
        say(f"to remove them, too: apt-get purge --autoremove {shlex.join(packages)}", prefix="  ")


def _installed() -> list[str]:
    """The system's packages that set-up has installed and that are still there."""
    import subprocess

    from guestmark.core import procfs
    from guestmark.core.own_program import checkout

    named = dict.fromkeys(procfs.read_text(checkout() / ".setup" / "packages").split())
    if not named:
        return []
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *named]
    said = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    there = {
        name
        for status, _, name in (line.partition(" ") for line in said.splitlines())
        if status == "installed"
    }
    return [name for name in named if name.partition(":")[0] in there]


def _elsewhere(names: str, *, dry_run: bool) -> None:
    """Cleans the machines of these names, each whatever becomes of the others."""
    from guestmark.core.errors import GuestmarkError
    from guestmark.platforms import registry
    from guestmark.platforms.base import KeepsRemoteFiles

    failed = False
    for name in filter(None, map(str.strip, names.split(","))):
        platform = registry.get_platform(name)
        if not isinstance(platform, KeepsRemoteFiles):
            raise UsageError(f"guestmark keeps nothing on {name}", hint="name other machines: --on ssh:lab1")
        try:
            removed = platform.clean_up(dry_run=dry_run)
        except GuestmarkError as error:
            say(f"{name} was not cleaned: {error.message}" + (f" ({error.hint})" if error.hint else ""))
            failed = True
            continue
        for path in removed:
            tell(f"{'would remove' if dry_run else 'removed'} {path} on {name}")
        if not removed:
            say(f"nothing is left behind on {name}")
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

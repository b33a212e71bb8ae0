"""Removes what crashes have left behind."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from guestmark.appliance.paths import locate_cache
from guestmark.cli.commands.clean import Options
from guestmark.core import procfs
from guestmark.core.errors import ExitStatus, GuestmarkError, UsageError
from guestmark.core.home import find_default_ledger, find_state_directory
from guestmark.core.own_program import find_checkout
from guestmark.core.units import format_count, format_size
from guestmark.engine import leftovers
from guestmark.engine.leftovers import Orphan
from guestmark.page.say import say, tell
from guestmark.platforms import registry
from guestmark.platforms.base import KeepsRemoteFiles
from guestmark.platforms.exclusive import LockPolicy, lock_machines
from guestmark.platforms.own.guard import OrphanMachine, destroy_orphans


def run(given: Options) -> int:
    """Ends orphans and removes leftovers, here or on other machines; the exit status tells whether all are gone."""
    if given.on is not None:
        all_removed = _clean_machines(given.on, dry_run=given.dry_run)
    else:
        all_removed = _clean_this_machine(given)
    return ExitStatus.ALL_MEASURED if all_removed else ExitStatus.SOME_FAILED


def _clean_this_machine(given: Options) -> bool:
    directories = [Path(directory) for directory in given.directories or ()]
    for directory in directories:
        if not directory.is_dir():
            raise UsageError(f"there is no directory {directory}", hint="guestmark clean --help")
    orphans = leftovers.find_orphans()
    all_removed = True
    # Processes are ended first, because files that they use could not be removed.
    for orphan in orphans:
        all_removed &= _end_orphan(orphan, dry_run=given.dry_run)
    machines = destroy_orphans(dry_run=given.dry_run)
    for machine in machines:
        all_removed &= _report_machine(machine, dry_run=given.dry_run)
    leftovers_found = leftovers.find_leftovers(directories)
    if not leftovers_found and not orphans and not machines:
        say("no crash has left anything behind")
    for leftover in leftovers_found:
        all_removed &= _remove_leftover(leftover, dry_run=given.dry_run)
    if given.everything:
        all_removed &= _remove_cache(dry_run=given.dry_run)
        _report_kept_files()
    return all_removed


def _report_machine(machine: OrphanMachine, *, dry_run: bool) -> bool:
    """Reports what became of one of the user's own machines, and returns whether it is gone."""
    if machine.problem:
        say(f"cannot destroy {machine}: {machine.problem}")
        return False
    tell(f"{'would destroy' if dry_run else 'destroyed'} {machine}, whose guestmark has ended")
    return True


def _remove_leftover(leftover: leftovers.Leftover, *, dry_run: bool) -> bool:
    described = f"{leftover.path} ({format_size(leftover.size)})"
    if leftover.reason_to_keep:
        say(f"{described} is kept: {leftover.reason_to_keep}")
        return False
    if dry_run:
        tell(f"would remove {described}")
        return True
    try:
        leftover.remove()
    except OSError as error:
        say(f"{described} cannot be removed: {error.strerror}")
        return False
    tell(f"removed {described}")
    return True


def _end_orphan(orphan: Orphan, *, dry_run: bool) -> bool:
    described = f"process {orphan.pid}, whose guestmark has ended: {orphan.command}"
    if dry_run:
        tell(f"would end {described}")
    elif orphan.end():
        tell(f"ended {described}")
    else:
        say(f"cannot end {described}")
        return False
    return True


def _remove_cache(*, dry_run: bool) -> bool:
    """Removes the cache while nobody measures, and returns whether that worked."""
    cache = locate_cache()
    if dry_run:
        tell(f"would remove {cache}")
        return True
    # A measurement must not lose the kernel and the templates that it is about to use.
    with lock_machines(LockPolicy("guestmark clean --all", wait=False), here=True):
        try:
            shutil.rmtree(cache)
        except OSError as error:
            say(f"{error.filename} cannot be removed: {error.strerror}")
            return False
    tell(f"removed {cache}")
    return True


def _report_kept_files() -> None:
    """Names what only the user may remove, with the command that removes it."""
    places = [
        ("runs", find_default_ledger().parent),
        ("keys, campaigns and reports of crashes", find_state_directory()),
    ]
    if (find_checkout() / "tools" / "setup.sh").is_file():
        for name in (".venv", "target", ".setup", "share"):
            places.append(("set-up of this checkout", find_checkout() / name))
    existing = [(content, path) for content, path in places if path.exists()]
    for content, path in existing:
        say(f"{path} is kept: {content}")
    if existing:
        say(f"to remove this, too: rm -r {shlex.join(str(path) for _, path in existing)}", prefix="  ")
    if packages := _list_set_up_packages():
        say(
            f"set-up of this checkout has installed {format_count(len(packages), 'package')}: {' '.join(packages)}"
        )
        say(f"to remove them, too: apt-get purge --autoremove {shlex.join(packages)}", prefix="  ")


def _list_set_up_packages() -> list[str]:
    """Lists the system's packages that set-up has installed and that are still there."""
    recorded = list(dict.fromkeys(procfs.read_text(find_checkout() / ".setup" / "packages").split()))
    if not recorded:
        return []
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\n", *recorded]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = set()
    for line in answer.splitlines():
        status, _, name = line.partition(" ")
        if status == "installed":
            installed.add(name)
    # A recorded name may carry an architecture, as in libc6:i386.
    return [name for name in recorded if name.partition(":")[0] in installed]


def _clean_machines(names: str, *, dry_run: bool) -> bool:
    """Cleans the machines of these names. One that cannot be cleaned does not stop the others."""
    all_removed = True
    for name in filter(None, map(str.strip, names.split(","))):
        platform = registry.get_platform(name)
        if not isinstance(platform, KeepsRemoteFiles):
            raise UsageError(f"guestmark keeps nothing on {name}", hint="name other machines: --on ssh:lab1")
        try:
            removed = platform.clean_up(dry_run=dry_run)
        except GuestmarkError as error:
            message = f"{name} was not cleaned: {error.message}"
            if error.hint:
                message += f" ({error.hint})"
            say(message)
            all_removed = False
            continue
        for path in removed:
            tell(f"{'would remove' if dry_run else 'removed'} {path} on {name}")
        if not removed:
            say(f"nothing is left behind on {name}")
    return all_removed

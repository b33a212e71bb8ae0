"""Which packages a command is from."""

import os
import shutil

from guestmark.foreign.packages import owner_of
from guestmark.workloads.exec.command import Command


def of_command(command: Command) -> tuple[str, ...]:
    """As `of_program`, of the program that a command runs."""
    return of_program(command.argv[0])


def of_program(name: str) -> tuple[str, ...]:
    """The packages that installed this host's program, and what its name leads to; none for a program of no package."""
    found = shutil.which(os.path.expanduser(name))
    if found is None:
        return ()
    owners = {owner_of(path) for path in (found, os.path.realpath(found))}
    return tuple(sorted(owner for owner in owners if owner is not None))

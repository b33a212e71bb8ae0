"""Declares `guestmark machine`."""

from dataclasses import dataclass
from typing import Annotated

from guestmark.core.option import Argument, Candidates, Option

# What each action takes.
ACTIONS = {
    "list": "",
    "show": "MACHINE",
    "new": "NAME",
    "check": "MACHINE",
    "trust": "FILE",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Define machines of your own by commands in a file, and check whether they can be measured.

    list: prints the defined machines: yours, and those that come with guestmark.

    show MACHINE: prints the file of a machine.

    new NAME: creates a file in your folder of machines; --from MACHINE begins with another machine's file.

    check MACHINE: creates machines, and tries everything that measuring needs: both streams, exit statuses, arguments,
    64 MB both ways, 1,000 commands, kills, leftovers. Each failing point says what to change.

    trust FILE: prints the commands of a file outside your folder, and allows guestmark to execute them.

    MACHINE is a name or a file.
    """

    action: Annotated[
        str, Argument("ACTION", "list, show, new, check or trust.", candidates=Candidates.MACHINE_ACTIONS)
    ]
    machine: Annotated[
        str | None, Argument("[MACHINE]", "A machine's name, or the path of its file.", Candidates.MACHINES)
    ] = None
    origin: Annotated[
        str | None,
        Option("--from", "new: begin with this machine's file.", "MACHINE", candidates=Candidates.MACHINES),
    ] = None
    json: Annotated[bool, Option("--json", "list, check: print JSON instead of text.")] = False

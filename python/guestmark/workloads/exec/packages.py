"""Which packages a command is from."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

from guestmark.foreign.packages import owner_of


def of_command(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The packages that installed this host's program, and what its name leads to; none for a program of no package."""
    found = shutil.which(os.path.expanduser(params["argv"][0]))
    if found is None:
        return ()
    owners = {owner_of(path) for path in (found, os.path.realpath(found))}
    return tuple(sorted(owner for owner in owners if owner is not None))

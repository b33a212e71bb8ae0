"""Which package a command is from."""

import os
import shutil
from collections.abc import Mapping
from typing import Any

from guestmark.foreign.origin import package_of


def of_command(params: Mapping[str, Any]) -> tuple[str, ...]:
    """The package that this host's program was installed by; none for a program that no package did."""
    found = shutil.which(os.path.expanduser(params["argv"][0]))
    package = package_of(found) if found else None
    return (package.name,) if package else ()

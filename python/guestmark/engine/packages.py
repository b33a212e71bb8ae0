"""The versions of the distribution's packages that figures may depend on, from dpkg's own records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from guestmark.core import registry

_STATUS = "var/lib/dpkg/status"
# Beside the packages of the programs that are run: what those are linked with, or load.
_UNDERNEATH = (
    "libc6",
    "libglib2.0-0",
    "libglib2.0-0t64",
    "libslirp0",
    "seabios",
    "ipxe-qemu",
    "ovmf",
    "libguestfs0",
)
_INSTALLED = re.compile(r"^Status: \S+ \S+ installed$", re.MULTILINE)
_VERSION = re.compile(r"^Version: (\S+)$", re.MULTILINE)


def versions(root: Path, measured: Iterable[str] = ()) -> dict[str, str]:
    """The version of each package below `root` that figures may depend on; empty where dpkg is not used.

    These are the packages of all programs that guestmark runs, what lies underneath them, and the `measured` ones.
    """
    names = {*(program.package for program in registry.programs()), *_UNDERNEATH, *measured}
    try:
        text = (root / _STATUS).read_text(errors="replace")
    except OSError:
        return {}
    found = {}
    for entry in text.split("\n\n"):
        name = entry.partition("\n")[0].removeprefix("Package: ")
        if name in names and _INSTALLED.search(entry) and (version := _VERSION.search(entry)):
            found[name] = version[1]
    return found

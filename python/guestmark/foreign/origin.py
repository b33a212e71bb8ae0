"""Which package a program of this host is from, so that another architecture gets the same source."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from guestmark.foreign.packages import Package

_FORMAT = r"${Package}\t${Version}\t${source:Package}\t${source:Version}\n"


@functools.cache
def package_of(path: str) -> Package | None:
    """The package that a file of this host was installed by; None for one that no package did."""
    if shutil.which("dpkg-query") is None:
        return None
    real = os.path.realpath(path)
    # Debian's packages name what is in /usr/bin by its old place, /bin, where they are older than the move.
    for name in (path, path.removeprefix("/usr"), real, real.removeprefix("/usr")):
        said = _ask("-S", name)
        owner = said.partition(": ")[0].partition(",")[0].strip()
        if owner and not owner.startswith("diversion"):
            fields = _ask("-W", f"-f={_FORMAT}", owner).splitlines()
            return Package(*fields[0].split("\t")) if fields else None
    return None


def _ask(*question: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        ["dpkg-query", *question], capture_output=True, text=True, check=False, timeout=60, env=environment
    ).stdout

"""Which package a program of this host is from, so that another architecture gets the same source."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from pathlib import Path

from guestmark.foreign.packages import FORMAT, Package

_INFO = Path("/var/lib/dpkg/info")
_FIRST = ("coreutils", "dash", "bash", "util-linux")  # the packages of most programs
_OWN = ("/bin/", "/sbin/", "/lib", "/usr/", "/opt/")  # where packages put programs


@functools.cache
def package_of(path: str) -> Package | None:
    """The package that a file of this host was installed by; None for one that no package did."""
    owner = owner_of(path)
    if owner is None or shutil.which("dpkg-query") is None:
        return None
    fields = _ask("-W", f"-f={FORMAT}", owner).splitlines()
    return Package(*fields[0].split("\t")) if fields else None


@functools.cache
def owner_of(path: str, info: Path = _INFO) -> str | None:
    """The package that a file was installed by, from dpkg's own lists: asking dpkg takes ten times as long."""
    real = os.path.realpath(path)
    # Debian's packages name what is in /usr/bin by its old place, /bin, where they are older than the move.
    names = {path, path.removeprefix("/usr"), real, real.removeprefix("/usr")}
    if not any(name.startswith(_OWN) and not name.startswith("/usr/local/") for name in names):
        return None
    lines = [f"\n{name}\n".encode() for name in names]
    likely = [info / f"{name}.list" for name in (os.path.basename(path), *_FIRST)]
    for file in (*likely, *sorted(info.glob("*.list"))):
        with contextlib.suppress(OSError):
            held = file.read_bytes()
            if any(line in held for line in lines):
                return file.stem.partition(":")[0]
    return None


def _ask(*question: str) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        ["dpkg-query", *question], capture_output=True, text=True, check=False, timeout=60, env=environment
    ).stdout

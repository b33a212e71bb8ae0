"""A program that is saved with a template, for a control: Python with OpenSSL, which runs before there is a root."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from guestmark.core.errors import PlatformUnusableError
from guestmark.workloads.clones.sources import RESIDENT

_PYTHON = "/usr/bin/python3"
_BELOW = "resident"  # of /guestmark in the initramfs; the agent starts what its `words` say
_TOLD_S = 20.0
# All files that such a program has open or mapped, and those of modules that are no part of the interpreter.
_ASKED = """
import sys, json, os, _ssl, _random, _socket, encodings.ascii
mapped = {line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if line.count("/") > 1}
modules = {m.__file__ for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
print(json.dumps([sys.prefix, "python%d.%d" % sys.version_info[:2], sorted(mapped), sorted(modules), os.__file__]))
"""


@functools.cache
def resident() -> Mapping[str, Path | bytes]:
    """Files for the initramfs, by paths below /guestmark. Raises `PlatformUnusableError` without such a Python."""
    try:
        told = subprocess.run(
            [_PYTHON, "-I", "-S", "-c", _ASKED], capture_output=True, timeout=_TOLD_S, check=True
        ).stdout
        prefix, name, mapped, modules, landmark = json.loads(told)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PlatformUnusableError(
            f"{_PYTHON} with OpenSSL, which is saved with a template, is not there",
            hint="install Debian's package python3",
        ) from error
    files: dict[str, Path | bytes] = {}
    loader = ""
    for path in filter(os.path.isfile, (*mapped, *modules, landmark)):
        file = Path(path)
        if file.is_relative_to(f"{prefix}/lib/{name}"):
            files[f"{_BELOW}/lib/{file.relative_to(f'{prefix}/lib')}"] = file
        elif ".so" in file.name:
            loader = file.name if file.name.startswith("ld-") else loader
            for link in _names(file):
                files[f"{_BELOW}/libraries/{link}"] = file
    here = f"/guestmark/{_BELOW}"
    program = f"{_BELOW}/bin/{name}"
    files[program] = Path(os.path.realpath(_PYTHON))
    files[f"{_BELOW}/program.py"] = RESIDENT.encode()
    words = [
        f"{here}/libraries/{loader}", "--library-path", f"{here}/libraries",
        f"/guestmark/{program}", "-I", "-S", f"{here}/program.py",
    ]  # fmt: skip
    files[f"{_BELOW}/words"] = "".join(f"{word}\n" for word in words).encode()
    return files


def _names(library: Path) -> list[str]:
    """What programs call it: the names in its directory that lead to it."""
    return [
        each.name
        for each in library.parent.glob(f"{library.name.partition('.so')[0]}.so*")
        if each.samefile(library)
    ]

"""Finds guestmark's own programs: in a checkout where cargo put them, else next to the package's scripts."""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

from guestmark.core.errors import GuestmarkError

_AGENT = "guestmark-agent"
_PROFILES = ("checkout", "release")


def find_checkout() -> Path:
    """Return the directory above `python/`, which is not a checkout if guestmark is installed."""
    return Path(__file__).resolve().parents[3]


def is_program(path: Path) -> bool:
    """Return whether this user can run that file."""
    return path.is_file() and os.access(path, os.X_OK)


def find_own_program(name: str, override: str | None, *, variable: str) -> Path | None:
    """Return the program `name`: `override`, else the newest one built in this checkout, else the installed one.

    None if there is none. Raises `GuestmarkError` if `override`, the value of `variable`, is not a program.
    """
    if override:
        path = Path(override)
        if not is_program(path):
            raise GuestmarkError(
                f"{variable}={override} is not an executable file",
                hint=f"unset {variable}, or build it: cargo build --release -p guestmark-agent",
            )
        return path.resolve()
    targets = (
        find_checkout() / "target" / f"{platform.machine()}-unknown-linux-gnu",
        find_checkout() / "target",
    )
    built = [target / profile / name for target in targets for profile in _PROFILES]
    found = max(filter(is_program, built), key=lambda path: path.stat().st_mtime_ns, default=None)
    installed = (Path(sysconfig.get_path("scripts")) / name, Path(sys.prefix) / "bin" / name)
    return found or next(filter(is_program, installed), None)


@functools.cache
def _require_agent(override: str | None) -> Path:
    if found := find_own_program(_AGENT, override, variable="GUESTMARK_AGENT"):
        return found
    raise GuestmarkError(
        "the agent's binary (guestmark-agent) is missing",
        hint="build it: cargo build --release -p guestmark-agent; or set GUESTMARK_AGENT to its path",
    )


def find_agent_binary() -> Path:
    """Return the path of `guestmark-agent`: `GUESTMARK_AGENT`, else the checkout's build, else the installed one.

    Raises `GuestmarkError` if there is none.
    """
    return _require_agent(os.environ.get("GUESTMARK_AGENT"))


@functools.cache  # tried once
def run_setup(part: str) -> bool:
    """Build a part of the checkout by its set-up script, which prints its steps to standard error.

    Returns False if that failed.
    """
    script = find_checkout() / "tools" / "setup.sh"
    if not script.is_file():
        return False
    command = ["/bin/sh", "-c", 'root=$1; . "$root/tools/setup.sh" && set_up "$2"', "guestmark"]
    done = subprocess.run(
        [*command, str(find_checkout()), part], stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False
    )
    return done.returncode == 0


def install_extra(module: str, extra: str, what: str) -> None:
    """Install `module` if it is missing; only a checkout can do so, by its lock file.

    `extra` is its extra in pyproject.toml; `what`, in the plural, names in the error what needs it. Raises
    `GuestmarkError` if the module is still missing.
    """
    if importlib.util.find_spec(module) is None:
        done = run_setup(extra)
        importlib.invalidate_caches()
        if not done or importlib.util.find_spec(module) is None:
            raise GuestmarkError(
                f"{what} need the package {module}, which is not installed",
                hint=f"{sys.executable} -m pip install 'guestmark[{extra}]'",
            )

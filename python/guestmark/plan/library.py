"""The built-in plans, and finding a plan by what the user typed."""

import os
from pathlib import Path

from guestmark.core.errors import UsageError
from guestmark.core.nearest import unknown

_BUILTIN = Path(__file__).parent / "builtin"
_LIMIT = 1024 * 1024  # bytes; no real plan is larger


def names() -> list[str]:
    """The built-in plans in alphabetical order."""
    return sorted(file.stem for file in _BUILTIN.glob("*.toml"))


def builtin(name: str) -> str:
    """The TOML of a built-in plan. Raises `UsageError` with the nearest name."""
    if name not in names():
        raise unknown("plan", name, names())
    return (_BUILTIN / f"{name}.toml").read_text(encoding="utf-8")


def find(wanted: str) -> tuple[str, str]:
    """Text of a plan and what to call it: a built-in one by its name, else a file. Raises `UsageError`."""
    looks_like_file = "/" in wanted or wanted.endswith(".toml")
    if not looks_like_file and wanted in names():
        return builtin(wanted), f"the built-in plan {wanted}"
    file = Path(os.path.expanduser(wanted))
    if not looks_like_file and not file.is_file():
        raise unknown("plan", wanted, names())
    try:
        with file.open("rb") as stream:
            data = stream.read(_LIMIT + 1)
    except OSError as error:
        raise UsageError(
            f"{wanted} cannot be read: {error.strerror or error}",
            hint=f"built-in plans: {', '.join(names())}",
        ) from error
    if len(data) > _LIMIT:
        raise UsageError(f"{wanted} is larger than 1 MiB", hint="check that it is a plan")
    try:
        return data.decode("utf-8"), wanted
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{wanted} is not UTF-8 in line {line}", hint="save it as UTF-8, as TOML requires"
        ) from error

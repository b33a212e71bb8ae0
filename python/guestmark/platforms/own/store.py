"""Where machines of the user's own are defined, and which of their files may be executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from guestmark.core.errors import UsageError, unknown_name_error
from guestmark.core.home import config_directory, state_directory
from guestmark.core.temporary import replace_file
from guestmark.platforms.own.definition import Definition, read_definition

VARIABLE = "GUESTMARK_MACHINES"  # more files, separated by colons
_SHIPPED = Path(__file__).with_name("machines")
_TRUSTED = "trusted-machines"


def machines_directory() -> Path:
    """Return the user's own folder of machines: `$XDG_CONFIG_HOME/guestmark/machines`. It need not exist."""
    return config_directory() / "machines"


def definition_files() -> Iterator[tuple[Path, bool]]:
    """Yield each file that defines a machine, and whether it is shipped; what is named first counts.

    Files of the variable come before the user's folder, and that before what is shipped.
    """
    for name in os.environ.get(VARIABLE, "").split(":"):
        if name:
            yield Path(name).absolute(), False
    for folder, shipped in ((machines_directory(), False), (_SHIPPED, True)):
        if folder.is_dir():
            for path in sorted(folder.glob("*.toml")):
                yield path, shipped


def add_file(path: Path) -> None:
    """Make a file known to this process and those that it starts, before all others."""
    known = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = f"{path.absolute()}:{known}" if known else str(path.absolute())


def definitions() -> dict[str, Definition]:
    """Read all definitions by name. Raises `UsageError` for a file of the user's that is wrong."""
    found: dict[str, Definition] = {}
    for path, shipped in definition_files():
        definition = read_definition(path, shipped=shipped)
        found.setdefault(definition.name, definition)
    return found


def find_definition(name: str) -> Definition:
    """Find the definition of that name. Raises `UsageError` with the nearest known one."""
    # By the file's name first, so that a broken file beside it does not matter.
    for path, shipped in definition_files():
        if path.stem == name:
            definition = read_definition(path, shipped=shipped)
            if definition.name == name:
                return definition
    known = definitions()
    if name not in known:
        raise unknown_name_error("machine", name, known)
    return known[name]


def is_trusted(definition: Definition) -> bool:
    """Tell whether the commands of a file may be executed.

    So are shipped ones, files in the user's own folder that nobody else can write, and texts that were trusted by
    `guestmark machine trust`.
    """
    return definition.shipped or _is_ours(definition.path) or definition.digest in _trusted_digests()


def trust(definition: Definition) -> None:
    """Remember that this very text may be executed. Raises `OSError`."""
    path = state_directory() / _TRUSTED
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digests = _trusted_digests() | {definition.digest}
    with replace_file(path) as new:
        new.write_text("".join(f"{digest}\n" for digest in sorted(digests)))


def check_trust(definition: Definition) -> None:
    """Raise `UsageError` for a file whose commands nobody has trusted, with these commands."""
    if not is_trusted(definition):
        raise UsageError(
            f"own:{definition.name} runs commands of {definition.path}, which nobody has trusted",
            hint=f"look at them and allow them: guestmark machine trust {definition.path}",
        )


def _is_ours(path: Path) -> bool:
    """Tell whether a file lies in the user's own folder, and neither it nor the folder can be written by others."""
    folder = machines_directory()
    if path.parent != folder:
        return False
    try:
        states = [os.stat(place) for place in (path, folder)]
    except OSError:
        return False
    return all(
        state.st_uid in {os.geteuid(), 0} and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        for state in states
    )


def _trusted_digests() -> set[str]:
    path = state_directory() / _TRUSTED
    try:
        state = os.stat(path)
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return set()
    # A list that somebody else could write says nothing.
    if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return set()
    return set(text.split())

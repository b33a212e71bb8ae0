"""Finds definitions of the user's own machines, and decides which of them may be executed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.home import find_config_directory, find_state_directory
from guestmark.core.quoting import describe_length, quote_word, quote_words
from guestmark.core.temporary import replace_file
from guestmark.ledger.signing_key import has_signed, read_public_key, sign_message
from guestmark.platforms.own.definition import Definition, read_definition

VARIABLE = "GUESTMARK_MACHINES"  # more files, separated by colons
_SHIPPED = Path(__file__).with_name("machines")
_TRUSTED = "trusted-machines"


def locate_machines_directory() -> Path:
    """Return the user's own folder of machines: `$XDG_CONFIG_HOME/guestmark/machines`. It need not exist."""
    return find_config_directory() / "machines"


def list_definition_files() -> Iterator[tuple[Path, bool]]:
    """Yield each file that defines a machine, and whether it is shipped; the first file with a name takes precedence.

    Files named by the environment variable come first, then those in the user's folder, then shipped ones.
    """
    for name in os.environ.get(VARIABLE, "").split(":"):
        if name:
            yield Path(name).absolute(), False
    for folder, shipped in ((locate_machines_directory(), False), (_SHIPPED, True)):
        if folder.is_dir():
            for path in sorted(folder.glob("*.toml")):
                yield path, shipped


def add_file(path: Path) -> None:
    """Put a file before all others in this process and its children. Raises `UsageError`."""
    file = str(path.absolute())
    if ":" in file:
        raise UsageError(f"{file} has a colon, which separates files in {VARIABLE}", hint="rename it")
    if known := os.environ.get(VARIABLE, ""):
        file = f"{file}:{known}"
    os.environ[VARIABLE] = file


def load_definitions() -> dict[str, Definition]:
    """Read all definitions, by name. Raises `UsageError` for mistakes in the user's files."""
    found: dict[str, Definition] = {}
    for path, shipped in list_definition_files():
        definition = read_definition(path, shipped=shipped)
        found.setdefault(definition.name, definition)
    return found


def find_definition(name: str) -> Definition:
    """Find the definition of that name. Raises `UsageError` with the nearest known one."""
    # A mistake in another file matters only if that file might have the name.
    known: dict[str, Definition] = {}
    mistake: UsageError | None = None
    for path, shipped in list_definition_files():
        try:
            definition = read_definition(path, shipped=shipped)
        except UsageError as error:
            if path.stem == name:
                raise
            mistake = mistake or error
            continue
        if definition.name == name:
            return definition
        known.setdefault(definition.name, definition)
    if mistake is not None:
        raise mistake
    raise make_unknown_name_error("machine", name, known)


def is_trusted(definition: Definition) -> bool:
    """Return whether the commands of a file may be executed.

    guestmark trusts shipped files, files in the user's own folder that no one else can write to, and the texts for
    which `guestmark machine trust` was called.
    """
    return definition.shipped or _is_ours(definition.path) or definition.digest in _read_trusted_digests()


def trust(definition: Definition) -> None:
    """Remember that exactly this text may be executed, signed with the user's own key. Raises `OSError`."""
    path = find_state_directory() / _TRUSTED
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    digests = _read_trusted_digests() | {definition.digest}
    with replace_file(path) as new:
        new.write_text(
            "".join(f"{digest} {sign_message(_make_message(digest))}\n" for digest in sorted(digests))
        )


def check_trust(definition: Definition) -> None:
    """Raise `UsageError` for an untrusted file, with a hint how to show its commands and how to allow them."""
    if not is_trusted(definition):
        file = quote_word(str(definition.path))
        raise UsageError(
            f"own:{definition.name} runs commands of {file}, which are not trusted yet",
            hint=f"show them: guestmark machine show {file}; allow them: guestmark machine trust {file}",
        )


def describe_execution(definition: Definition) -> list[str]:
    """Return all parts of a file that decide what is executed, one per line, with all characters made visible."""
    lines = [_describe_words("host", [definition.host])] if definition.host else []
    for key, template in definition.iterate_commands():
        lines.append(_describe_words(key, template.words))
    for name, value in definition.env.items():
        lines.append(_describe_words("env", [value], f"{name}="))
    for name, parameter in definition.parameters.items():
        lines.append(_describe_words(f"{{{name}}}", [parameter.default]))
        for level in parameter.levels:
            lines.append(_describe_words("", [level], "or "))
    return lines


def _describe_words(key: str, words: Sequence[str], before: str = "") -> str:
    shown = f"{before}{quote_words(words)}"
    if length := describe_length(" ".join(words)):
        shown = f"[{length}] {shown}"
    return f"{key:<10} {shown}"


def _is_ours(path: Path) -> bool:
    """Return whether a file is in the user's own folder, and only the user can write to the file and the folder.

    If the file is a link, this also has to be true of the target's folder.
    """
    folder = locate_machines_directory()
    if path.parent != folder:
        return False
    try:
        file = path.resolve(strict=True)
        states = [os.stat(place) for place in (file, file.parent, folder)]
    except (OSError, RuntimeError):
        return False
    return all(map(_is_writable_by_us_only, states))


def _is_writable_by_us_only(state: os.stat_result) -> bool:
    return state.st_uid in {os.geteuid(), 0} and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read_trusted_digests() -> set[str]:
    """Return the digests of texts that the user's own key has signed; other entries of the list are ignored."""
    try:
        text = (find_state_directory() / _TRUSTED).read_text()
    except (OSError, UnicodeDecodeError):
        return set()
    found = set()
    for line in text.splitlines():
        digest, _, signature = line.partition(" ")
        if signature and has_signed(read_public_key(), _make_message(digest), signature):
            found.add(digest)
    return found


def _make_message(digest: str) -> bytes:
    return f"guestmark-machine/1\n{digest}\n".encode()

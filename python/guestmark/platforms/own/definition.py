"""The definition of a user's own machine: commands in a TOML file, checked and typed."""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.redaction import is_secret_name
from guestmark.core.toml import read_toml, read_toml_text
from guestmark.platforms.ssh.destination import explain_bad_destination
from guestmark.platforms.ssh.session import make_ssh_words

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}", re.ASCII)
PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
# Placeholders that exist in every definition.
COMMAND, LINE, ID, SNAPSHOT = "command", "line", "id", "snapshot"
CPUS, MEMORY = "cpus", "memory"  # parameters whose values are checked inside the machine
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}", re.ASCII)
_WORDS = re.compile(
    r"\{([a-z][a-z0-9_]*)\.\.\.\}", re.ASCII
)  # a parameter whose value is any number of words
_HINT = "docs/guide/own-machines.md describes the file of a machine; guestmark machine new creates one"
_LONGEST_S = 3600.0
_LONGEST_HELP = 200


class Parameter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value in the commands that runs may set: `--set own.NAME=…`."""

    default: str
    help: str = ""
    levels: tuple[str, ...] = ()


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The seconds after which each command counts as failed."""

    create: float = 300.0
    ready: float = 120.0
    exec: float = 60.0  # until the agent inside has answered
    destroy: float = 60.0  # also of a snapshot
    snapshot: float = 300.0


Command = str | list[str]  # as in the file: a line, or a list of words


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file; commands are lines or lists of words."""

    name: str
    exec: Command
    help: str = ""
    create: Command = ""
    destroy: Command = ""
    ready: Command = ""
    version: Command = ""
    list: Command = ""
    pid: Command = ""
    snapshot: Command = ""
    restore: Command = ""
    discard: Command = ""
    env: dict[str, str] = {}
    parameters: dict[str, str | int | float | Parameter] = {}
    timeouts: Timeouts = Timeouts()
    # In any currency; time is charged from the start of `create`.
    price_per_hour: float | None = None
    # True if exec returns a command's output only after the command has ended.
    plain: bool = False
    # The ssh destination on which the commands run; empty for this host.
    host: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """A command line with placeholders. It is split into words before values are filled in, so values are never split.

    If `host` is given, the command runs there over ssh; the destination may also contain placeholders.
    """

    words: tuple[str, ...]
    host: str = ""

    @property
    def placeholders(self) -> set[str]:
        """The names of the placeholders."""
        found: set[str] = set()
        for word in (*self.words, self.host):
            found.update(_PLACEHOLDER.findall(word))
        for word in self.words:
            if spread := _WORDS.fullmatch(word):
                found.add(spread[1])
        return found

    def fill(self, values: Mapping[str, str], command: Sequence[str] = ()) -> list[str]:
        """Return the argument list.

        A word `{command}` is replaced with the words of `command`, and `{line}` with the same, quoted for a shell. A
        word `{name...}` is replaced with the words of that value, split as by a shell. Raises `UsageError` for a value
        that cannot be split.
        """
        known = {**values, LINE: shlex.join(command)}
        filled: list[str] = []
        for word in self.words:
            if word == f"{{{COMMAND}}}":
                filled += command
            elif spread := _WORDS.fullmatch(word):
                filled += _split_words(values[spread[1]], spread[1])
            else:
                filled.append(_PLACEHOLDER.sub(lambda found: known[found[1]], word))
        if self.host:
            host = _PLACEHOLDER.sub(lambda found: known[found[1]], self.host)
            return [*make_ssh_words(host), shlex.join(filled)]
        return filled

    def __bool__(self) -> bool:
        return bool(self.words)

    def __str__(self) -> str:
        return shlex.join(self.words)


def _split_words(value: str, name: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"{name} is {value!r}: {error}", hint="quote as in a shell") from error


@dataclass(frozen=True, slots=True)
class Definition:
    """How machines of one kind are created, entered and destroyed; `text` is the file's, as it was read."""

    name: str
    path: Path
    text: str
    shipped: bool
    help: str
    create: Template
    exec: Template
    destroy: Template
    ready: Template
    version: Template
    list: Template
    pid: Template
    snapshot: Template
    restore: Template
    discard: Template
    env: Mapping[str, str]
    parameters: Mapping[str, Parameter]
    timeouts: Timeouts
    price_per_hour: float | None
    plain: bool
    host: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the file's text, which identifies it."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def can_restore(self) -> bool:
        """True if the definition has the commands for snapshots; it has either all of them or none."""
        return bool(self.restore)

    def iterate_commands(self) -> Iterator[tuple[str, Template]]:
        """Yield each command of the file, with its key."""
        for key in COMMANDS:
            template: Template = getattr(self, key)
            if template:
                yield key, template

    def list_placeholder_values(self, levels: Mapping[str, str]) -> dict[str, str]:
        """Return the value of each parameter: its level in `levels`, which are keyed by parameter, or its default.

        Raises `UsageError` for a value that a command line cannot contain.
        """
        values = {name: levels.get(name, parameter.default) for name, parameter in self.parameters.items()}
        for name, value in values.items():
            _check_text(value, f"own:{self.name}: {name}")
        host = _PLACEHOLDER.sub(lambda found: values[found[1]], self.host)
        if self.host and (problem := explain_bad_destination(host)):
            raise UsageError(f"own:{self.name}: its host cannot be {host!r}", hint=problem)
        return values


_SAVING = ("snapshot", "restore", "discard")
COMMANDS = ("create", "ready", "exec", "destroy", "version", "list", "pid", *_SAVING)
# Commands that are not about one machine, so they have no id.
_WITHOUT_ID = frozenset({"version", "list", "discard"})


def read_definition(path: Path, *, shipped: bool = False) -> Definition:
    """Read the file of a machine. Raises `UsageError` with a hint for any mistake in it."""
    text = read_toml_text(path, _HINT, only_regular=True)
    return parse_definition(text, path, shipped=shipped)


def parse_definition(text: str, path: Path, *, shipped: bool = False) -> Definition:
    """Parse the text of a machine's file that users know as `path`. Raises `UsageError`."""
    tables = read_toml(text, str(path), _HINT)
    file = _convert_tables(tables, path)
    if not NAME.fullmatch(file.name):
        raise UsageError(
            f"{path}: a machine cannot be named {file.name!r}",
            hint="use lowercase letters and digits, and after the first character also - . _; at most 40 characters",
        )
    parameters = {name: _make_parameter(name, value, path) for name, value in file.parameters.items()}
    templates = {key: _parse_template(key, getattr(file, key), path, file.host) for key in COMMANDS}
    _check_host(file, templates, path)
    _check_commands(templates, parameters, path)
    _check_saving(templates, path)
    _check_values(file, path)
    return Definition(
        name=file.name,
        path=path,
        text=text,
        shipped=shipped,
        help=file.help,
        env=file.env,
        parameters=parameters,
        timeouts=file.timeouts,
        price_per_hour=file.price_per_hour,
        plain=file.plain,
        host=file.host,
        **templates,
    )


def _convert_tables(tables: dict[str, Any], path: Path) -> _File:
    fields = {field.name for field in msgspec.structs.fields(_File)}
    for key in tables:
        if key not in fields:
            error = make_unknown_name_error("key", key, fields)
            raise UsageError(f"{path}: {error.message}", hint=error.hint)
    try:
        return msgspec.convert(tables, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_reword_complaint(str(error))}", hint=_HINT) from error


def _reword_complaint(said: str) -> str:
    """Reword msgspec's error message for users."""
    what, _, where = said.partition(" - at `$")
    key = where.strip("`.").replace("[...]", "")
    what = what.replace("Object missing required field", "it lacks the key").replace(
        "Object contains unknown field", "no such key:"
    )
    what = re.sub(r"Expected `([^`]*)`, got `([^`]*)`", r"expected \1, got \2", what).replace(
        "str | array", "a string or a list of strings"
    )
    return f"{key}: {what}" if key else what


def _make_parameter(name: str, value: str | float | Parameter, path: Path) -> Parameter:
    if not PARAMETER.fullmatch(name) or name in {COMMAND, LINE, ID, SNAPSHOT}:
        raise UsageError(
            f"{path}: a parameter cannot be named {name!r}",
            hint=f"use lowercase letters, digits and _, but not {ID}, {COMMAND}, {LINE} or {SNAPSHOT}",
        )
    if is_secret_name(name):
        raise UsageError(
            f"{path}: the parameter {name} sounds like a secret, and parameters are stored with each run",
            hint="put secrets into env, whose values are never stored",
        )
    parameter = value if isinstance(value, Parameter) else Parameter(default=str(value))
    for text in (parameter.default, *parameter.levels):
        _check_text(text, f"{path}: {name}")
    if parameter.levels and parameter.default not in parameter.levels:
        raise UsageError(
            f"{path}: {name} is {parameter.default!r} by default, which is not one of its levels",
            hint=f"use one of {', '.join(parameter.levels)}",
        )
    return parameter


def _parse_template(key: str, command: Command, path: Path, host: str) -> Template:
    if isinstance(command, list):
        words = command
    else:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UsageError(f"{path}: {key}: {error}", hint="quote as in a shell") from error
    for word in words:
        _check_text(word, f"{path}: {key}")
    if not words:
        return Template(())
    return Template(tuple(words), host)


def _check_text(text: str, where: str) -> None:
    """Raise `UsageError` for characters that are invisible in a command line, or that no program can receive."""
    if any(ord(character) < 32 and character not in "\n\t" for character in text):
        raise UsageError(f"{where} has control characters", hint="remove them")


def _check_commands(
    templates: Mapping[str, Template], parameters: Mapping[str, Parameter], path: Path
) -> None:
    """Raise `UsageError` for unknown placeholders, and for commands that cannot work together."""
    for key, template in templates.items():
        known = _list_known_placeholders(key, parameters)
        for name in sorted(template.placeholders - known):
            names = ", ".join(f"{{{placeholder}}}" for placeholder in sorted(known))
            use = ""
            if known:
                use = f"use one of {names}, or "
            raise UsageError(
                f"{path}: {key} has the unknown placeholder {{{name}}}",
                hint=f"{use}define it in [parameters]",
            )
        for word in template.words:
            if (spread := _WORDS.fullmatch(word)) and spread[1] not in parameters:
                raise UsageError(
                    f"{path}: {key} has {word}, but only a parameter is split into words",
                    hint=f"write {{{spread[1]}}}",
                )
    for word in templates["exec"].words:
        if f"{{{COMMAND}}}" in word and word != f"{{{COMMAND}}}":
            raise UsageError(
                f"{path}: exec has {{command}} inside an argument, where the command's arguments would be joined",
                hint=f"write {word.replace('{command}', '{line}')}: {{line}} is the command as one line for a shell",
            )
    if not templates["exec"].placeholders & {COMMAND, LINE}:
        raise UsageError(
            f"{path}: exec has no {{command}}, so nothing can be run in the machine",
            hint="e.g. podman exec -i {id} {command}",
        )
    if templates["create"]:
        for key in ("create", "destroy"):
            if ID not in templates[key].placeholders:
                raise UsageError(
                    f"{path}: {key} has no {{id}}, so machines cannot be told apart",
                    hint="{id} is the machine's name in create, exec and destroy",
                )
    elif templates["destroy"]:
        raise UsageError(
            f"{path}: destroy needs create",
            hint="define both, or neither for a machine that already exists",
        )


def _list_known_placeholders(key: str, parameters: Iterable[str]) -> set[str]:
    known = set(parameters)
    if key not in _WITHOUT_ID:
        known.add(ID)
    if key == "exec":
        known |= {COMMAND, LINE}
    if key in _SAVING:
        known.add(SNAPSHOT)
    return known


def _check_host(file: _File, templates: Mapping[str, Template], path: Path) -> None:
    """Raise `UsageError` for an invalid host, and for keys that cannot be combined with a host."""
    if not file.host:
        return
    _check_text(file.host, f"{path}: host")
    if problem := explain_bad_destination(_PLACEHOLDER.sub("host", file.host)):
        raise UsageError(f"{path}: host cannot be {file.host!r}", hint=problem)
    if unknown := sorted(set(_PLACEHOLDER.findall(file.host)) - set(file.parameters)):
        raise UsageError(
            f"{path}: host has the unknown placeholder {{{unknown[0]}}}", hint="define it in [parameters]"
        )
    if templates["pid"]:
        raise UsageError(
            f"{path}: pid cannot be combined with host",
            hint="leave it out, as processes there cannot be inspected from here",
        )
    if file.env:
        raise UsageError(
            f"{path}: env cannot be combined with host",
            hint="set variables there, e.g. in ~/.ssh/environment, or with sh -c in the commands",
        )


def _check_saving(templates: Mapping[str, Template], path: Path) -> None:
    """Raise `UsageError` if commands for snapshots are missing, or do not identify the machine or the snapshot."""
    given = [key for key in _SAVING if templates[key]]
    if not given:
        return
    missing = [key for key in ("create", *_SAVING) if not templates[key]]
    if missing:
        raise UsageError(
            f"{path}: {given[0]} needs {' and '.join(missing)}",
            hint="snapshot saves {id} as {snapshot}, restore creates {id} from it, discard removes {snapshot}",
        )
    for key in _SAVING:
        needed = {ID: "machines", SNAPSHOT: "snapshots"}
        if key in _WITHOUT_ID:
            del needed[ID]
        for name, what in needed.items():
            if name not in templates[key].placeholders:
                raise UsageError(
                    f"{path}: {key} has no {{{name}}}, so {what} cannot be told apart",
                    hint="{snapshot} names the snapshot, {id} the machine",
                )


def _check_help(text: str, where: str) -> None:
    _check_text(text, where)
    if "\n" in text or len(text) > _LONGEST_HELP:
        raise UsageError(f"{where} is not one line of at most {_LONGEST_HELP} characters", hint="shorten it")


def _check_values(file: _File, path: Path) -> None:
    for field_ in msgspec.structs.fields(Timeouts):
        seconds = getattr(file.timeouts, field_.name)
        if not 0 < seconds <= _LONGEST_S:
            raise UsageError(
                f"{path}: timeouts.{field_.name} is {seconds:g} s",
                hint=f"must be between 0 and {_LONGEST_S:g} s",
            )
    price = file.price_per_hour
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(f"{path}: price_per_hour is {price:g}", hint="must be 0 or more, in any currency")
    _check_help(file.help, f"{path}: help")
    for name, value in file.env.items():
        _check_text(value, f"{path}: env: {name}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                f"{path}: env: {name!r} is not a valid variable name", hint="use letters, digits and _"
            )

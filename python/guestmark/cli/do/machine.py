"""Lists, writes, checks and trusts definitions of machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from guestmark.cli.commands.machine import ACTIONS, Options
from guestmark.core.errors import ExitStatus, UsageError, make_unknown_name_error
from guestmark.core.temporary import replace_file
from guestmark.page.say import say, tell, tell_json
from guestmark.platforms.own.conformance import Point, check_definition
from guestmark.platforms.own.definition import NAME, Definition, read_definition
from guestmark.platforms.own.store import (
    add_file,
    check_trust,
    describe_execution,
    find_definition,
    is_trusted,
    load_definitions,
    locate_machines_directory,
    trust,
)

_NAME_LINE = re.compile(r"^[ \t]*name[ \t]*=.*$", re.MULTILINE)
_TEMPLATE = """\
# A machine of your own. guestmark machine check {name} checks whether it can be measured.
# Commands are split into words as by a shell, but no shell runs them: write sh -c '…' if one is needed.
# {{id}} is the machine's name, different each time; {{NAME}} stands for the parameter NAME below.

name    = "{name}"
create  = "podman run --detach --name {{id}} --network none {{image}} sleep infinity"
exec    = "podman exec -i {{id}} {{command}}"       # standard streams and the exit status pass through
destroy = "podman rm --force --ignore --time 0 {{id}}"

# Not needed, but useful:
# ready   = "…"    # succeeds when exec works; tried until it does
# version = "podman --version"
# list    = "podman ps --all --format {{{{.Names}}}}"
# pid     = "podman inspect --format {{{{.State.Pid}}}} {{id}}"   # for density: a process of this host
# plain = true     # exec returns output only when the command ends: commands are timed from outside
# snapshot = "…"   # saves {{id}} as {{snapshot}}; restore creates {{id}} from it; discard removes {{snapshot}}
# timeouts = {{ create = 300, ready = 120, exec = 60, destroy = 60 }}   # seconds
# env = {{ KEY = "value" }}

[parameters]                  # --set own.image=A,B compares two of them
image = "debian:stable-slim"
# cpus = "1"                  # used as {{cpus}} in create, and compared with what the machine really has
# memory = "512M"             # likewise
"""


def run(given: Options) -> int:
    """Lists, shows, creates, checks or trusts definitions; returns the exit status."""
    if given.action not in ACTIONS:
        raise make_unknown_name_error("action", given.action, ACTIONS)
    wanted = ACTIONS[given.action]
    if bool(wanted) != (given.machine is not None):
        raise UsageError(
            f"machine {given.action} takes {f'one {wanted}' if wanted else 'no machine'}",
            hint=f"guestmark machine {given.action} {wanted}".strip(),
        )
    if given.action == "list":
        return _list_definitions(as_json=given.json)
    assert given.machine is not None
    if given.action == "new":
        return _write_definition(given.machine, given.origin)
    definition = _find_by_name_or_file(given.machine)
    if given.action == "show":
        return _show_definition(definition)
    if given.action == "trust":
        return _trust_definition(definition)
    return _check_machine(definition, given)


def _find_by_name_or_file(machine: str) -> Definition:
    """Finds a definition by its name or its file, and registers the file. Raises `UsageError`."""
    if "/" not in machine and not machine.endswith(".toml"):
        return find_definition(machine)
    path = Path(machine)
    definition = read_definition(path)
    add_file(path)
    return definition


def _list_definitions(*, as_json: bool) -> int:
    found = sorted(load_definitions().values(), key=lambda each: (each.shipped, each.name))
    if as_json:
        rows = [_summarize_definition(definition) for definition in found]
        tell_json(msgspec.json.encode(rows).decode())
        return ExitStatus.ALL_MEASURED
    width = max(len(each.name) for each in found)
    for each in found:
        whose = "" if each.shipped else f"   {each.path}"
        tell(f"own:{each.name:<{width}}  {each.help}{whose}".rstrip())
    say(f"your own machines are in {locate_machines_directory()}")
    return ExitStatus.ALL_MEASURED


def _write_definition(name: str, origin: str | None) -> int:
    """Writes a file to edit. Raises `UsageError` for a name that is invalid or taken."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"a machine cannot be named {name!r}",
            hint="use lower-case letters, digits, and after the first - . _",
        )
    path = locate_machines_directory() / f"{name}.toml"
    if path.exists():
        raise UsageError(
            f"{path} exists", hint=f"edit it, or choose another name; guestmark machine show {name} prints it"
        )
    if origin is None:
        text = _TEMPLATE.format(name=name)
    else:
        source = _find_by_name_or_file(origin)
        # Definitions in the user's own folder may be executed, so their source must be trusted.
        check_trust(source)
        # The first one is the machine's, as tables come after it.
        text = _NAME_LINE.sub(f'name    = "{name}"', source.text, count=1)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replace_file(path) as new:
        new.write_text(text, encoding="utf-8")
    say(f"created {path}; edit it, then type guestmark machine check {name}")
    return ExitStatus.ALL_MEASURED


def _show_definition(definition: Definition) -> int:
    """Prints the file; if it is not trusted, also the commands that it executes, some of which a file can hide."""
    tell(definition.text.rstrip())
    if not is_trusted(definition):
        say(f"this file is not trusted; guestmark machine trust {definition.path} would allow it to execute:")
        for line in describe_execution(definition):
            say(line, prefix="  ")
    return ExitStatus.ALL_MEASURED


def _trust_definition(definition: Definition) -> int:
    for line in describe_execution(definition):
        tell(line)
    trust(definition)
    say(f"own:{definition.name} may run these commands, until the file changes")
    return ExitStatus.ALL_MEASURED


def _summarize_definition(definition: Definition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "help": definition.help,
        "file": str(definition.path),
        "shipped": definition.shipped,
        "trusted": is_trusted(definition),
        "parameters": definition.list_placeholder_values({}),
    }


def _check_machine(definition: Definition, given: Options) -> int:
    check_trust(definition)
    points = []
    for point in check_definition(definition):
        points.append(point)
        if not given.json:
            tell(_describe_point(point))
    failed = [point for point in points if point.failed]
    if given.json:
        document = {"machine": definition.name, "holds": not failed, "points": points}
        tell_json(msgspec.json.encode(document).decode())
    elif failed:
        tell(f"\nown:{definition.name} cannot be measured: {len(failed)} of {len(points)} points fail")
    else:
        tell(f"\nown:{definition.name} can be measured: all {len(points)} points hold")
    return ExitStatus.SOME_FAILED if failed else ExitStatus.ALL_MEASURED


def _describe_point(point: Point) -> str:
    if point.not_tried:
        return f"- {point.name}: not tried, as it requires: {point.not_tried}"
    if not point.failed:
        if point.note:
            return f"✓ {point.name} ({point.note})"
        return f"✓ {point.name}"
    return f"✗ {point.name}: {point.failed}\n    {point.change}"

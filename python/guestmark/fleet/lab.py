"""The machines of a lab, read from a TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from guestmark.core.toml import read_toml, read_toml_text
from guestmark.plan.problems import Problems
from guestmark.plan.schema import Strict
from guestmark.platforms.ssh.destination import explain_bad_destination

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", re.ASCII)


class _MachineTable(Strict):
    ssh: str = ""
    kind: str = Field(default="", alias="class")
    command: list[str] = Field(default_factory=lambda: ["guestmark"])
    environment: dict[str, str] = Field(default_factory=dict)


class _LabFile(Strict):
    machines: dict[str, _MachineTable]


@dataclass(frozen=True, slots=True)
class LabMachine:
    """One machine of a lab. `ssh` is its destination; without one it is this machine.

    Machines of one `kind` are meant to be alike, and their results may be pooled. `command` starts guestmark there.
    """

    name: str
    ssh: str = ""
    kind: str = ""
    command: tuple[str, ...] = ("guestmark",)
    environment: dict[str, str] = field(default_factory=dict)


def read_lab(path: str) -> tuple[LabMachine, ...]:
    """Return the machines in a file. Raises `UsageError` with every mistake and its line."""
    text = read_toml_text(Path(path), "--machines takes a lab's TOML file")
    problems = Problems(path, text)
    try:
        lab = _LabFile.model_validate(read_toml(text, path, hint="see docs/guide/lab.md"))
    except ValidationError as error:
        problems.add_invalid(error, _LabFile)
        problems.raise_if_any()
        raise
    here = [name for name, machine in lab.machines.items() if not machine.ssh]
    for name, machine in lab.machines.items():
        if not _NAME.fullmatch(name):
            problems.add_mistake(
                ("machines", name), f"{name!r} is not a valid name", "use letters, digits, . _ -"
            )
        if machine.ssh and (wrong := explain_bad_destination(machine.ssh)):
            problems.add_mistake(
                ("machines", name, "ssh"), f"{machine.ssh!r} is not an ssh destination", wrong
            )
        if not machine.command:
            problems.add_mistake(
                ("machines", name, "command"), "the command is empty", 'e.g. ["/opt/guestmark/guestmark"]'
            )
    if not lab.machines:
        problems.add_mistake(
            ("machines",), "there are no machines", 'add one: [machines.lab1] and ssh = "lab1"'
        )
    if len(here) > 1:
        problems.add_mistake(
            ("machines", here[1]), f"{' and '.join(here)} are both this machine", 'give it ssh = "…"'
        )
    problems.raise_if_any()
    members = []
    for name, machine in lab.machines.items():
        command = tuple(machine.command)
        members.append(LabMachine(name, machine.ssh, machine.kind, command, machine.environment))
    return tuple(members)


def dump_lab(lab: tuple[LabMachine, ...]) -> list[dict[str, Any]]:
    """Return the lab as a run stores it."""
    return [{**asdict(member), "command": list(member.command)} for member in lab]


def load_lab(kept: Sequence[Mapping[str, Any]]) -> tuple[LabMachine, ...]:
    """Return the lab that `dump_lab` wrote."""
    return tuple(LabMachine(**{**each, "command": tuple(each["command"])}) for each in kept)

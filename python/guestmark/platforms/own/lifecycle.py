"""The life of a user's own machine: it is created or restored, becomes ready, and is destroyed.

`guard` ensures that it is destroyed, however this process ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.errors import MachineError
from guestmark.core.machine_facts import OWN_MACHINE_PREFIX
from guestmark.core.redaction import register_variables
from guestmark.platforms.commands import run_command, run_to_success, wait_for_success
from guestmark.platforms.own.definition import ID, SNAPSHOT, Definition, Template
from guestmark.platforms.own.guard import Record, guard_record

# Pauses between attempts of `ready`. The first is short, so that the time of a fast start is not rounded up.
_FIRST_PAUSE_S, _PAUSE_S = 0.002, 0.2


@dataclass(frozen=True, slots=True)
class CreatedMachine:
    """A machine that exists; `began` and `created` are when its creation began and ended, on the monotonic clock."""

    definition: Definition
    id: str
    values: Mapping[str, str]
    began: float
    created: float
    hold: tuple[int, ...] = ()  # descriptors that commands keep open, so that the machine outlasts them

    def fill(self, template: Template, command: Sequence[str] = ()) -> list[str]:
        """Return the argument list of one of the definition's commands for this machine."""
        return template.fill({**self.values, ID: self.id}, command)

    def run(self, template: Template, limit_s: float) -> str:
        """Run one of the definition's commands and return what it printed. Raises `MachineError`."""
        return run_to_success(self.fill(template), self.environment, limit_s, hold=self.hold)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the definition's commands run."""
        return make_command_environment(self.definition)


def make_command_environment(definition: Definition) -> dict[str, str]:
    """Return the environment of a definition's commands: this process's, with the variables of the file.

    The file's values are registered as secrets, so that they are neither stored nor printed from now on.
    """
    register_variables(definition.env)
    return {**os.environ, **definition.env}


@contextlib.contextmanager
def create_machine(
    definition: Definition, values: Mapping[str, str], snapshot: str = ""
) -> Iterator[CreatedMachine]:
    """Create a machine with these values of its parameters; it is destroyed when the context is left.

    With `snapshot` it is restored from that snapshot. A definition without `create` stands for an existing machine,
    which is not destroyed. Raises `MachineError` for a command that fails, also if the machine cannot be destroyed.
    """
    ident = make_id()
    if not definition.create:
        now = time.monotonic()
        yield CreatedMachine(definition, ident, values, now, now)
        return
    filled = {**values, ID: ident, SNAPSHOT: snapshot}
    record = Record(
        name=definition.name,
        id=ident,
        destroy=definition.destroy.fill(filled),
        listing=definition.list.fill(values),
        env=dict(definition.env),
        limit_s=definition.timeouts.destroy,
    )
    template = definition.restore if snapshot else definition.create
    with guard_record(record) as guard:
        began = time.monotonic()
        guard.create(template.fill(filled), make_command_environment(definition), definition.timeouts.create)
        made = CreatedMachine(definition, ident, values, began, time.monotonic(), (guard.input,))
        if definition.ready:
            _wait_until_machine_ready(made)
        yield made


def make_id() -> str:
    """Return a random id for a new machine or snapshot, with a prefix that identifies it as guestmark's."""
    return f"{OWN_MACHINE_PREFIX}{secrets.token_hex(8)}"


def _wait_until_machine_ready(made: CreatedMachine) -> None:
    """Run the command `ready` until it succeeds. After the time limit, raises `MachineError` with its last line."""
    limit = made.definition.timeouts.ready
    argv = made.fill(made.definition.ready)
    ended = wait_for_success(
        lambda left_s: run_command(argv, made.environment, left_s, hold=made.hold),
        limit,
        _PAUSE_S,
        first_pause_s=_FIRST_PAUSE_S,
    )
    if not ended.ok:
        raise MachineError(
            f"{made.definition.name} was not ready after {limit:g} s ({argv[0]} {ended.describe()})",
            hint=f"try it yourself: {shlex.join(argv)}",
        )

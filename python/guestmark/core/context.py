"""What a plan is run in: who asked for it and from where, and what they gave beside its cells.

The names of the fields are the keys under which ledgers and result documents keep them, so they stay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from guestmark.core.derived import Derived
from guestmark.core.errors import UsageError
from guestmark.core.findings import Facts
from guestmark.core.tuning import Settings


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever calls a program, which a guest must reproduce so that a command means the same as on the host."""

    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None  # None: whoever the agent is
    gid: int | None = None
    groups: tuple[int, ...] | None = None

    @classmethod
    def current(cls) -> Caller:
        """The calling process itself. Raises `UsageError` when its working directory is gone."""
        try:
            cwd = os.getcwd()
        except OSError as error:
            raise UsageError(
                f"the current directory cannot be used: {error.strerror or error}",
                hint="go to one that exists: cd ~",
            ) from error
        return cls(cwd, dict(os.environ), os.getuid(), os.getgid(), tuple(os.getgroups()))


@dataclass(frozen=True, slots=True)
class HostCommands:
    """The user's own commands on this host, each for a shell, by name: around the run, and around each trial."""

    run: Mapping[str, str] = field(default_factory=dict)  # setup, cleanup
    trial: Mapping[str, str] = field(default_factory=dict)  # prepare, conclude

    def __bool__(self) -> bool:
        return bool(self.run or self.trial)


@dataclass(frozen=True, slots=True)
class Extension:
    """How a run was taken further than it was made for, once it had `after_blocks` blocks."""

    after_blocks: int
    blocks: int | None = None
    precision: float | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class FleetOrder:
    """One plan for a lab. `overrides` are the fields of `plan.outline.Overrides` that were given."""

    fleet: str
    plan: str
    where: str
    scale: float
    overrides: Mapping[str, Any]
    lab: Sequence[Mapping[str, Any]]
    # Every machine measures all of it, also where machines are of one class.
    whole: bool = False

    def find_machine_class(self, machine: str) -> str:
        """The class whose machines divide the plan's blocks, if the machine is of one; empty: it measures all of it."""
        kinds = {str(each["name"]): str(each["kind"]) for each in self.lab}
        kind = kinds.get(machine, "")
        return kind if kind and not self.whole and list(kinds.values()).count(kind) > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything around a plan's cells. A field that is empty was not given."""

    # Of the caller, as the next four.
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None
    # Variables whose values are not recorded.
    env_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # remarks about the plan
    scale: float = 1.0  # of the plan's sizes
    # Seconds of a trial by platform, as declared.
    cost: Mapping[str, float] = field(default_factory=dict)
    # Of those, before its work begins.
    start: Mapping[str, float] = field(default_factory=dict)
    # Metrics that follow from others.
    derived: tuple[Derived, ...] = ()
    # Limits that a run must keep, as `--fail-if` has them.
    gates: tuple[str, ...] = ()
    around: HostCommands = field(default_factory=HostCommands)
    # What those around the run took, by name.
    around_s: Mapping[str, float] = field(default_factory=dict)
    # Ids of the cells whose disk's place nobody named.
    default_locations: tuple[str, ...] = ()
    # Whether power cuts are to prove what its disks keep.
    prove: bool = False
    proofs: Mapping[str, Facts] = field(default_factory=dict)  # by the ids of its cells
    proofs_took_s: tuple[float, ...] = ()  # each that the run made
    tune: Settings | None = None  # the plan is a race
    # Why cells may not take part in it, by id.
    barred: Mapping[str, str] = field(default_factory=dict)
    # That its trials may take together.
    race_limit_s: float | None = None
    # Wall time of the whole command.
    budget_s: float | None = None
    named: tuple[
        tuple[str, ...], ...
        # Ids of the cells that have a level which the user named, by level.
    ] = ()
    # Ids of cells that were left out when the time got short.
    no_time: tuple[str, ...] = ()
    # By cell, what blocks at once agreed on.
    iterations: Mapping[str, int] = field(default_factory=dict)
    # Variance of the runs on one machine over that of machines, as earlier runs have it.
    within: float = 1.0
    # Wall time of the run's commands, from their first to their last moment.
    elapsed_s: float | None = None
    extended: tuple[Extension, ...] = ()
    # Whether its commands stood on the command line, not in a plan.
    typed: bool = False
    # The ids of the two runs that it measures again.
    confirms: tuple[str, ...] = ()
    boot_id: str = ""  # of a campaign's run
    restarts: int | None = None
    # The whole order, so that each of a fleet's runs says how to go on.
    fleet: FleetOrder | None = None

    @classmethod
    def for_caller(cls, caller: Caller, **more: Any) -> Context:
        """The context of a plan that `caller` asks for."""
        return cls(
            cwd=caller.cwd, env=caller.env, uid=caller.uid, gid=caller.gid, groups=caller.groups, **more
        )

    @property
    def caller(self) -> Caller:
        """Whoever asked for the plan."""
        return Caller(self.cwd, self.env, self.uid, self.gid, self.groups)

    @property
    def path(self) -> str:
        """Where the caller's programs are looked for, as PATH has it."""
        return self.env.get("PATH") or os.defpath

    def to_stored(self) -> dict[str, Any]:
        """By key, what ledgers and documents hold: all that was given, and of a caller and its notes everything."""
        always = ("cwd", "env", "notes") if self.cwd else ()
        kept = {**{name: getattr(self, name) for name in always}, **_changed_fields(self, Context())}
        if self.around:
            kept["around"] = _changed_fields(self.around, HostCommands())
        if self.extended:
            kept["extended"] = [_changed_fields(more, Extension(-1)) for more in self.extended]
        return kept


def _changed_fields(value: Any, empty: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from those of an empty one."""
    every = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: field for name, field in every.items() if field != getattr(empty, name)}

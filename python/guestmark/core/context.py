"""The context of a plan: who asked for it, from where, and with which options besides its cells.

The names of the fields are keys in ledgers and result documents, so they must not change.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from guestmark.core.derived import Derived
from guestmark.core.errors import UsageError
from guestmark.core.findings import Facts
from guestmark.core.tuning import Settings

_COERCED_LOCALES = frozenset({"C.UTF-8", "C.utf8", "UTF-8"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The user, directory and environment of a call; guests reproduce them, so that a command means the same there."""

    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None  # None: the agent's own user
    gid: int | None = None
    groups: tuple[int, ...] | None = None

    @classmethod
    def current(cls) -> Caller:
        """Return the calling process itself. Raises `UsageError` if its working directory no longer exists."""
        try:
            cwd = os.getcwd()
        except OSError as error:
            raise UsageError(
                f"the current directory cannot be used: {error.strerror or error}",
                hint="change to a directory that exists, e.g. cd ~",
            ) from error
        return cls(cwd, _read_environment(), os.getuid(), os.getgid(), tuple(os.getgroups()))


def _read_environment() -> dict[str, str]:
    """Return this process's environment, without the locale that CPython may have set for itself (PEP 538).

    With LANG=C it sets LC_CTYPE, and programs such as wc and sort then do other work.
    """
    environment = dict(os.environ)
    if environment.get("LC_CTYPE") in _COERCED_LOCALES:
        with contextlib.suppress(OSError):
            if b"\0LC_CTYPE=" not in b"\0" + Path("/proc/self/environ").read_bytes():
                del environment["LC_CTYPE"]
    return environment


@dataclass(frozen=True, slots=True)
class HostCommands:
    """The user's own shell commands on this host, by name: before and after the run and each trial."""

    run: Mapping[str, str] = field(default_factory=dict)  # setup, cleanup
    trial: Mapping[str, str] = field(default_factory=dict)  # prepare, conclude

    def __bool__(self) -> bool:
        return bool(self.run or self.trial)


@dataclass(frozen=True, slots=True)
class Extension:
    """How a run was continued beyond its original goal after `after_blocks` blocks."""

    after_blocks: int
    blocks: int | None = None
    precision: float | None = None
    time_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class FleetOrder:
    """An order to run one plan on a lab. `overrides` are the fields of `plan.outline.Overrides` that were given."""

    fleet: str
    plan: str
    where: str
    scale: float
    overrides: Mapping[str, Any]
    lab: Sequence[Mapping[str, Any]]
    # Every machine measures all of it, even if machines are of one class.
    whole: bool = False

    def find_machine_class(self, machine: str) -> str:
        """Return the class whose machines share the plan's blocks; empty for a machine that measures all of them."""
        kinds = {str(machine["name"]): str(machine["kind"]) for machine in self.lab}
        kind = kinds.get(machine, "")
        if self.whole or list(kinds.values()).count(kind) < 2:
            return ""
        return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything around a plan's cells. An empty field was not given."""

    # Taken from the caller, like the next four fields.
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
    # The part of those seconds before the work begins, which does not scale.
    start: Mapping[str, float] = field(default_factory=dict)
    # Metrics that are computed from others.
    derived: tuple[Derived, ...] = ()
    # Limits that the run must meet, in the syntax of `--fail-if`.
    gates: tuple[str, ...] = ()
    around: HostCommands = field(default_factory=HostCommands)
    # Seconds that the commands around the run took, by name.
    around_s: Mapping[str, float] = field(default_factory=dict)
    # Ids of the cells whose disk's location was not given.
    default_locations: tuple[str, ...] = ()
    # Whether power cuts have to prove the durability of its disks.
    prove: bool = False
    proofs: Mapping[str, Facts] = field(default_factory=dict)  # by the ids of its cells
    proofs_took_s: tuple[float, ...] = ()  # for each proof of the run
    tune: Settings | None = None  # set if the plan is a race
    # Why cells may not take part in the race, by id.
    barred: Mapping[str, str] = field(default_factory=dict)
    # Seconds that the race's trials may take together.
    race_limit_s: float | None = None
    # Wall time of the whole command.
    budget_s: float | None = None
    # Whether a trial's time limit comes from that, and not from the plan or the user.
    budget_limits_trials: bool = False
    named: tuple[
        tuple[str, ...], ...
        # Ids of the cells that have a level the user named, grouped by level.
    ] = ()
    # Ids of cells that were left out when time ran short.
    no_time: tuple[str, ...] = ()
    # Iterations of each cell that parallel blocks agreed on.
    iterations: Mapping[str, int] = field(default_factory=dict)
    # Ratio of the variance between runs on one machine to that between machines, from earlier runs.
    within: float = 1.0
    # Wall time of the run's commands in seconds, from the first start to the last end.
    elapsed_s: float | None = None
    extended: tuple[Extension, ...] = ()
    # Whether its commands came from the command line, not from a plan.
    typed: bool = False
    # Whether the plan asks questions, which may all stay open after few blocks.
    asks: bool = False
    # Ids of the two runs that it repeats.
    confirms: tuple[str, ...] = ()
    boot_id: str = ""  # of a campaign's run
    restarts: int | None = None
    # The whole order, so that each run of a fleet records how to continue it.
    fleet: FleetOrder | None = None

    @classmethod
    def for_caller(cls, caller: Caller, **more: Any) -> Context:
        """Return the context of a plan that `caller` asks for."""
        return cls(
            cwd=caller.cwd, env=caller.env, uid=caller.uid, gid=caller.gid, groups=caller.groups, **more
        )

    @property
    def caller(self) -> Caller:
        """The user who asked for the plan, with their working directory and environment."""
        return Caller(self.cwd, self.env, self.uid, self.gid, self.groups)

    @property
    def path(self) -> str:
        """Where the caller's programs are looked for, in the form of PATH."""
        return self.env.get("PATH") or os.defpath

    def to_stored(self) -> dict[str, Any]:
        """Return what ledgers and documents store, by key: all given fields, and always the caller and the notes."""
        always = ("cwd", "env", "notes") if self.cwd else ()
        kept = {name: getattr(self, name) for name in always} | _collect_changed_fields(self, Context())
        if self.around:
            kept["around"] = _collect_changed_fields(self.around, HostCommands())
        if self.extended:
            kept["extended"] = [_collect_changed_fields(more, Extension(-1)) for more in self.extended]
        return kept


def _collect_changed_fields(value: Any, empty: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from those of an empty one."""
    changed = {}
    for known in fields(value):
        given = getattr(value, known.name)
        if given != getattr(empty, known.name):
            changed[known.name] = given
    return changed

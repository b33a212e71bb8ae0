"""The contract between an experiment and its workloads, with the optional parts of a workload's class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from guestmark.core import registry
from guestmark.core.platform_spec import HOST
from guestmark.setting.machine import PLACEMENT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from guestmark.core.findings import Findings
    from guestmark.core.model import Cell, Measurement, Plan
    from guestmark.platforms.base import BareMachine, Machine, Platform


class Workload(Protocol):
    """One workload during one trial; a fresh one is made for every trial."""

    facts: Findings  # what its steps found out
    warnings: list[str]  # remarks for the user, collected by all steps

    def prepare(self, machine: Machine) -> None:
        """What has to be done once before measuring; not timed. Raises `WorkloadError` or `MachineError`."""

    def run(self, machine: Machine) -> list[Measurement]:
        """One iteration, warm-up or measured: every metric of it. Raises `WorkloadError` or `MachineError`."""

    def cleanup(self, machine: Machine) -> None:
        """Undoes `prepare`; called whenever `prepare` was called and the machine still responds."""


Factory = Callable[["Plan", "Cell"], Workload]


@runtime_checkable
class BringsMachine(Protocol):
    """Optional for workloads: a machine of its own, for things no agent can run in (firmware, boot ROMs)."""

    def machine(self, platform: Platform) -> AbstractContextManager[BareMachine]:
        """Starts the machine of this trial in place of `platform.start`, whose rules hold for it."""


def measures_once(workload: Workload) -> bool:
    """Whether a fresh machine is good for one run of it only, without warm-up: says its class's `ONCE`."""
    return getattr(workload, "ONCE", False)


@runtime_checkable
class ChecksRequest(Protocol):
    """What a workload's class may have besides: a look at what was asked for, before any platform is tried."""

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Raises `UsageError` for what would fail every trial of `cells` on every host; starts and changes nothing."""


@runtime_checkable
class ChecksPlan(Protocol):
    """Optional for workload classes: a check of the whole plan before anything is measured."""

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks that `cells` (all of this workload that are to run, on platforms that can be used) can be measured.

        Reports whatever would fail every trial: too little space for images, missing tools and files. Raises
        `UsageError` for what the user has to give otherwise, any other `GuestmarkError` for what the host lacks.
        Returns remarks for the user. Called again when a run is resumed; changes nothing.
        """


@runtime_checkable
class KnowsLimits(Protocol):
    """Optional for workload classes: cells that can never be measured on this host."""

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Why the cell, whose platform can be used, cannot be measured here, in one line; empty when it can."""


def create(plan: Plan, cell: Cell) -> Workload:
    """The workload of `cell` for one trial. Raises `UsageError` with the nearest name for an unknown one."""
    return _factory(cell.workload.name)(plan, cell)


def check_request(name: str, plan: Plan, cells: Sequence[Cell]) -> None:
    """Lets a workload check what was asked of it: see `ChecksRequest.check_request`."""
    factory = _factory(name)
    if isinstance(factory, ChecksRequest):
        factory.check_request(plan, cells)


def preflight(name: str, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
    """Lets a workload check the plan: see `ChecksPlan.preflight`. Those that check nothing have no remarks."""
    factory = _factory(name)
    return factory.preflight(plan, cells) if isinstance(factory, ChecksPlan) else ()


def impossible(cell: Cell) -> str:
    """Why a cell can never be filled on this host: see `KnowsLimits.impossible`. Empty when it may be."""
    factory = _factory(cell.workload.name)
    return factory.impossible(cell) if isinstance(factory, KnowsLimits) else ""


def started_for(cell: Cell) -> Cell:
    """The machine that is started for a cell: for a peer, which starts its own, only the host's agent."""
    if not registry.workload_kind(cell.workload.name).peer:
        return cell
    where = {name: level for name, level in cell.factors.items() if name == PLACEMENT.name}
    return replace(cell, platform=HOST, factors=where, workload=replace(cell.workload, params={}))


def start_machine(workload: Workload, platform: Platform, cell: Cell) -> AbstractContextManager[Machine]:
    """A fresh machine for the trial: the platform's, unless the workload brings its own."""
    if isinstance(workload, BringsMachine):
        # What it brings is handed to nobody but itself, and it knows whether there is an agent.
        return cast("AbstractContextManager[Machine]", workload.machine(platform))
    return platform.start(started_for(cell))


def _factory(name: str) -> Factory:
    factory: Factory = registry.load(registry.workload_kind(name).run)
    return factory

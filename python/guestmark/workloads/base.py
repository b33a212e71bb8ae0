"""The base class of all workloads, and the functions through which the engine runs their trials."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

from guestmark.core import registry
from guestmark.core.findings import Findings
from guestmark.core.params import Params
from guestmark.core.platform_spec import HOST
from guestmark.core.workload_kind import WorkloadKind
from guestmark.setting.machine import PLACEMENT

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from guestmark.core.metric import Measurement
    from guestmark.core.model import Cell, Plan
    from guestmark.ledger.model import StoredRun
    from guestmark.page.nodes import Node
    from guestmark.platforms.base import BareMachine, Machine, Platform
    from guestmark.stats.analysis import WorkloadResult


P = TypeVar("P", bound=Params)
# Functions that render a part of a report from the results of one table and their run.
Sections: TypeAlias = "Callable[[WorkloadResult, StoredRun], Sequence[Node]]"


def _discard_message(_said: str) -> None:
    """Ignores a message; the default if nothing shows messages."""


class Workload(WorkloadKind[P], ABC):
    """A workload: its description (`WorkloadKind`) and its steps. An instance is one trial of it.

    If running it needs slow imports, the class in the registry only describes the workload, and its `trial_class`
    imports and returns a subclass from another module, which adds `run` and the other steps.
    """

    # Whether each machine serves a single run, without warm-up.
    ONCE: bool = False
    # Whether the measured part only reads the disk under test and writes nothing to it.
    READS: ClassVar[bool] = False

    def __init__(self, plan: Plan, cell: Cell) -> None:
        self.plan = plan
        self.cell = cell
        self.facts = Findings()  # facts recorded by the steps
        # Remarks for the user, collected by all steps.
        self.warnings: list[str] = []
        self.printed = ""  # output of the program in the last iteration
        self.tell: Callable[[str], None] = _discard_message  # reports the current step
        # A remark that the user should read at once.
        self.note: Callable[[str], None] = _discard_message
        # Seconds of the command's time limit that this trial may use; None without a limit.
        self.share_s: float | None = None
        self.params = self.params_of(cell.workload)

    @classmethod
    def trial_class(cls) -> type[Workload[P]]:
        """Returns the class that runs its trials."""
        return cls

    @property
    def limit_s(self) -> float:
        """Seconds that one iteration may take."""
        return self.plan.policy.trial_limit_s

    def prepare(self, machine: Machine) -> None:
        """Prepares the machine once before measuring; not timed. Raises `WorkloadError` or `MachineError`."""

    @abstractmethod
    def run(self, machine: Machine) -> list[Measurement]:
        """Runs one iteration, warm-up or measured; returns its metrics. Raises `WorkloadError` or `MachineError`."""

    def cleanup(self, machine: Machine) -> None:
        """Undoes `prepare`; called whenever `prepare` was called and the machine still responds."""

    def machine(self, platform: Platform) -> AbstractContextManager[BareMachine]:
        """Starts the fresh machine of this trial.

        By default it is the platform's machine; a workload whose machine runs no agent (firmware) starts its own.
        """
        return platform.start(choose_started_cell(self.cell))

    @classmethod
    def check_request(cls, plan: Plan, cells: Sequence[Cell]) -> None:
        """Checks the request before any platform is tried; starts and changes nothing.

        Raises `UsageError` for what would fail every trial of `cells` on every host.
        """

    @classmethod
    def preflight(cls, plan: Plan, cells: Sequence[Cell]) -> Sequence[str]:
        """Checks that `cells` (all of this workload that are to run, on platforms that can be used) can be measured.

        Detects whatever would fail every trial: too little space for images, missing tools and files. Raises
        `UsageError` if the user has to change the request, another `GuestmarkError` if the host lacks something.
        Returns remarks for the user. Called again when a run is resumed; changes nothing.
        """
        return ()

    @classmethod
    def impossible(cls, cell: Cell) -> str:
        """Returns why a cell on a usable platform can never be measured here, in one line; empty if it can."""
        return ""


def create_trial(plan: Plan, cell: Cell) -> Workload[Any]:
    """Creates the workload of `cell` for one trial.

    Raises `UsageError` with the nearest name for an unknown workload.
    """
    return find_trial_class(cell.workload.name)(plan, cell)


def find_trial_class(name: str) -> type[Workload[Any]]:
    """Returns the class that runs that workload. Raises `UsageError` with the nearest name for an unknown one."""
    return cast("type[Workload[Any]]", registry.workload_kind(name)).trial_class()


def choose_started_cell(cell: Cell) -> Cell:
    """Returns the cell whose machine is started; a peer starts its own machine, so its cell becomes one on the host."""
    if not registry.workload_kind(cell.workload.name).peer:
        return cell
    where = {name: level for name, level in cell.factors.items() if name == PLACEMENT.name}
    return replace(cell, platform=HOST, factors=where, workload=replace(cell.workload, params={}))


def start_machine(workload: Workload[Any], platform: Platform, cell: Cell) -> AbstractContextManager[Machine]:
    """Starts a fresh machine for the trial.

    A machine that the workload starts itself is used by that workload alone, so its type may differ from `Machine`.
    """
    return cast("AbstractContextManager[Machine]", workload.machine(platform))

"""The description of a kind of workload, which drives plans, help, preflight, execution and reports."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from guestmark.core.discovery import by_name, described, load, walked
from guestmark.core.errors import unknown
from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_kind import Program, is_machine_factor
from guestmark.core.platform_spec import PlatformSpec

if TYPE_CHECKING:
    from pydantic import BaseModel


_PACKAGE = "guestmark.workloads"


def runs_programs(_params: object) -> bool:
    """Of workloads that run programs of the machine, which therefore needs a root."""
    return True


def agent_is_enough(_params: object) -> bool:
    """Of workloads that guestmark's agent does alone."""
    return False


class Topic(Enum):
    """What a comparison of backends concludes from a workload."""

    CALLS = auto()  # who is quicker with calls of a kernel or an API
    START = auto()  # where the time of a start goes
    TRANSFER = auto()  # what the sending of bytes consists of, by the parameter `variant`


@dataclass(frozen=True, slots=True)
class WorkloadKind:
    """One kind of workload. What is costly to import is named as `module:attribute`.

    `params` names the pydantic model of its parameters: strict and with `extra="forbid"`; sizes and durations are best
    kept as written (`size = "1500M"`), so that `--scale` can multiply them. The workload is given
    `model.model_dump(mode="json", exclude_none=True)`, or what the model's method `to_params()` returns when it has one
    (it may raise `ValueError` or `UsageError`). `run` names the class that runs it, a `workloads.base.Workload`.

    The functions are given these final parameters, as a `reads` where that is named: `metrics` returns those that
    will be measured, the primary one first; `label` is what tables show by default. `factors` are its own; other
    workloads do not have them. `takes` tells whether a factor applies to this workload on that platform; where it
    does not, there is one cell without the factor, as for factors that the platform itself does not take.
    `decides`, given the parameters too, overrides both: True accepts a factor even where the platform itself does
    not (mount options on the host, where the workload mounts an image), False rejects it, None leaves the decision
    to them.

    `sections` names functions that add to a report what only this workload knows: given the `WorkloadResult` and the
    `StoredRun`, they return nodes of `page.nodes`.
    """

    name: str
    help: str
    params: str
    run: str
    metrics: Callable[[Any], tuple[Metric, ...]]
    label: Callable[[Any], str] = lambda _params: ""
    reads: type[Any] | None = None  # a `msgspec.Struct` or dataclass of the final parameters
    factors: tuple[Factor, ...] = ()
    takes: Callable[[str, PlatformSpec], bool] = lambda _factor, _platform: True
    decides: Callable[[Any, str, PlatformSpec], bool | None] = lambda _params, _factor, _platform: None
    programs: tuple[Program, ...] = ()  # those it runs, on the host or in guests
    packages: str = ""  # `module:function`: given the parameters, further packages with what it runs
    needs_root: Callable[[Any], bool] = runs_programs  # with these parameters
    peer: bool = False  # whether another program starts the machine; ours is then only the host's agent
    sections: tuple[str, ...] = ()
    conclusion: str = ""  # `module:function`: likewise, what cells come to that are not compared; nodes
    runs_on_disk: bool = (
        False  # whether it runs on a disk that only factors ask for, where its parameters need none
    )
    # Parameters of `powercut` that acknowledge what a cell's workload does, in its way and with its settings; empty, or
    # without it, a proof is one of the disk only.
    acknowledges: Callable[[Cell], Mapping[str, Any]] | None = None
    # The user's command that it runs, which may have environment variables as factors; None for what runs its own.
    command: Callable[[Any], Sequence[str]] | None = None
    # How many bytes of content it writes to its target, None where that is not known; only that much needs room.
    moves: Callable[[Any], int | None] = lambda _params: None
    # Whether the kernel's initcalls are watched beside the phases of a guest's start and end; None: neither is.
    watches: Callable[[Any], bool | None] = lambda _params: None
    # Whether several machines of a cell are there at once: they share all processors, unless a plan places them.
    crowd: Callable[[Cell], bool] = lambda _cell: False
    topic: Topic | None = None
    proves: bool = False  # whether it cuts the power itself
    # Whether its trials see to it that they end in their share of the command's time.
    adapts: Callable[[Any], bool] = lambda _params: False
    compared: bool = True  # False: its values are findings, not times that cells are compared by

    @property
    def model(self) -> type[BaseModel]:
        """The model of its parameters."""
        found: type[BaseModel] = load(self.params)
        return found

    def checked(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters that the workload receives, from those of the plan.

        Raises `pydantic.ValidationError` (with all mistakes), `ValueError` or `UsageError`.
        """
        model = self.model.model_validate(dict(raw))
        to_params = getattr(model, "to_params", None)
        made: Mapping[str, Any] = (
            to_params() if to_params else model.model_dump(mode="json", exclude_none=True)
        )
        return made

    def params_of(self, workload: WorkloadSpec) -> Any:
        """Return the parameters of such a workload as the functions are given them, converted once."""
        return workload.params if self.reads is None else workload.read_params(self.reads)

    def stored_params_of(self, workload: WorkloadSpec) -> Any | None:
        """Return the same of a workload out of a ledger; None for parameters that are not of this kind."""
        from msgspec import ValidationError

        try:
            return self.params_of(workload)
        except ValidationError:
            return None

    def make_spec(self, params: Mapping[str, Any], label: str = "", key: str = "") -> WorkloadSpec:
        """Return the workload with these final parameters, by default under the label that they make."""
        spec = WorkloadSpec(self.name, params, label, key)
        return spec if label else replace(spec, label=self.label(self.params_of(spec)))

    def metrics_of(self, workload: WorkloadSpec) -> tuple[Metric, ...]:
        """Return the metrics that are measured of such a workload, the primary one first."""
        return self.metrics(self.params_of(workload))

    def has_root(self, workload: WorkloadSpec) -> bool:
        """Return whether such a workload runs programs of the machine, which therefore needs a root."""
        return self.needs_root(self.params_of(workload))

    def accepts(self, factor: str, platform: PlatformSpec) -> bool:
        """Whether its cells on that platform have the factor, whatever the parameters are."""
        mine = any(known.name == factor for known in self.factors)
        return (mine or platform.takes_factor(factor)) and self.takes(factor, platform)

    def applies(self, workload: WorkloadSpec, factor: str, platform: PlatformSpec) -> bool:
        """Return whether cells of such a workload on that platform have the factor."""
        if not any(known.name == factor for known in self.factors) and not is_machine_factor(factor):
            return False
        decided = self.decides(self.params_of(workload), factor, platform)
        return self.accepts(factor, platform) if decided is None else decided


def packages_of(cell: Cell) -> tuple[str, ...]:
    """The packages that have to be in the root of a cell's machine, where that is made of packages."""
    kind = workload_kinds().get(cell.workload.name)
    if kind is None or not kind.has_root(cell.workload):
        return ()
    more = load(kind.packages)(kind.params_of(cell.workload)) if kind.packages else ()
    return tuple(sorted({*more, *(program.package for program in kind.programs)}))


def bytes_moved(cell: Cell) -> int | None:
    """How many bytes of content the cell's workload writes to its target; None where that is not known."""
    kind = workload_kinds().get(cell.workload.name)
    return None if kind is None else kind.moves(kind.params_of(cell.workload))


def adapts(cell: Cell) -> bool:
    """Whether the cell's trials take no more time than they are given."""
    kind = workload_kinds().get(cell.workload.name)
    return kind is not None and kind.adapts(kind.params_of(cell.workload))


def watches_initcalls(cell: Cell) -> bool | None:
    """Whether the cell's workload watches initcalls of its guest, beside its phases; None where it watches neither."""
    kind = workload_kinds().get(cell.workload.name)
    return None if kind is None else kind.watches(kind.params_of(cell.workload))


def packages_measured(workloads: Iterable[WorkloadSpec]) -> set[str]:
    """The packages of this host that these workloads' programs are from, as far as their kinds know."""
    found: set[str] = set()
    for workload in workloads:
        kind = workload_kinds().get(workload.name)
        if kind is not None and kind.packages:
            found.update(load(kind.packages)(kind.params_of(workload)))
    return found


def topic_of(workload: WorkloadSpec) -> Topic | None:
    """What a comparison of backends concludes from the workload; None where nothing, or nobody knows its kind."""
    kind = workload_kinds().get(workload.name)
    return None if kind is None else kind.topic


def takes_only(*names: str) -> Callable[[str, PlatformSpec], bool]:
    """A `takes` that accepts these factors and no others."""
    return lambda factor, _platform: factor in names


@functools.cache
def workload_kinds() -> Mapping[str, WorkloadKind]:
    """All kinds of workloads by name, `exec` first, then in alphabetical order."""
    kinds: list[WorkloadKind] = [
        kind for module in described(_PACKAGE) for kind in getattr(module, "WORKLOADS", ())
    ]
    return by_name(sorted(kinds, key=lambda kind: (kind.name != "exec", kind.name)), "workload")


def workload_kind(name: str) -> WorkloadKind:
    """The kind of workload of that name. Raises `UsageError` with the nearest known one."""
    own = f"{_PACKAGE}.{name.replace('-', '_')}"
    if own in walked(_PACKAGE):  # mostly the package has the workload's name: the others need not be imported
        kinds: Iterable[WorkloadKind] = getattr(importlib.import_module(own), "WORKLOADS", ())
        for kind in kinds:
            if kind.name == name:
                return kind
    if name not in workload_kinds():
        raise unknown("workload", name, workload_kinds())
    return workload_kinds()[name]

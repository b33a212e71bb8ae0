"""The description of a kind of workload, which drives plans, help, preflight, execution and reports."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_args

import msgspec

from guestmark.core.discovery import import_descriptions, index_by_name, list_packages
from guestmark.core.errors import make_unknown_name_error
from guestmark.core.factor import Factor, has_factor_named
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.params import Params, params_model, parse_params
from guestmark.core.platform_kind import Program, is_machine_factor
from guestmark.core.platform_spec import PlatformSpec

if TYPE_CHECKING:
    from pydantic import BaseModel

P = TypeVar("P", bound=Params)
_PACKAGE = "guestmark.workloads"


class Topic(Enum):
    """What a comparison of backends concludes from a workload."""

    # Which side is quicker with calls of a kernel or an API.
    CALLS = auto()
    # Where the time of a start goes.
    START = auto()
    # What the time of a transfer consists of, by the parameter `variant`.
    TRANSFER = auto()


class WorkloadKind(Generic[P]):
    """What guestmark knows of a workload before anything runs; `workloads.base.Workload` runs it.

    A subclass that has a `name` is a workload: the registry finds it in its package. `P` are its parameters, declared
    once (`core.params`). All methods are class methods, and importing the class must be cheap: it is imported
    whenever a shell completes a factor's name.
    """

    # The class of `P`, taken from the base that a subclass names.
    PARAMS: ClassVar[type[Params]] = Params

    name: ClassVar[str]
    # One line for help and the reference.
    help: ClassVar[str]
    # Its metrics, the primary one first, unless its parameters decide which.
    measures: ClassVar[tuple[Metric, ...]] = ()
    # Its own factors, which other workloads do not have.
    factors: ClassVar[tuple[Factor, ...]] = ()
    # Names of the only factors that apply to it; None: all.
    only_factors: ClassVar[frozenset[str] | None] = None
    # Programs that it runs, on the host or in guests.
    programs: ClassVar[tuple[Program, ...]] = ()
    topic: ClassVar[Topic | None] = None
    # Whether it runs no program of the machine, which therefore needs no root.
    agent_is_enough: ClassVar[bool] = False
    # Whether another program starts the machine; ours is then only the host's agent.
    peer: ClassVar[bool] = False
    # Whether each of its trials starts several machines.
    starts_several: ClassVar[bool] = False
    # Whether it leaves its machine unchanged, except for its own disks, so that other trials may follow on it.
    shares_machine: ClassVar[bool] = False
    # Whether it runs the user's command, so that environment variables are factors.
    runs_command: ClassVar[bool] = False
    # Whether factors alone can give it a disk that its parameters do not require.
    runs_on_disk: ClassVar[bool] = False
    # Whether it flushes all that it writes before it ends, so that a proof of its disk covers what it wrote.
    flushes_writes: ClassVar[bool] = False
    # Whether it cuts the power itself.
    proves: ClassVar[bool] = False
    # Whether cells are compared by its values, which otherwise are findings and not times.
    compared: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Params):
                    cls.PARAMS = argument

    @classmethod
    def list_metrics(cls, params: P) -> tuple[Metric, ...]:
        """Return the metrics that are measured with these parameters, the primary one first."""
        return cls.measures

    @classmethod
    def describe_params(cls, params: P) -> str:
        """Return the label that tables use if the plan gives none."""
        return ""

    @classmethod
    def takes_factor(cls, factor: str, platform: PlatformSpec) -> bool:
        """Return whether a factor of that platform applies to this workload.

        If it does not, there is one cell without the factor, as for factors that the platform itself does not take.
        """
        return cls.only_factors is None or factor in cls.only_factors

    @classmethod
    def decides_factor(cls, params: P, factor: str, platform: PlatformSpec) -> bool | None:
        """Override `takes_factor` and the platform for these parameters.

        True accepts a factor even if the platform itself does not (mount options on the host, where the workload
        mounts an image), False rejects it, None leaves the decision to them.
        """
        return None

    @classmethod
    def find_packages(cls, params: P) -> tuple[str, ...]:
        """Return the packages with its programs, in addition to the packages of `programs`."""
        return ()

    @classmethod
    def needs_root(cls, params: P) -> bool:
        """Return whether it runs programs of the machine, which then needs a root."""
        return not cls.agent_is_enough

    @classmethod
    def user_command(cls, params: P) -> Sequence[str]:
        """Return the user's command that it runs; empty without one."""
        return ()

    @classmethod
    def acknowledging_params(cls, cell: Cell) -> Mapping[str, Any]:
        """Return parameters that make `powercut` commit and acknowledge data as the cell's workload does.

        Without any, a proof covers only the disk.
        """
        return {}

    @classmethod
    def moved_bytes(cls, params: P) -> int | None:
        """Return how many bytes of content it writes to its target, which needs room for them; None if unknown."""
        return None

    @classmethod
    def list_host_files(cls, params: P) -> Sequence[tuple[str, int]]:
        """Return the contents and sizes of the files that its trials make on this host, beside their disks.

        Files of the same content and size are made once for the whole run.
        """
        return ()

    @classmethod
    def watches_initcalls(cls, params: P) -> bool | None:
        """Return whether initcalls are watched beside the phases of a guest's start and end; None: neither is."""
        return None

    @classmethod
    def runs_several_machines(cls, cell: Cell) -> bool:
        """Return whether a cell runs several machines at once: they share all processors, unless a plan places them."""
        return False

    @classmethod
    def adapts_to_time(cls, params: P) -> bool:
        """Return whether its trials adapt their length to their share of the command's time."""
        return False

    @classmethod
    def report_sections(cls) -> tuple[Callable[..., Any], ...]:
        """Return functions that make report sections specific to this workload; see `workloads.base.Sections`."""
        return ()

    @classmethod
    def report_conclusion(cls) -> Callable[..., Any] | None:
        """Return the function that states the conclusion for cells that are not compared; None if there is none."""
        return None

    @classmethod
    def params_model(cls) -> type[BaseModel]:
        """Return the pydantic model of what plans may give it."""
        return params_model(cls.PARAMS)

    @classmethod
    def check_params(cls, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the parameters of a plan as they are stored.

        Raises `pydantic.ValidationError` (with all mistakes), `ValueError` or `UsageError`.
        """
        return parse_params(cls.PARAMS, raw).to_stored()

    @classmethod
    def params_of(cls, workload: WorkloadSpec) -> P:
        """Return the typed parameters of such a workload, converted once."""
        return cast("P", workload.read_params(cls.PARAMS))

    @classmethod
    def stored_params_of(cls, workload: WorkloadSpec) -> P | None:
        """Return the typed parameters of a workload from a ledger; None for parameters that are not of this kind."""
        try:
            return cls.params_of(workload)
        except msgspec.ValidationError:
            return None

    @classmethod
    def make_spec(cls, params: Mapping[str, Any], label: str = "", key: str = "") -> WorkloadSpec:
        """Return the workload with these stored parameters, by default with the label that these give."""
        spec = WorkloadSpec(cls.name, params, label, key)
        if label:
            return spec
        return replace(spec, label=cls.describe_params(cls.params_of(spec)))

    @classmethod
    def metrics_of(cls, workload: WorkloadSpec) -> tuple[Metric, ...]:
        """Return the metrics that are measured of such a workload, the primary one first."""
        return cls.list_metrics(cls.params_of(workload))

    @classmethod
    def runs_programs(cls, workload: WorkloadSpec) -> bool:
        """Return whether such a workload runs programs of the machine, which therefore needs a root."""
        return cls.needs_root(cls.params_of(workload))

    @classmethod
    def accepts_factor(cls, factor: str, platform: PlatformSpec) -> bool:
        """Return whether its cells on that platform have the factor, whatever the parameters are."""
        mine = has_factor_named(cls.factors, factor)
        return (mine or platform.takes_factor(factor)) and cls.takes_factor(factor, platform)

    @classmethod
    def has_factor(cls, workload: WorkloadSpec, factor: str, platform: PlatformSpec) -> bool:
        """Return whether cells of such a workload on that platform have the factor."""
        if not has_factor_named(cls.factors, factor) and not is_machine_factor(factor):
            return False
        decided = cls.decides_factor(cls.params_of(workload), factor, platform)
        if decided is None:
            return cls.accepts_factor(factor, platform)
        return decided


WorkloadClass = type[WorkloadKind[Any]]


def find_packages(cell: Cell) -> tuple[str, ...]:
    """Return the packages that a cell's machine needs in its root, if that is built from packages."""
    kind = index_workload_kinds().get(cell.workload.name)
    if kind is None or not kind.runs_programs(cell.workload):
        return ()
    more = kind.find_packages(kind.params_of(cell.workload))
    return tuple(sorted({*more, *(program.package for program in kind.programs)}))


def count_moved_bytes(cell: Cell) -> int | None:
    """Return how many bytes of content the cell's workload writes to its target; None if unknown."""
    kind = index_workload_kinds().get(cell.workload.name)
    if kind is None:
        return None
    return kind.moved_bytes(kind.params_of(cell.workload))


def list_host_files(cell: Cell) -> Sequence[tuple[str, int]]:
    """Return the contents and sizes of the files that the cell's trials make on this host, beside their disks."""
    kind = index_workload_kinds().get(cell.workload.name)
    if kind is None:
        return ()
    return kind.list_host_files(kind.params_of(cell.workload))


def adapts_to_time(cell: Cell) -> bool:
    """Return whether the cell's trials take no more time than they are given."""
    kind = index_workload_kinds().get(cell.workload.name)
    return kind is not None and kind.adapts_to_time(kind.params_of(cell.workload))


def watches_initcalls(cell: Cell) -> bool | None:
    """Return whether the cell's workload watches initcalls beside its guest's phases; None: it watches neither."""
    kind = index_workload_kinds().get(cell.workload.name)
    if kind is None:
        return None
    return kind.watches_initcalls(kind.params_of(cell.workload))


def find_measured_packages(workloads: Iterable[WorkloadSpec]) -> set[str]:
    """Return this host's packages with these workloads' programs, as far as their kinds know."""
    found: set[str] = set()
    for workload in workloads:
        kind = index_workload_kinds().get(workload.name)
        if kind is not None:
            found.update(kind.find_packages(kind.params_of(workload)))
    return found


def find_topic(workload: WorkloadSpec) -> Topic | None:
    """Return what a comparison of backends concludes from the workload; None for nothing, or an unknown kind."""
    kind = index_workload_kinds().get(workload.name)
    return None if kind is None else kind.topic


def _find_kinds(module: ModuleType) -> list[WorkloadClass]:
    """Return the workloads among a module's classes: the classes that define a name."""
    kinds: list[WorkloadClass] = []
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, WorkloadKind) and "name" in vars(value):
            kinds.append(value)
    return kinds


@functools.cache
def index_workload_kinds() -> Mapping[str, WorkloadClass]:
    """Return all kinds of workloads by name, `exec` first, then in alphabetical order."""
    kinds: list[WorkloadClass] = []
    for module in import_descriptions(_PACKAGE):
        kinds += _find_kinds(module)
    return index_by_name(sorted(kinds, key=lambda kind: (kind.name != "exec", kind.name)), "workload")


def workload_kind(name: str) -> WorkloadClass:
    """Return the kind of workload of that name. Raises `UsageError` with the nearest known one."""
    own = f"{_PACKAGE}.{name.replace('-', '_')}"
    # Mostly the package has the workload's name, and importing the others would cost every run time.
    if own in list_packages(_PACKAGE):
        for kind in _find_kinds(importlib.import_module(own)):
            if kind.name == name:
                return kind
    if name not in index_workload_kinds():
        raise make_unknown_name_error("workload", name, index_workload_kinds())
    return index_workload_kinds()[name]

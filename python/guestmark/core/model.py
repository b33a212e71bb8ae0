"""The types shared by all of guestmark, named as in the documentation: cells, policies, plans, trials.

Frozen dataclasses whose only behaviour derives from their own fields. `plan.load` creates them, `engine` executes them,
`ledger` stores them, `report` shows them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, cast

import msgspec

from guestmark.core.cause import Cause
from guestmark.core.context import Context
from guestmark.core.factor import OWN_ROOTS
from guestmark.core.findings import Facts
from guestmark.core.levels import Levels
from guestmark.core.metric import Measurement, Metric, find_measurement
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.rare import Rare

T = TypeVar("T")
P = TypeVar("P")


class _Derived:
    """The base class of records that cache values derived from their fields.

    The cache is a slot and not a field, so that it is neither stored nor compared, nor copied by `dataclasses.replace`,
    which changes the fields.
    """

    __slots__ = ("_kept",)

    def _derive(self, key: object, make: Callable[[], T]) -> T:
        # msgspec and pickle make records without calling `__init__`, so the slot may still be empty.
        if not hasattr(self, "_kept"):
            object.__setattr__(self, "_kept", {})
        kept: dict[object, object] = self._kept  # type: ignore[attr-defined]
        if key not in kept:
            kept[key] = make()
        return cast("T", kept[key])


class TrialStatus(StrEnum):
    """How a trial ended. Failed trials are results too and are kept with their console output."""

    OK = "ok"
    FAILED = "failed"
    # Started, and never reported an end.
    LOST = "lost"


class RunState(StrEnum):
    """State of a run. `KILLED` is never stored: it is `RUNNING` while no process claims the run."""

    # Stored; nothing has been executed.
    CREATED = "created"
    RUNNING = "running"
    # The precision or the number of blocks was reached.
    COMPLETE = "complete"
    STOPPED = "stopped at the time limit"
    INTERRUPTED = "interrupted"  # Ctrl-C, SIGTERM
    # Trials were run, and none succeeded.
    FAILED = "failed"
    KILLED = "killed"

    def describe_state(self, trials: int) -> str:
        """Describe the state of a run with this many trials."""
        if self is not RunState.FAILED:
            return self.value
        return "no trial succeeded" if trials else "nothing measured"


class CellStatus(StrEnum):
    """State of a cell in a result document."""

    OK = "ok"  # every trial is ok
    PARTIAL = "partial"  # some trials failed
    FAILED = "failed"  # every trial failed
    # Its platform cannot be used here; nothing was tried.
    UNUSABLE = "unusable"
    PENDING = "pending"  # no trial has ended yet


@dataclass(frozen=True, slots=True)
class WorkloadSpec(_Derived):
    """A workload by registered name with its parameters (JSON-representable values only).

    `params` is what plans and the ledger store; code that acts on parameters gets them typed from `read_params`.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    # What tables show; the command line for `exec`.
    label: str = ""
    # Its name in a plan with several workloads; empty for `exec`.
    key: str = ""

    def read_params(self, kind: type[P]) -> P:
        """Return the parameters as this msgspec struct or dataclass, converted once for each type.

        Raises `msgspec.ValidationError` if they do not have its form.
        """
        return self._derive(kind, lambda: msgspec.convert(self.params, kind))


@dataclass(frozen=True, slots=True)
class Cell(_Derived):
    """One workload on one platform at one level of every factor.

    `factors` is the text that identifies a cell in plans, ids, the ledger and reports. Code that acts on a cell uses
    `levels`, the disks (`view(Disks)` of `setting.disk`) and `workload.read_params`, which are typed and derived once.

    `id` is unique and stable within a plan (it is what trials refer to). `null_of` is set on a null cell: a second copy
    of the cell with that id, measured as if it were another cell, so that A-against-A gives the noise floor.
    `iterations=None` lets the engine choose (`engine.trial_schedule.count_iterations`).
    """

    id: str
    workload: WorkloadSpec
    platform: PlatformSpec
    factors: Mapping[str, str] = field(default_factory=dict)
    baseline: bool = False
    null_of: str | None = None
    # A null cell added automatically, shown apart from the plan's own cells.
    added: bool = False
    # Processors that its machine gets; 0 for all.
    processors: int = 0
    # Cells of one group share a table and a baseline; if empty, the cells of one workload do.
    group: str = ""
    # Labels of levels, by factor.
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def levels(self) -> Levels:
        """The typed levels of its factors: `cell.levels[MEMORY]`, in bytes."""
        return self._derive(Levels, lambda: Levels(self.factors))

    def view(self, make: Callable[["Cell"], T]) -> T:
        """Return what `make`, a class or a function, derives from this cell; the result is kept with the cell."""
        return self._derive(make, lambda: make(self))

    def get_displayed_level(self, factor: str) -> str | None:
        """Return the level of a factor as it is displayed: its label if it has one. None without the factor."""
        return self.labels.get(factor) or self.factors.get(factor)

    @property
    def shares_root(self) -> bool:
        """Whether its machine uses this host's own files."""
        return self.platform.shares_root and not OWN_ROOTS & self.factors.keys()

    def compares_with(self, other: "Cell") -> bool:
        """Return whether both cells are in the same table, with the same baseline."""
        if self.group or other.group:
            return self.group == other.group
        return self.workload == other.workload


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a plan that cannot be measured on this host: a platform, or one cell of a usable platform.

    It has no trials.
    """

    platform: str
    reason: str
    hint: str = ""
    # The cell's id; empty for every cell on the platform.
    cell: str = ""

    @property
    def name(self) -> str:
        """The name by which the user knows what is left out."""
        return self.cell or self.platform

    def covers(self, cell: Cell) -> bool:
        """Return whether this covers the cell, or the cell that it copies."""
        if self.cell:
            return self.cell in (cell.id, cell.null_of)
        return self.platform == str(cell.platform)


def find_left_out(cell: Cell, left_out: Iterable[LeftOut]) -> LeftOut | None:
    """Return the first entry that covers the cell; None if the cell can be measured."""
    for entry in left_out:
        if entry.covers(cell):
            return entry
    return None


def select_runnable(cells: Iterable[Cell], left_out: Sequence[LeftOut]) -> tuple[Cell, ...]:
    """Return the cells that nothing in `left_out` covers, in order."""
    return tuple(cell for cell in cells if find_left_out(cell, left_out) is None)


def find_baseline_id(cells: Iterable[Cell]) -> str | None:
    """Return the id of the cell that the others are compared with; None if it is not among them."""
    for cell in cells:
        if cell.baseline:
            return cell.id
    return None


def boots_any_machine(cells: Iterable[Cell]) -> bool:
    """Return whether any of the cells boots a machine for each trial."""
    return any(cell.platform.is_guest for cell in cells)


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """One figure of a publication: the cells it is about, by workload key, platform and factor levels."""

    cell: Mapping[str, str]
    value: float
    # The publication's own figure that this one was compared with.
    baseline: float | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Figures of one publication, shown beside the measured ones by `--published`. `unit` is as published: `MB/s`."""

    source: str
    metric: str
    unit: str
    # What its percentages relate to: "time" or "throughput".
    percent_of: str
    figures: tuple[PublishedFigure, ...]
    # Distinguishes several publications, or conditions, of one plan.
    name: str = ""
    conditions: str = ""
    # What the publication compared with, in the form of a figure's `cell`.
    baseline: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """The number of repetitions and the rule for stopping: on precision, never on significance.

    With `blocks` set exactly that many blocks run. Otherwise at least `min_blocks`, then until every comparison's 95 %
    interval of the primary metric has a half-width (of the ratio, relative) of at most `precision`, or until
    `time_limit_s` is used up. A run that has not taken `fine_s` yet goes on to half of that width. `margin` is the
    equivalence margin for "no difference" (relative, e.g. 0.03). With `enough_s` precision is not a goal: the run ends
    after `min_blocks` blocks and this many seconds, whichever comes last. With `find` it ends when such slow runs, were
    there any, would have been found in 9 of 10 such runs.
    """

    blocks: int | None = None
    min_blocks: int = 8
    max_blocks: int = 200
    precision: float = 0.02
    fine_s: float = 10.0
    margin: float = 0.03
    time_limit_s: float = 600.0
    warmup: int = 1
    iterations: int | None = None
    # Deadline of one iteration of the workload.
    trial_limit_s: float = 600.0
    seed: int = 0
    enough_s: float | None = None
    find: Rare | None = None
    # Seconds over which the starts of the blocks are spread evenly; 0 for one right after another.
    over_s: float = 0.0
    # Whether cells of a block that ask for the same machine run on one, where their workloads allow it.
    share_machine: bool = False


class QuestionKind(StrEnum):
    """The kinds of question that a plan can ask."""

    # Which cell is best in a metric.
    BEST = "best"
    # How some cells compare with others that are equal in everything else.
    COMPARE = "compare"
    # Which of several metrics has the largest share of their sum.
    PARTS = "parts"
    # What would be left after a power cut.
    DURABILITY = "durability"


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `where` selects the cells, by workload, platform, `nested` (yes, no) or factor; empty: all.

    `metric` is empty for the primary one. BEST: one answer for each value of the names in `per`; with `durability`,
    only cells whose durability is one of these words take part. COMPARE: cells like `compare` against those like
    `against`, paired if they are equal in all other names; `conclusion` is what a publication concluded from its own
    figures. PARTS: metrics of one unit.
    """

    ask: str
    wants: QuestionKind
    metric: str = ""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per: tuple[str, ...] = ()
    durability: tuple[str, ...] = ()
    # As `durability`, but by what power cuts have shown about a cell's disk.
    disk: tuple[str, ...] = ()
    compare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    against: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    conclusion: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to execute: its cells in order, with exactly one baseline in each group, and its policy."""

    name: str
    cells: tuple[Cell, ...]
    policy: Policy
    # The metrics known in advance, in table order; the first is the primary one.
    metrics: tuple[Metric, ...]
    context: Context = field(default_factory=Context)
    title: str = ""  # the question it answers
    published: tuple[Published, ...] = ()
    # The questions that the title amounts to; each is answered at the end.
    questions: tuple[Question, ...] = ()

    @property
    def race_limit_s(self) -> float:
        """Seconds that the trials of a race may take together."""
        kept = self.context.race_limit_s
        return self.policy.time_limit_s if kept is None else kept

    def find_metric(self, name: str) -> Metric | None:
        """Return the metric of that name; None if the plan does not know it in advance."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        return None


@dataclass(frozen=True, slots=True)
class Trial:
    """One cell in one block: the experimental unit. Immutable once it has ended."""

    cell_id: str
    block: int  # from 0
    # Position inside the block, from 0.
    order: int
    status: TrialStatus
    reason: str = ""  # one line when failed
    measurements: tuple[Measurement, ...] = ()
    started_at: float = 0.0  # Unix time
    # Seconds of the whole trial, boot and harness included, on the host's monotonic clock.
    duration_s: float = 0.0
    phases: Mapping[str, float] = field(
        default_factory=dict
    )  # seconds since the machine's start was asked for
    # Raw values of the warm-up runs, in order.
    warmups: tuple[Measurement, ...] = ()
    run_s: tuple[
        float, ...
        # Seconds of every run of the workload, warm-ups first, on the host's monotonic clock.
    ] = ()
    # The attested facts about the machine, and all other findings.
    facts: Facts = field(default_factory=Facts)
    noise: Mapping[str, Any] = field(
        default_factory=dict
    )  # host pressure, run-queue delay, steal, frequency, swap
    warnings: tuple[str, ...] = ()
    command_line: tuple[str, ...] = ()  # of the hypervisor
    # Complete for failed trials, the tail for others.
    console: str = ""
    # Why it failed, for decisions; None for a good trial, or if unknown.
    cause: Cause | None = None

    def find_good_measurement(self, name: str) -> Measurement | None:
        """Return the measurement of the metric of that name; None unless the trial is ok and has it."""
        return find_measurement(self.measurements, name) if self.status is TrialStatus.OK else None

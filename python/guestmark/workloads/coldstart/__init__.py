"""The workload `coldstart`: from the decision to create a machine until it has touched its working set, and to its end.

Every single start is stored.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec

from guestmark.core.factor import Setting, one_of
from guestmark.core.findings import Fact
from guestmark.core.levels import Levels
from guestmark.core.metric import Metric
from guestmark.core.model import Cell
from guestmark.core.params import Params, param
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.units import format_size, parse_duration, parse_size
from guestmark.workloads.base import Sections, Workload
from guestmark.workloads.common.parsers import parse_positive_duration

START = Metric("start_s", "s")  # decision → the working set has been touched
# Decision → execution of the program that runs the machine, such as the hypervisor (a).
PREPARE = Metric("prepare_s", "s")
# Execution → the first instruction of the machine's program (b).
CREATE = Metric("create_s", "s")
ANSWER = Metric("answer_s", "s")  # → its first answer (c)
# First answer → the working set has been touched once (d).
TOUCH = Metric("touch_s", "s")
END = Metric("end_s", "s")  # order to end → nothing of it is left (e)
PHASES = (PREPARE, CREATE, ANSWER, TOUCH)  # in order; they add up to START
ALL = (START, *PHASES, END)
_LARGEST = 1 << 40  # bytes of a working set
SHARES = (0.5, 0.9, 0.99)


class StartKind(StrEnum):
    """The ways in which a machine starts."""

    NEW = "new"  # a machine is created
    # A running process is copied, without executing another program.
    FORK = "fork"
    # A stopped machine continues.
    RESUMED = "resumed"


def _parse_touch(text: str) -> int:
    touch = parse_size(text)
    if not 0 < touch <= _LARGEST:
        raise ValueError(f"{text!r} is not between one byte and 1 TiB")
    return touch


class ColdstartParams(Params, frozen=True, kw_only=True):
    """Parameters: a trial performs at most `starts` starts, and only as many as fit into `time`, judging by the first.

    `touch` is the working set that each machine touches once; `launch` is `new`, `fork` or `resumed`.
    """

    launch: Annotated[
        StartKind,
        param(
            "how machines start",
            "`new`, `fork` or `resumed`",
            accepts=str,
            pattern="^(new|fork|resumed)$",
            parse=StartKind,
            default=StartKind.NEW.value,
        ),
    ] = StartKind.NEW
    touch: Annotated[
        int,
        param(
            "working set that each machine touches", "size", accepts=str, parse=_parse_touch, default="32M"
        ),
    ]
    starts: Annotated[int, param("maximum number of starts in a trial", default=40, ge=1, le=10_000)]
    time_s: Annotated[
        float,
        param(
            "how long a trial keeps starting machines",
            "duration",
            key="time",
            accepts=str,
            parse=parse_positive_duration,
            default="2s",
        ),
    ]


class OneStart(msgspec.Struct, frozen=True, array_like=True):
    """Seconds of each phase; 0 for phases that this kind of start lacks."""

    prepare: float
    create: float
    answer: float
    touch: float
    end: float

    @property
    def start_s(self) -> float:
        """Seconds from the decision to the touched working set."""
        return self.prepare + self.create + self.answer + self.touch


class Starts(Fact, kw_only=True):
    """All measured starts of a trial, in order; none is omitted."""

    starts: list[OneStart]


class StartPattern(msgspec.Struct, frozen=True):
    """The schedule of starts: successive bursts of `burst` machines, or one machine every `every_s` seconds."""

    burst: int = 1
    every_s: float = 0.0

    @property
    def starts_several(self) -> bool:
        """True if several machines may run at the same time."""
        return self != StartPattern()

    @classmethod
    def parse(cls, text: str) -> StartPattern:
        """Parses `one`, `burst-N` or `every-TIME`. Raises `ValueError` for anything else."""
        word = text.strip().lower()
        if word == "one":
            return cls()
        if (found := re.fullmatch(r"burst-([0-9]+)", word)) and 2 <= int(found[1]) <= _MOST:
            return cls(burst=int(found[1]))
        if (found := re.fullmatch(r"every-(.+)", word)) and parse_duration(found[1]) > 0:
            return cls(every_s=parse_duration(found[1]))
        raise ValueError(f"{text!r} is not one, burst-N (2 to {_MOST}) or every-TIME")


_MOST = 256


def _normalize_pattern(text: str) -> str:
    StartPattern.parse(text)
    return text.strip().lower()


class CacheState(StrEnum):
    """The state of the page cache when a start is decided."""

    WARM = "warm"  # holds what the previous start has read
    DROPPED = "dropped"  # emptied as far as the kernel permits


PATTERN = Setting(
    "pattern",
    "how machines are started: one at a time (one), N at once (burst-N), or at fixed intervals (every-TIME)",
    _normalize_pattern,
    ("one", "burst-4", "every-50ms"),
    read=StartPattern.parse,
    default="one",
)
PAGE_CACHE = Setting(
    "page_cache",
    "what the host's page cache holds when a machine is started",
    one_of(*CacheState),
    tuple(CacheState),
    read=CacheState,
    default=CacheState.WARM,
)


def read_start_pattern(levels: Levels) -> StartPattern:
    """Returns the schedule of starts at these levels."""
    return levels[PATTERN]


class ColdstartWorkload(Workload[ColdstartParams]):
    """Starts many machines in one trial."""

    name = "coldstart"
    starts_several = True
    help = "times machine starts, phase by phase, until a working set has been touched"
    measures = ALL
    factors = (PATTERN, PAGE_CACHE)
    agent_is_enough = True

    @classmethod
    def describe_params(cls, params: ColdstartParams) -> str:
        """Returns the kind of start, and how much each machine touches."""
        how = {StartKind.NEW: "start", StartKind.FORK: "fork", StartKind.RESUMED: "resume"}[params.launch]
        return f"{how}, {format_size(params.touch)} touched"

    @classmethod
    def decides_factor(cls, params: ColdstartParams, factor: str, platform: PlatformSpec) -> bool | None:
        """Rejects the factors `pattern` and `page_cache` for machines that are forked or resumed."""
        if factor in (PATTERN.name, PAGE_CACHE.name) and params.launch is not StartKind.NEW:
            return False
        return None

    @classmethod
    def runs_several_machines(cls, cell: Cell) -> bool:
        """Returns whether the schedule lets several machines run at once."""
        return read_start_pattern(cell.levels).starts_several

    @classmethod
    def trial_class(cls) -> type[Workload[ColdstartParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.coldstart.trial import ColdstartTrial

        return ColdstartTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the distribution of starts, and their phases."""
        from guestmark.workloads.coldstart.sections import render_starts

        return (render_starts,)

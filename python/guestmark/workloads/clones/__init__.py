"""Whether machines that should be strangers are twins."""

from enum import StrEnum

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.workload_kind import WorkloadKind


class Word(StrEnum):
    """What was found out about one thing that machines may share."""

    DISTINCT = "proven distinct"
    IDENTICAL = "identical"
    CHANCE = "not decided"  # equal values of so few bits may be chance
    RIGHT = "right"
    WRONG = "wrong"
    UNTRIED = "not tried"


class Verdict(StrEnum):
    """What was found out about the machines."""

    STRANGERS = "no twins"
    TWINS = "twins"
    STALE = "not renewed"  # no twins, but machines of another time
    UNPROVEN = "not proven"


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One source of values, as the machines showed it."""

    source: str
    word: Word
    said: str
    command: str
    of_host: bool = False  # identical because it is this host's
    decides: bool = True  # whether machines that share it are twins


class Control(msgspec.Struct, kw_only=True):
    """Machines that are wrong on purpose, and whether that was seen."""

    name: str
    caught: bool
    said: str


class Twins(Fact, kw_only=True):
    """All that was looked at."""

    verdict: Verdict = msgspec.field(name="twins")
    machines: int = msgspec.field(name="twins_machines")
    seen_from: float = msgspec.field(
        name="twins_seen_from"
    )  # the share of twins that 95 % of such looks would see
    template: str | None = msgspec.field(name="twins_template", default=None)
    found: list[Found] = msgspec.field(name="twins_found")
    controls: list[Control] = msgspec.field(name="twins_controls")


IDENTICAL = Metric("identical_sources", "", Better.LOWER)
DISTINCT = Metric("distinct_sources", "", Better.HIGHER)
UNTRIED = Metric("untried_sources", "", Better.LOWER)
ALL = (IDENTICAL, DISTINCT, UNTRIED)


WORKLOADS = (
    WorkloadKind(
        "clones",
        "starts machines of one kind, or clones of one template, and looks whether they share secrets, ids and layouts",
        params="guestmark.workloads.clones.workload:Clones",
        run="guestmark.workloads.clones.workload:ClonesWorkload",
        metrics=lambda _params: ALL,
        label=lambda _params: "clones",
        compared=False,
        sections=("guestmark.workloads.clones.sections:sections",),
        conclusion="guestmark.workloads.clones.sections:conclusion",
    ),
)

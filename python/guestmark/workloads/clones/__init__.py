"""The workload `clones`: searches machines that should be independent for state that they share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from guestmark.core.findings import Fact
from guestmark.core.metric import Better, Metric
from guestmark.core.params import Params, param
from guestmark.workloads.base import Sections, Workload


class Word(StrEnum):
    """The possible results for a source of values that machines may share."""

    DISTINCT = "proven distinct"
    IDENTICAL = "identical"
    # The values are equal, but have so few bits that this may be chance.
    CHANCE = "not decided"
    RIGHT = "right"
    WRONG = "wrong"
    UNTRIED = "not tried"


class Verdict(StrEnum):
    """The possible results for all sources together."""

    STRANGERS = "no twins"
    TWINS = "twins"
    STALE = "not renewed"  # no twins, but machines that still have an old state, such as an old time
    UNPROVEN = "not proven"


class Found(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The result for one source of values."""

    source: str
    word: Word
    said: str
    command: str
    of_host: bool = False  # identical because it is this host's
    # Whether machines that share it are twins.
    decides: bool = True


class Control(msgspec.Struct, kw_only=True):
    """A control: machines that are made to share state, and whether this was detected."""

    name: str
    caught: bool
    said: str


class Twins(Fact, kw_only=True):
    """Everything that was found about the machines of a trial."""

    verdict: Verdict = msgspec.field(name="twins")
    machines: int = msgspec.field(name="twins_machines")
    # The smallest share of twins that a trial like this detects with a probability of 95 %.
    seen_from: float = msgspec.field(name="twins_seen_from")
    template: str | None = msgspec.field(name="twins_template", default=None)
    found: list[Found] = msgspec.field(name="twins_found")
    controls: list[Control] = msgspec.field(name="twins_controls")


IDENTICAL = Metric("identical_sources", "", Better.LOWER)
DISTINCT = Metric("distinct_sources", "", Better.HIGHER)
UNTRIED = Metric("untried_sources", "", Better.LOWER)
ALL = (IDENTICAL, DISTINCT, UNTRIED)


class ClonesParams(Params, frozen=True, kw_only=True):
    """Parameters: `machines` are started one after the other and compared, and `controls` for each control.

    More machines find rarer faults; the report states which share of faulty machines would have been detected.
    """

    machines: Annotated[int, param("number of machines to compare", ge=2, le=1000)] = 10
    controls: Annotated[int, param("number of machines to start for each control", ge=2, le=100)] = 3


class ClonesWorkload(Workload[ClonesParams]):
    """Examines machines for shared secrets, ids and layouts."""

    name = "clones"
    starts_several = True
    help = (
        "starts machines of one kind, or clones of one template, and checks whether they share secrets, "
        "ids and layouts"
    )
    measures = ALL
    compared = False

    @classmethod
    def describe_params(cls, params: ClonesParams) -> str:
        """Returns the workload's name; its parameters do not distinguish rows."""
        return "clones"

    @classmethod
    def trial_class(cls) -> type[Workload[ClonesParams]]:
        """Imports and returns the class of its trials; done late because its imports are slow."""
        from guestmark.workloads.clones.trial import ClonesTrial

        return ClonesTrial

    @classmethod
    def report_sections(cls) -> tuple[Sections, ...]:
        """Adds the findings for each source."""
        from guestmark.workloads.clones.sections import render_sources

        return (render_sources,)

    @classmethod
    def report_conclusion(cls) -> Sections | None:
        """Returns the section that states whether the machines are twins."""
        from guestmark.workloads.clones.sections import conclude_twins

        return conclude_twins

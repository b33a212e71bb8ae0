"""What a plan asks of its cells, so that its run can end in sentences that answer it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Asked(StrEnum):
    """What a question wants to know."""

    BEST = "best"  # which cell is best in a metric
    COMPARE = "compare"  # how some cells do against others that are like them in all else
    PARTS = "parts"  # which of several metrics has the most of their sum
    DURABILITY = "durability"  # what would be left after a power cut


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `where` selects the cells, by workload, platform, `nested` (yes, no) or factor; empty: all.

    `metric` is empty for the primary one. BEST: one answer for each value of the names in `per`; with `durability`
    among those cells alone of which it has been found to be one of these words. COMPARE: cells like `compare` against
    those like `against`, each with its equal in all names that neither of them has; `conclusion` is what a publication
    drew from its own figures of these. PARTS: metrics of one unit.
    """

    ask: str
    wants: Asked
    metric: str = ""
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    per: tuple[str, ...] = ()
    durability: tuple[str, ...] = ()
    disk: tuple[str, ...] = ()  # as `durability`, of what power cuts have shown of a cell's disk
    compare: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    against: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    conclusion: str = ""

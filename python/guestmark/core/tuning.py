"""The goal of a race and the confidence it has to reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from guestmark.core.metric import MIN_BLOCKS, Better


@dataclass(frozen=True, slots=True)
class Limit:
    """A metric that must stay at or below (or above) a value."""

    metric: str
    value: float
    better: Better = Better.LOWER

    def allows_value(self, value: float) -> bool:
        """Return whether a mean meets the limit."""
        return value <= self.value if self.better is Better.LOWER else value >= self.value

    def __str__(self) -> str:
        sign = "<=" if self.better is Better.LOWER else ">="
        return f"{self.metric} {sign} {self.value:g}"


@dataclass(frozen=True, slots=True)
class Settings:
    """`durability` lists the words that a configuration may have, empty for any; `margin` and `error` are relative.

    Of the finalists, at most `finalists` are measured once more in `confirm` fresh blocks.
    """

    objective: str
    better: Better
    durability: tuple[str, ...] = ()
    # Whether disks in memory are excluded.
    on_disk: bool = False
    limits: tuple[Limit, ...] = ()
    margin: float = 0.03
    error: float = 0.05
    screen: bool = True
    screen_blocks: int = 2
    min_blocks: int = 2
    max_blocks: int = 10
    finalists: int = 4
    confirm: int = MIN_BLOCKS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cell that may be the best: its levels, for screening, and if it may not take part, the reason."""

    id: str
    levels: Mapping[str, str] = field(default_factory=dict)
    barred: str = ""

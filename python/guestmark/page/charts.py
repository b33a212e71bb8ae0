"""The data of charts, without colours or coordinates. Every figure in them is also in a table."""

from collections.abc import Callable
from dataclasses import dataclass, field

from guestmark.page.text import Tone


@dataclass(frozen=True, slots=True)
class RatioRow:
    """One cell against its baseline: the ratio of each block, numbered from 1, and their mean with its interval."""

    label: str
    tone: Tone
    blocks: tuple[tuple[int, float], ...]
    ratio: float
    said: str  # the ratio and its interval as text
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Ratios:
    """Ratios on a logarithmic axis around 1. Differences within `noise_floor` of 1 mean nothing on this host."""

    rows: tuple[RatioRow, ...]
    noise_floor: float | None
    axis: str


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """The values of one cell, one for each trial, in the unit of the axis."""

    label: str
    said: str  # the median as text
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of each cell's trials: every value, and the box of the middle half."""

    rows: tuple[SpreadRow, ...]
    axis: str


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """The values of one cell by block or by run, numbered from 1."""

    label: str
    said: str  # lowest and highest value as text
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Values per block, with the blocks in which the host was disturbed.

    If `over` names runs, these are values per run, with the runs at which they changed.
    """

    rows: tuple[SeriesRow, ...]
    disturbed: tuple[int, ...]
    axis: str
    over: str = "block"


@dataclass(frozen=True, slots=True)
class StackRow:
    """One bar: the length of each part, 0 for a part that it lacks, and the sum as text."""

    label: str
    parts: tuple[float, ...]
    total: str


@dataclass(frozen=True, slots=True)
class Stack:
    """Bars of parts in a fixed order; `letters` stand for parts if there are no colours."""

    rows: tuple[StackRow, ...]
    parts: tuple[str, ...]
    letters: str
    axis: str

    @property
    def used_parts(self) -> list[tuple[int, str, str]]:
        """Number, letter and name of the parts that some bar has."""
        used = []
        for number, (letter, name) in enumerate(zip(self.letters, self.parts, strict=True)):
            if any(row.parts[number] for row in self.rows):
                used.append((number, letter, name))
        return used

    @property
    def longest(self) -> float:
        """Length of the longest bar."""
        return max(sum(row.parts) for row in self.rows)


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing from another module, as SVG, for formats that can show it."""

    name: str
    svg: Callable[[], str] = field(compare=False)


Drawing = Ratios | Spread | Series | Stack | Picture

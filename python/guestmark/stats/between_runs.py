"""A run beside earlier runs of the same host: what they found for the same ratio, and how far equal cells were off.

An interval covers fresh machines in one run on one host. Runs minutes apart differ by more than that (the host is never
fresh), so a ratio that was measured here before is held against what was found then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from guestmark.core.metric import Metric
from guestmark.core.model import Cell
from guestmark.stats.noise import Null
from guestmark.stats.paired import Summary

FEWEST_NULLS = 3  # fewer say so little about a variance that a sound run's floor would nearly triple
ALIKE = 3.0  # how much longer or shorter the runs of another null comparison may be: short ones are noisier


@dataclass(frozen=True, slots=True)
class Past:
    """What an earlier run found for the same ratio: the ratio, the ends of its interval, and over how many blocks."""

    run_id: str
    created_at: float  # Unix time, seconds
    ratio: float
    low: float
    high: float
    blocks: int


@dataclass(frozen=True, slots=True)
class PastNull:
    """An earlier null comparison of a kind of cell; `typical` is the median of the copied cell's trials."""

    log_ratio: float
    blocks: int
    typical: float


@dataclass(frozen=True, slots=True)
class History:
    """What is known from earlier runs of this host, by the ids of this run's cells, oldest first.

    `ratios` are of cells against their baseline, `nulls` of copies against the cell with that id. `changed` is what of
    the environment differs from that of the last of these runs, `between` what differed among them, as `old → new`.
    """

    ratios: Mapping[str, Sequence[Past]] = field(default_factory=dict)
    nulls: Mapping[str, Sequence[PastNull]] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    between: Mapping[str, str] = field(default_factory=dict)

    def nulls_for(
        self, cells: Sequence[Cell], summaries: Mapping[str, Mapping[str, Summary]], metric: Metric
    ) -> list[Null]:
        """Null comparisons of earlier runs like those that these cells have, or would have of their baseline."""
        copied = {cell.null_of for cell in cells if cell.null_of is not None}
        kinds = copied or {cell.id for cell in cells if cell.baseline}
        return [
            null
            for cell_id in sorted(kinds)
            if metric.name in summaries.get(cell_id, {})
            for null in self.nulls_like(cell_id, summaries[cell_id][metric.name].median)
        ]

    def nulls_like(self, cell_id: str, typical: float) -> list[Null]:
        """Earlier null comparisons of such a cell whose runs took about as long; none if they are too few."""
        found = [
            Null(null.log_ratio, null.blocks)
            for null in self.nulls.get(cell_id, ())
            if typical > 0 and typical / ALIKE <= null.typical <= typical * ALIKE
        ]
        return found if len(found) >= FEWEST_NULLS else []


NO_HISTORY = History()

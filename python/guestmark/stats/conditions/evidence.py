"""Arguments of checks: cells that are compared with each other, or a whole run; and texts for findings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import format_count

T = TypeVar("T")

# More cells than this are too many to name in a sentence.
_MANY = 3


@dataclass(frozen=True, slots=True)
class ComparedCells:
    """Cells that are compared with one baseline, and their trials by cell id."""

    plan: Plan
    cells: Sequence[Cell]
    trials: Mapping[str, Sequence[Trial]]

    @property
    def baseline(self) -> Cell | None:
        """The cell that the others are compared with."""
        for cell in self.cells:
            if cell.baseline:
                return cell
        return None

    def list_good_trials(self, cell: Cell) -> list[Trial]:
        """Return the cell's trials that give values."""
        return [trial for trial in self.trials.get(cell.id, ()) if trial.status is TrialStatus.OK]

    def list_affected_cells(self, cells: Iterable[str]) -> tuple[str, ...]:
        """Return the cells whose comparisons involve any of `cells`: these, or all if the baseline is among them."""
        named = set(cells)
        baseline = self.baseline
        if baseline is None:
            return ()
        is_baseline_named = baseline.id in named
        affected = []
        for cell in self.cells:
            if not cell.baseline and (is_baseline_named or cell.id in named):
                affected.append(cell.id)
        return tuple(affected)


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run: its trials, and the environments in which it was started and resumed."""

    plan: Plan
    trials: Sequence[Trial]
    environments: Sequence[Mapping[str, Any]]


def name_cells(cells: Iterable[str], among: Iterable[Cell] = ()) -> str:
    """Return the cells for a sentence: their ids, or `all N cells` if these are more than three."""
    ids = list(cells)
    everyone = [cell.id for cell in among if cell.null_of is None]
    if len(everyone) > _MANY and set(everyone) <= set(ids):
        return f"all {len(everyone)} cells"
    return ", ".join(ids)


def group_by_platform(cells: Iterable[Cell], values: Mapping[str, T]) -> dict[str, T]:
    """Return values by cell id, or by platform if all of a platform's cells have the same value."""
    found: dict[str, dict[str, T]] = {}
    for cell in cells:
        if cell.id in values:
            found.setdefault(str(cell.platform), {})[cell.id] = values[cell.id]
    grouped: dict[str, T] = {}
    for platform, own in found.items():
        first, *others = own.values()
        grouped |= {platform: first} if all(other == first for other in others) else own
    return grouped


def format_trial_count(count: int, whole: int) -> str:
    """Return text such as `3 of 10 trials`."""
    return f"{count} of {format_count(whole, 'trial')}"

"""What checks look at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import counted

T = TypeVar("T")

_MANY = 3  # cells that can be named in a sentence


@dataclass(frozen=True, slots=True)
class ComparedCells:
    """Cells that are held against one baseline, with their trials by id."""

    plan: Plan
    cells: Sequence[Cell]
    trials: Mapping[str, Sequence[Trial]]

    @property
    def baseline(self) -> Cell | None:
        """The cell that the others are held against."""
        return next((cell for cell in self.cells if cell.baseline), None)

    def good_trials(self, cell: Cell) -> list[Trial]:
        """The cell's trials that give values."""
        return [trial for trial in self.trials.get(cell.id, ()) if trial.status is TrialStatus.OK]

    def cells_spoilt_by(self, cells: Iterable[str]) -> tuple[str, ...]:
        """The cells whose comparisons hold any of `cells`: these, or all when the baseline is among them."""
        named = set(cells)
        if self.baseline is None:
            return ()
        others = [cell.id for cell in self.cells if not cell.baseline]
        return tuple(others if self.baseline.id in named else [name for name in others if name in named])


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run: its trials, and the environment at its start and at every time it was resumed."""

    plan: Plan
    trials: Sequence[Trial]
    environments: Sequence[Mapping[str, Any]]


def name_cells(cells: Iterable[str], among: Iterable[Cell] = ()) -> str:
    """The cells in a sentence; as a number where they are all of many there are."""
    ids = list(cells)
    everyone = [cell.id for cell in among if cell.null_of is None]
    if len(everyone) > _MANY and set(everyone) <= set(ids):
        return f"all {len(everyone)} cells"
    return ", ".join(ids)


def group_by_platform(cells: Iterable[Cell], values: Mapping[str, T]) -> dict[str, T]:
    """What is known of cells, by id; by platform where all of a platform's cells have the same."""
    found: dict[str, dict[str, T]] = {}
    for cell in cells:
        if cell.id in values:
            found.setdefault(str(cell.platform), {})[cell.id] = values[cell.id]
    said: dict[str, T] = {}
    for platform, own in found.items():
        first, *others = own.values()
        said |= {platform: first} if all(other == first for other in others) else own
    return said


def format_trial_count(count: int, whole: int) -> str:
    """`3 of 10 trials`."""
    return f"{count} of {counted(whole, 'trial')}"

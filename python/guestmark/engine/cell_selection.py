"""The choice of cells that a run measures in its next block."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from guestmark.core.model import Cell, Plan, Trial
from guestmark.engine import budget
from guestmark.stats.stopping import is_given_up


class CellSelection:
    """The cells that can be measured on this machine, and their state for the next block.

    A cell is *left out* while the budget has no time for it, and comes back if there is time after all; the others are
    `planned`. A planned cell is *given up*, for good, once it has failed several times and never succeeded. It is
    *resting* while every question about it is answered, and is measured again if no question is open. Otherwise it is
    `due`.
    """

    def __init__(self, plan: Plan, runnable: Sequence[Cell], trials: Sequence[Trial]) -> None:
        """Select for `plan`; `trials` is the list that its loop appends to."""
        self._runnable = list(runnable)
        self._trials = trials
        self.planned = budget.select_planned_cells(plan, runnable)
        self.resting: frozenset[str] = frozenset()

    @property
    def not_given_up(self) -> list[Cell]:
        """All cells that have not been given up, whether there was time for them in the last block or not."""
        return self._drop_given_up(self._runnable)

    @property
    def alive(self) -> list[Cell]:
        """The planned cells that have not been given up."""
        return self._drop_given_up(self.planned)

    def _drop_given_up(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if not self.is_given_up(cell)]

    @property
    def due(self) -> list[Cell]:
        """The cells that get a trial in the next block."""
        return [cell for cell in self.alive if cell.id not in self.resting]

    @property
    def measured_trials(self) -> list[Trial]:
        """The trials of planned cells that do not rest, which tell what the next block costs."""
        ids = {cell.id for cell in self.planned} - self.resting
        return [trial for trial in self._trials if trial.cell_id in ids]

    def is_given_up(self, cell: Cell) -> bool:
        """Return whether the cell is no longer tried."""
        return is_given_up([trial for trial in self._trials if trial.cell_id == cell.id])

    def fit(self, kept: Collection[Cell]) -> tuple[list[Cell], list[Cell]]:
        """Plan for `kept` and the cells that were given up; return those newly left out, and those that came back."""
        dropped = _remove_cells(self.planned, kept)
        given_up = [cell for cell in dropped if self.is_given_up(cell)]
        left_out = _remove_cells(dropped, given_up)
        back = _remove_cells(kept, self.planned)
        self.planned = [cell for cell in self._runnable if cell in kept or cell in given_up]
        return left_out, back

    def drop_slow_cell(self, cell: Cell) -> None:
        """Leave out for good a cell that takes more than its share of the time, and the copies of it."""
        gone = [other for other in self._runnable if cell.id in {other.id, other.null_of}]
        self._runnable = _remove_cells(self._runnable, gone)
        self.planned = _remove_cells(self.planned, gone)

    def exclude(self, cells: Collection[Cell]) -> None:
        """Leave out these cells for good, and those that are left out already."""
        self.planned = self._runnable = _remove_cells(self.planned, cells)

    def rest(self, open_ids: Collection[str]) -> list[Cell]:
        """Rest all cells except those with an open question; return the cells that were not resting before.

        If no question is open, all are measured again: a run that continues nevertheless wants every cell.
        """
        before = self.resting
        self.resting = frozenset()
        if open_ids:
            self.resting = frozenset(cell.id for cell in self.alive if cell.id not in open_ids)
        return [cell for cell in self.alive if cell.id in self.resting - before]


def _remove_cells(cells: Iterable[Cell], gone: Collection[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell not in gone]

"""Blocks: every cell once, in random order, always the same order for the same seed."""

import random
from collections.abc import Iterator, Mapping, Sequence

from guestmark.core.model import Cell, Trial, TrialStatus

GIVE_UP_AFTER = 3  # failures of a cell that never succeeded


def order_of(seed: int, block: int, cells: Sequence[Cell]) -> list[Cell]:
    """The cells in the random order of `block`.

    It depends on nothing but the arguments, so a resumed run goes on in the order it would have had.
    """
    shuffled = list(cells)
    random.Random(f"{seed}:{block}").shuffle(shuffled)
    return shuffled


def missing_trials(
    seed: int, block: int, cells: Sequence[Cell], done: Mapping[tuple[int, str], Trial]
) -> Iterator[tuple[int, Cell]]:
    """Position and cell of each trial of `block` that has not ended yet, in order."""
    for position, cell in enumerate(order_of(seed, block, cells)):
        if (block, cell.id) not in done:
            yield position, cell


def given_up(cell_trials: Sequence[Trial]) -> bool:
    """Whether a cell is not tried any more: it has failed `GIVE_UP_AFTER` times and never succeeded.

    Derived from the trials alone, so it holds after a resume, too.
    """
    return len(cell_trials) >= GIVE_UP_AFTER and all(
        trial.status is TrialStatus.FAILED for trial in cell_trials
    )

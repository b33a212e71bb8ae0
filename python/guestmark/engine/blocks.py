"""Blocks: every cell once, in a random order that depends only on the seed."""

import random
from collections.abc import Iterator, Mapping, Sequence

from guestmark.core.model import Cell, Trial


def order_of(seed: int, block: int, cells: Sequence[Cell]) -> list[Cell]:
    """The cells in the random order of `block`.

    Depends only on the arguments, so a resumed run continues in the original order.
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

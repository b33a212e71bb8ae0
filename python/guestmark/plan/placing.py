"""Where machines run, unless somebody says otherwise, and how many processors the host itself is given.

What is compared has equally many processors: a guest of one processor is not held against a host of sixteen.
"""

from collections.abc import Sequence
from dataclasses import replace

from guestmark.core import registry
from guestmark.core.model import Cell
from guestmark.core.placement import NAME, PINNED

_SMP = "smp"
_MANY = 3  # cells that can be named in a sentence


def with_placements(cells: Sequence[Cell]) -> list[Cell]:
    """The cells, each with a placement where it can have one, and with the number of its processors.

    A level that nobody asked for is no part of a cell's id. The host is given as many processors as the guests it is
    compared with have: of those whose number was set the fewest, else one; all of its own when there are no guests.
    """
    placed = [
        replace(cell, factors={**cell.factors, NAME: cell.factors.get(NAME, PINNED)})
        if NAME in cell.factors or _can_be_placed(cell)
        else cell
        for cell in cells
    ]
    return [
        replace(cell, processors=_processors(cell, placed)) if NAME in cell.factors else cell
        for cell in placed
    ]


def _can_be_placed(cell: Cell) -> bool:
    if cell.platform.is_elsewhere:  # its processors are not ours to give
        return False
    kind = registry.workload_kind(cell.workload.name)
    return kind.applies(cell.workload.params, NAME, cell.platform)


def _processors(cell: Cell, cells: Sequence[Cell]) -> int:
    if cell.platform.is_guest:
        return cell.platform.processors(cell.factors)
    guests = [other for other in cells if other.platform.is_guest and other.compares_with(cell)]
    if not guests:
        return 0
    return min(
        (other.platform.processors(other.factors) for other in guests if _SMP in other.factors), default=1
    )


def inequality(cells: Sequence[Cell]) -> list[str]:
    """Remarks about cells that are compared although their machines have different numbers of processors."""
    remarks = []
    for baseline in (cell for cell in cells if cell.baseline):
        group = [cell for cell in cells if cell.null_of is None and cell.compares_with(baseline)]
        by_number: dict[int, list[str]] = {}
        for cell in group:
            if number := _has(cell):
                by_number.setdefault(number, []).append(cell.id)
        if len(by_number) > 1:
            said = "; ".join(f"{number} in {_who(ids, group)}" for number, ids in sorted(by_number.items()))
            remarks.append(f"the machines that are compared have different numbers of processors: {said}")
    return remarks


def _who(ids: Sequence[str], group: Sequence[Cell]) -> str:
    return "all others" if len(ids) > _MANY and 2 * len(ids) > len(group) else ", ".join(ids)


def _has(cell: Cell) -> int:
    """How many processors a cell's machine has; 0 where that is not known beforehand."""
    if cell.platform.is_guest:
        return cell.platform.processors(cell.factors)
    if cell.factors.get(NAME) == PINNED and cell.processors:
        return cell.processors
    return cell.platform.processors(cell.factors) if cell.platform.is_this_host else 0

"""Looks up levels of cells by the names used in plans, and selects the cells that a question is about."""

from collections.abc import Iterable, Mapping, Sequence

from guestmark.core.model import Cell, Question

WORKLOAD, PLATFORM, NESTED = "workload", "platform", "nested"
YES_NO = ("yes", "no")
NESTED_WORDS = {"yes": "nested", "no": "bare"}


def get_level(cell: Cell, name: str) -> str | None:
    """Return the cell's workload key, platform or level of a factor; None if it has no such factor."""
    if name == WORKLOAD:
        return cell.workload.key or cell.workload.name
    if name == PLATFORM:
        return str(cell.platform)
    return cell.factors.get(name)


def get_level_or_nesting(cell: Cell, name: str) -> str | None:
    """Return what `get_level` does; for the name `nested`, `yes` or `no`: whether the machine is inside another guest.

    Only questions reserve that name. Elsewhere, a command's own parameter may have it.
    """
    if name == NESTED:
        return YES_NO[not cell.platform.is_nested]
    return get_level(cell, name)


def describe_level(cell: Cell, name: str) -> str | None:
    """Return what `get_level_or_nesting` does, worded for a sentence: `nested` or `bare` for `yes` or `no`."""
    level = get_level_or_nesting(cell, name)
    return NESTED_WORDS[level] if name == NESTED and level is not None else level


def matches_levels(cell: Cell, wanted: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the cell has one of the wanted levels of each name; an empty table matches every cell."""
    return all(get_level_or_nesting(cell, name) in levels for name, levels in wanted.items())


def group_cells(question: Question, cells: Iterable[Cell]) -> list[list[Cell]]:
    """Group the cells that the question is about by their levels of the names in `per`, in order."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if matches_levels(cell, question.where):
            levels = tuple(get_level_or_nesting(cell, name) or "" for name in question.per)
            groups.setdefault(levels, []).append(cell)
    return list(groups.values())


def pair_cells(question: Question, cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the pairs that the question compares.

    Both cells of a pair have the same level of each factor that both have, except of those that the question varies.
    """
    about = [cell for cell in cells if matches_levels(cell, question.where)]
    asked = question.compare.keys() | question.against.keys()
    pairs = []
    for first in about:
        if not matches_levels(first, question.compare):
            continue
        for second in about:
            if second is first or not matches_levels(second, question.against):
                continue
            shared = {WORKLOAD, PLATFORM, *(first.factors.keys() & second.factors.keys())} - asked
            if all(get_level(first, name) == get_level(second, name) for name in shared):
                pairs.append((first, second))
    return pairs

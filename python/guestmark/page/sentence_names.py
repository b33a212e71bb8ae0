"""Names of cells in sentences, which tell the cells of a sentence apart."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from guestmark.core.cell_levels import PLATFORM, WORKLOAD
from guestmark.core.model import Cell
from guestmark.page.names import find_implied_placement, list_factors_that_vary, name_by_id
from guestmark.page.text import join_parts
from guestmark.stats.analysis import CellResult

_PLACES = {WORKLOAD, PLATFORM}
_Levels = dict[str, str]


def name_apart(results: Sequence[CellResult]) -> dict[str, str]:
    """Return names that tell these cells apart, by cell id; the ids if there are no such names.

    They consist of workload and platform if these vary and, among cells that share both, the levels that differ.
    Levels have no factor's name if all cells differ in one factor only.
    """
    if len(results) == 1:
        return name_by_id(results)
    single_factor = len(_list_factors_with_several_levels(results)) == 1
    names = {}
    for prefix, members in _group_by_place(results).items():
        factors = _list_factors_with_several_levels(members)
        for result in members:
            parts = []
            if prefix:
                parts.append(prefix)
            for factor in factors:
                if factor in result.cell.factors:
                    level = result.cell.get_displayed_level(factor) or ""
                    parts.append(level if single_factor else f"{factor}={level}")
            names[result.cell.id] = " ".join(parts) or result.cell.id
    if len(set(names.values())) < len(names):
        return {name: name for name in names}
    return names


def _group_by_place(results: Sequence[CellResult]) -> dict[str, list[CellResult]]:
    """Return the cells by workload and platform, as far as these vary."""
    labels_vary = len({_format_workload_label(result.cell) for result in results}) > 1
    platforms_vary = len({str(result.cell.platform) for result in results}) > 1
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        parts = []
        if labels_vary:
            parts.append(_format_workload_label(result.cell))
        if platforms_vary:
            parts.append(str(result.cell.platform))
        groups.setdefault(" ".join(parts), []).append(result)
    return groups


def shorten_levels(name: str, cell: Cell) -> str:
    """Return a name without the factors' names before levels that are words: `ext4` for `filesystem=ext4`."""
    for factor, level in cell.factors.items():
        if level[:1].isalpha():
            name = name.replace(f"{factor}={level}", level)
    return name


class PairNames:
    """Names for the two cells of each comparison of a question: levels that were `asked` about or vary."""

    def __init__(self, asked: AbstractSet[str], firsts: Sequence[Cell]) -> None:
        self._asked = asked
        levels: dict[str, set[str]] = {}
        for cell in firsts:
            for name, text in _list_all_levels(cell).items():
                levels.setdefault(name, set()).add(text)
        several = {name for name, texts in levels.items() if len(texts) > 1}
        self._varying = several - find_implied_placement([cell.factors for cell in firsts])

    def name_pair(self, first: Cell, second: Cell) -> tuple[str, str, str]:
        """Return names for the first cell, for the second, and for what both have in common."""
        first_levels, second_levels = _list_all_levels(first), _list_all_levels(second)
        told = set(self._asked)
        for name in self._varying:
            if second_levels.get(name) != first_levels.get(name):
                told.add(name)
        own, other = _select_levels(first_levels, told), _select_levels(second_levels, self._asked)
        # If the cells have levels of different factors, "on" would not say which factor is meant.
        if (own.keys() ^ other.keys()) & self._asked - _PLACES:
            own, other = _add_factor_names(own), _add_factor_names(other)
        common = ""
        if own:
            shared = {name: text for name, text in first_levels.items() if second_levels.get(name) == text}
            common = self._name_common(shared)
        return _join_levels(own) or first.id, _join_levels(other) or second.id, common

    def _name_common(self, shared: _Levels) -> str:
        places, factors = [], []
        for name, text in shared.items():
            if name in self._asked:
                continue
            if name in _PLACES:
                places.append(text)
            elif name in self._varying:
                factors.append(f"{name}={text}")
        return " ".join([" on ".join(places), *factors]).strip()


def _select_levels(levels: _Levels, names: AbstractSet[str]) -> _Levels:
    return {name: text for name, text in levels.items() if name in names}


def _add_factor_names(levels: _Levels) -> _Levels:
    named = {}
    for name, text in levels.items():
        named[name] = text if name in _PLACES else f"{name}={text}"
    return named


def _list_factors_with_several_levels(results: Sequence[CellResult]) -> list[str]:
    """Return the factors that have several levels among the cells that have them at all."""
    several = []
    for name in list_factors_that_vary(results):
        levels = {result.cell.factors[name] for result in results if name in result.cell.factors}
        if len(levels) > 1:
            several.append(name)
    return several


def _join_levels(levels: _Levels) -> str:
    """Return `write on uml, ext2`: workload and platform first, then the levels of factors."""
    places = " on ".join(levels[name] for name in (WORKLOAD, PLATFORM) if name in levels)
    factors = " ".join(text for name, text in levels.items() if name not in _PLACES)
    return join_parts([places, factors])


def _list_all_levels(cell: Cell) -> _Levels:
    levels = {name: cell.get_displayed_level(name) or "" for name in cell.factors}
    return {WORKLOAD: _format_workload_label(cell), PLATFORM: str(cell.platform), **levels}


def _format_workload_label(cell: Cell) -> str:
    return cell.workload.label or cell.workload.name

"""Names of cells in sentences, which tell the cells of a sentence apart."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from guestmark.core.cell_levels import PLATFORM, WORKLOAD
from guestmark.core.model import Cell
from guestmark.page.names import find_implied_placement, list_factors_that_vary
from guestmark.stats.analysis import CellResult

_PLACES = {WORKLOAD, PLATFORM}
_Levels = dict[str, str]


def name_apart(results: Sequence[CellResult]) -> dict[str, str]:
    """Return names that tell these cells apart, by cell id; the ids if there are no such names.

    They consist of workload and platform if these vary and, among cells that share both, the levels that differ.
    Levels have no factor's name if all cells differ in one factor only.
    """
    if len(results) == 1:
        return {result.cell.id: result.cell.id for result in results}
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
    single_factor = len(_list_factors_with_several_levels(results)) == 1
    names = {}
    for prefix, members in groups.items():
        factors = _list_factors_with_several_levels(members)
        for result in members:
            parts = [prefix] if prefix else []
            for factor in factors:
                if factor in result.cell.factors:
                    level = result.cell.get_displayed_level(factor) or ""
                    parts.append(level if single_factor else f"{factor}={level}")
            names[result.cell.id] = " ".join(parts) or result.cell.id
    return names if len(set(names.values())) == len(names) else {name: name for name in names}


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
        levels = [_list_all_levels(cell) for cell in firsts]
        names = dict.fromkeys(name for own in levels for name in own)
        self._varying = {
            name for name in names if len({own[name] for own in levels if name in own}) > 1
        } - find_implied_placement([cell.factors for cell in firsts])

    def name_pair(self, first: Cell, second: Cell) -> tuple[str, str, str]:
        """Return names for the first cell, for the second, and for what both have in common."""
        first_levels, second_levels = _list_all_levels(first), _list_all_levels(second)
        told = self._asked | {
            name for name in self._varying if second_levels.get(name) != first_levels.get(name)
        }
        own = {name: text for name, text in first_levels.items() if name in told}
        other = {name: text for name, text in second_levels.items() if name in self._asked}
        # If the cells have levels of different factors, "on" would not say which factor is meant.
        if (own.keys() ^ other.keys()) & self._asked - _PLACES:
            own, other = _add_factor_names(own), _add_factor_names(other)
        common = ""
        if own:
            shared = {name: text for name, text in first_levels.items() if second_levels.get(name) == text}
            common = self._name_common(shared)
        return _join_levels(own) or first.id, _join_levels(other) or second.id, common

    def _name_common(self, shared: _Levels) -> str:
        places = [text for name, text in shared.items() if name in _PLACES and name not in self._asked]
        factors = [
            f"{name}={text}"
            for name, text in shared.items()
            if name in self._varying and name not in _PLACES | self._asked
        ]
        return " ".join([" on ".join(places), *factors]).strip()


def _add_factor_names(levels: _Levels) -> _Levels:
    return {name: text if name in _PLACES else f"{name}={text}" for name, text in levels.items()}


def _list_factors_with_several_levels(results: Sequence[CellResult]) -> list[str]:
    """Return the factors that have several levels among the cells that have them at all."""
    return [
        name
        for name in list_factors_that_vary(results)
        if len({result.cell.factors[name] for result in results if name in result.cell.factors}) > 1
    ]


def _join_levels(levels: _Levels) -> str:
    """Return `write on uml, ext2`: workload and platform first, then the levels of factors."""
    places = " on ".join(levels[name] for name in (WORKLOAD, PLATFORM) if name in levels)
    factors = " ".join(text for name, text in levels.items() if name not in _PLACES)
    return ", ".join(part for part in (places, factors) if part)


def _list_all_levels(cell: Cell) -> _Levels:
    levels = {name: cell.get_displayed_level(name) or "" for name in cell.factors}
    return {WORKLOAD: _format_workload_label(cell), PLATFORM: str(cell.platform), **levels}


def _format_workload_label(cell: Cell) -> str:
    return cell.workload.label or cell.workload.name

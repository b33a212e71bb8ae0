"""What cells are called in sentences: by what tells them apart."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from guestmark.core.model import Cell
from guestmark.page.names import varying
from guestmark.plan.pattern import PLATFORM, WORKLOAD
from guestmark.stats.analysis import CellResult

_PLACES = {WORKLOAD, PLATFORM}


def names_of(results: Sequence[CellResult]) -> dict[str, str]:
    """What tells these cells apart, by id: workload and platform as far as they vary, and of those that share both the
    levels that differ among them; these stand alone where all differ in one factor only.
    """
    if len(results) == 1:
        return {result.cell.id: result.cell.id for result in results}
    labels = {_label(result.cell) for result in results}
    platforms = {str(result.cell.platform) for result in results}
    only = len(_varying(results)) == 1
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        parts = [_label(result.cell)] if len(labels) > 1 else []
        parts += [str(result.cell.platform)] if len(platforms) > 1 else []
        groups.setdefault(" ".join(parts), []).append(result)
    found = {}
    for start, some in groups.items():
        several = _varying(some)
        for result in some:
            levels = [
                (name, result.cell.shown(name) or "") for name in several if name in result.cell.factors
            ]
            named = [level if only else f"{name}={level}" for name, level in levels]
            found[result.cell.id] = " ".join([*([start] if start else []), *named]) or result.cell.id
    return found if len(set(found.values())) == len(found) else {name: name for name in found}


def _varying(results: Sequence[CellResult]) -> list[str]:
    """The factors of which those that have them have several levels."""
    return [
        name
        for name in varying(results)
        if len({result.cell.factors[name] for result in results if name in result.cell.factors}) > 1
    ]


def _label(cell: Cell) -> str:
    return cell.workload.label or cell.workload.name


class Names:
    """What the cells of a question that compares are called: by what it `asked` of, and what else varies."""

    def __init__(self, asked: AbstractSet[str], firsts: Sequence[Cell]) -> None:
        self._asked = asked
        levels = [_named(cell) for cell in firsts]
        self._varies = {
            name
            for some in levels
            for name in some
            if len({each[name] for each in levels if name in each}) > 1
        }

    def apart(self, first: Cell, second: Cell) -> tuple[str, str, str]:
        """What the one is, what the other is, and what both are."""
        mine, theirs = _named(first), _named(second)
        own = {
            name: text
            for name, text in mine.items()
            if name in self._asked or (name in self._varies and theirs.get(name) != text)
        }
        others = {name: text for name, text in theirs.items() if name in self._asked}
        alike = {name: text for name, text in mine.items() if theirs.get(name) == text} if own else {}
        both = [text for name, text in alike.items() if name in _PLACES and name not in self._asked]
        more = [
            f"{name}={text}"
            for name, text in alike.items()
            if name in self._varies and name not in _PLACES and name not in self._asked
        ]
        return (
            _said(own) or first.id,
            _said(others) or second.id,
            " ".join([" on ".join(both), *more]).strip(),
        )


def _said(levels: dict[str, str]) -> str:
    """`write on uml, ext2`."""
    places = " on ".join(levels[name] for name in (WORKLOAD, PLATFORM) if name in levels)
    others = " ".join(text for name, text in levels.items() if name not in _PLACES)
    return ", ".join(part for part in (places, others) if part)


def _named(cell: Cell) -> dict[str, str]:
    levels = {name: cell.shown(name) or "" for name in cell.factors}
    return {WORKLOAD: _label(cell), PLATFORM: str(cell.platform), **levels}

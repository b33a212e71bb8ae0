"""Selects cells: `{workload, platform, FACTOR: level or levels}` in plans, `platform=tcg and …` in `--only`."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from guestmark.core import registry
from guestmark.core.cell_levels import PLATFORM, WORKLOAD, get_level
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.model import Cell
from guestmark.core.platform_spec import parse_platform

_HINT = "e.g. 'platform=tcg and filesystem=ext2,ext4', or the id of one cell from --list"
_CONDITION = re.compile(r"\s*((?:env:)?[A-Za-z_][A-Za-z0-9_-]*)\s*(!?=)\s*(.+?)\s*", re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Condition:
    """The cell has one of these levels of `name`; `negated`: it has none of them."""

    name: str
    levels: tuple[str, ...]
    negated: bool = False

    def matches_cell(self, cell: Cell) -> bool:
        """Return whether the cell matches; a cell without the factor has none of its levels."""
        return (get_level(cell, self.name) in self.levels) != self.negated


Pattern = tuple[Condition, ...]


def matches_pattern(pattern: Iterable[Condition], cell: Cell) -> bool:
    """Return whether every condition matches; an empty pattern matches every cell."""
    return all(condition.matches_cell(cell) for condition in pattern)


def parse_condition_level(
    name: str, level: str, workloads: Collection[str], own: Collection[str] = ()
) -> tuple[str, str]:
    """Return name and level in canonical spelling; `own` are factors that only the plan's own commands have.

    Raises `UsageError` for unknown names and impossible levels.
    """
    # Levels of the user's own factors have no canonical spelling.
    if name in own:
        return name, level
    if registry.is_variable(name):
        return registry.find_factor(name).name, level
    # Both `-` and `_` are common in option names, so both are accepted.
    word = name.strip().replace("-", "_").lower()
    if word == WORKLOAD:
        if level not in workloads:
            raise make_unknown_name_error("workload", level, workloads)
        return word, level
    if word == PLATFORM:
        return word, str(parse_platform(level))
    if word not in registry.factors():
        raise make_unknown_name_error("factor", name, [WORKLOAD, PLATFORM, *registry.factors()])
    factor = registry.find_factor(word)
    try:
        return word, factor.parse(level)
    except ValueError as error:
        raise UsageError(f"{word}: {error}", hint=factor.help) from error


def parse_table(
    mapping: Mapping[str, Sequence[str]], workloads: Collection[str], own: Collection[str] = ()
) -> Pattern:
    """Return the pattern of a plan's table. Raises `UsageError`."""
    conditions = []
    for name, levels in mapping.items():
        pairs = [parse_condition_level(name, level, workloads, own) for level in levels]
        conditions.append(Condition(pairs[0][0], tuple(level for _, level in pairs)))
    return tuple(conditions)


def parse_expression(text: str, cells: Sequence[Cell]) -> Pattern:
    """Return the pattern of `--only`: `NAME=LEVEL[,LEVEL…]` or `NAME!=LEVEL…`, joined by `and` or commas.

    Raises `UsageError` for syntax errors, unknown names, and levels that no cell has.
    """
    if not text.strip():
        raise UsageError("--only is empty", hint=_HINT)
    conditions: list[Condition] = []
    for piece in _split_expression(text):
        match = _CONDITION.fullmatch(piece.replace("\\,", ","))
        if match is not None:
            name, sign, level = match.groups()
            conditions.append(_parse_present_level(name, level, sign == "!=", cells))
        elif conditions and piece.strip() and "=" not in piece:
            # `filesystem=ext2,ext4`: one more level of the same name.
            last = conditions[-1]
            more = _parse_present_level(last.name, piece.replace("\\,", ",").strip(), last.negated, cells)
            conditions[-1] = Condition(last.name, (*last.levels, *more.levels), last.negated)
        else:
            raise UsageError(f"--only {text!r}: {piece.strip()!r} is not NAME=LEVEL", hint=_HINT)
    return tuple(conditions)


def _split_expression(text: str) -> list[str]:
    """Split an expression at `and` and commas; a comma after a backslash does not split."""
    parts = re.split(r"\s+and\s+|\s*&&\s*", text.strip(), flags=re.IGNORECASE)
    pieces: list[str] = []
    for part in parts:
        pieces += re.split(r"(?<!\\),", part)
    return pieces


def list_names(text: str) -> set[str]:
    """Return the names in an expression of `--only`, in canonical spelling; empty if it is the id of a cell."""
    names = set()
    for piece in _split_expression(text):
        match = _CONDITION.fullmatch(piece)
        if match is not None:
            names.add(match[1].replace("-", "_").lower())
    return names


def select_cells(cells: Sequence[Cell], text: str) -> list[Cell]:
    """Return the cells that `--only` selects, in order. Raises `UsageError` if there are none."""
    # An id may look like an expression, and is what --list prints, so it takes precedence.
    if exact := [cell for cell in cells if cell.id == text.strip()]:
        return exact
    pattern = parse_expression(text, cells)
    chosen = [cell for cell in cells if matches_pattern(pattern, cell)]
    if not chosen:
        raise UsageError(f"--only {text!r}: no cell matches", hint="--list shows the cells of the plan")
    return chosen


def _parse_present_level(name: str, level: str, negated: bool, cells: Sequence[Cell]) -> Condition:
    """Return a condition on a level that some cell has. Raises `UsageError` naming the existing levels."""
    workloads = {get_level(cell, WORKLOAD) or "" for cell in cells}
    names = dict.fromkeys([WORKLOAD, PLATFORM, *_collect_factor_names(cells)])
    word = name
    if name not in names:
        word = name.replace("-", "_").lower()
    if word not in names:
        raise make_unknown_name_error("name in --only", name, names)
    found = find_labelled_level(word, level, cells)
    if found is None:
        own = word not in {WORKLOAD, PLATFORM, *registry.factors()}
        # The user's own factors have no canonical spelling.
        found = level
        if not own:
            _, found = parse_condition_level(word, level, workloads)
    existing: dict[str, None] = {}
    for cell in cells:
        own_level = get_level(cell, word)
        if own_level is not None:
            existing[own_level] = None
    if found not in existing:
        raise UsageError(
            f"--only {word}={level}: no cell has this level", hint=f"existing levels: {', '.join(existing)}"
        )
    return Condition(word, (found,), negated)


def _collect_factor_names(cells: Iterable[Cell]) -> dict[str, None]:
    """Return the names of the factors that any of the cells has, each once, in their order."""
    names: dict[str, None] = {}
    for cell in cells:
        names |= dict.fromkeys(cell.factors)
    return names


def make_condition(name: str, level: str, cells: Sequence[Cell]) -> Condition:
    """Return the condition that a cell has this level, or the level with this label. Raises `UsageError`."""
    if name in _collect_factor_names(cells) and name not in registry.factors():
        return Condition(name, (level,))
    factor = registry.find_factor(name)
    found = find_labelled_level(factor.name, level, cells)
    if found is None:
        found = str(registry.parse_level(factor, level))
    return Condition(factor.name, (found,))


def find_labelled_level(name: str, label: str, cells: Sequence[Cell]) -> str | None:
    """Return the level that has this label in some cell; None if it is not a label."""
    for cell in cells:
        if cell.labels.get(name) == label:
            return cell.factors[name]
    return None

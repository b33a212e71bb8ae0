"""Names for the rows of tables: a column for each part that varies; a number and a short name for narrow screens."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from guestmark.core import placement
from guestmark.core.model import Cell
from guestmark.page.tables import Row, RowName, Table
from guestmark.stats.analysis import CellResult, WorkloadResult

_LONGEST_IN_CHART = 32  # characters
# Shown for a cell that does not have the factor.
_NONE = "–"


def name_rows(
    workload: WorkloadResult, results: Sequence[CellResult]
) -> tuple[tuple[str, ...], list[RowName]]:
    """Return headings and names for a table of these results: workload, platform and factors, as far as they vary.

    If nothing varies, rows are named by their platform.
    """
    headings, columns = _make_name_columns(results)
    numbers = {result.cell.id: number for number, result in enumerate(workload.cells, start=1)}
    short_names = _choose_short_names(results, workload)
    names = []
    for result, short, parts in zip(results, short_names, zip(*columns, strict=True), strict=True):
        names.append(RowName(parts, short, numbers.get(result.cell.id, 0), result.cell.id))
    return tuple(headings), names


def name_in_sentences(workload: WorkloadResult) -> dict[str, str]:
    """Return names of a table's cells for sentences, by id: the names of its rows, with the names of factors.

    If such names would not tell cells apart, they are the ids.
    """
    headings, rows = name_rows(workload, workload.shown_cells)
    names = {}
    for row in rows:
        parts = []
        for heading, part in zip(headings, row.parts, strict=True):
            if part == _NONE:
                continue
            if heading in {"workload", "platform"}:
                parts.append(part)
            else:
                parts.append(f"{heading}={part}")
        names[row.id] = " ".join(parts)
    ids = name_by_id(workload.cells)
    if len(set(names.values())) < len(names):
        return ids
    return ids | names


def name_by_id(results: Iterable[CellResult]) -> dict[str, str]:
    """Return the ids as names, by id."""
    return {result.cell.id: result.cell.id for result in results}


def name_across_workloads(results: Sequence[CellResult]) -> dict[str, str]:
    """Return names for rows of several workloads in one table, by id: the workload and the levels that vary in it.

    Cells that differ only in their platform share a name, as each platform is a column. Of factors that vary together,
    one is named; levels that are numbers follow the factor's name.
    """
    names = {}
    for result, levels in _list_telling_levels(results):
        names[result.cell.id] = " ".join([_find_workload_key(result), *levels.values()])
    places = {(names[result.cell.id], result.cell.platform) for result in results}
    if len(places) < len(results):
        return name_by_id(results)
    return names


def name_groups(
    results: Sequence[CellResult], are_alike: Callable[[Sequence[CellResult]], bool]
) -> list[tuple[str, list[CellResult]]]:
    """Return a name for each result; alike ones that differ in one factor share one: `netboot e1000 (vga, none)`.

    The factor is the one that leaves fewest names. The platform is named if names would not be distinct.
    """
    names = name_across_workloads(results)
    choices = [[(names[result.cell.id], [result]) for result in results]]
    telling = _list_telling_levels(results)
    for factor in dict.fromkeys(itertools.chain.from_iterable(levels for _, levels in telling)):
        groups: dict[tuple[str, ...], dict[str, CellResult]] = {}
        for result, levels in telling:
            others = [text for name, text in levels.items() if name != factor]
            key = (str(result.cell.platform), _find_workload_key(result), *others)
            groups.setdefault(key, {})[levels.get(factor, _NONE)] = result
        named: list[tuple[str, list[CellResult]]] = []
        for (_, *parts), by_level in groups.items():
            members = list(by_level.values())
            if len(members) > 1 and are_alike(members):
                named.append((f"{' '.join(parts)} ({', '.join(by_level)})", members))
            else:
                named += [(names[result.cell.id], [result]) for result in members]
        # Results that have the same levels would replace each other.
        if sum(map(len, groups.values())) == len(results):
            choices.append(named)
    fewest = min(choices, key=len)
    if len({name for name, _ in fewest}) == len(fewest):
        return fewest
    return [(f"{name} {members[0].cell.platform}", members) for name, members in fewest]


def name_in_charts(workload: WorkloadResult) -> dict[str, str]:
    """Return names of a table's cells for charts, by id: as in sentences where those are short."""
    names = name_in_sentences(workload)
    for result, short in zip(workload.cells, _choose_short_names(workload.cells, workload), strict=True):
        if len(names[result.cell.id]) > _LONGEST_IN_CHART:
            names[result.cell.id] = short
    return names


def make_name_key(workload: WorkloadResult) -> Table | None:
    """Return a table of the names of all rows of a workload's tables; None below three rows."""
    shown = workload.shown_cells
    if len(shown) < 3:
        return None
    headings, names = name_rows(workload, shown)
    rows = [Row(name, (), strong=result.cell.baseline) for name, result in zip(names, shown, strict=True)]
    return Table("what the numbers mean", headings, (), tuple(rows))


def describe_common_levels(workload: WorkloadResult) -> str:
    """Return the levels that all cells of a plan's table share: `everywhere: smp=1 format=raw`."""
    cells = [result.cell for result in workload.shown_cells]
    if len(cells) < 2 or not all(cell.group for cell in cells):
        return ""
    first = cells[0]
    levels = []
    for name, level in first.factors.items():
        if all(cell.factors.get(name) == level for cell in cells):
            levels.append(f"{name}={first.get_displayed_level(name)}")
    if not levels:
        return ""
    return f"everywhere: {' '.join(levels)}"


def format_platform(cell: Cell) -> str:
    """Return the platform; of a null cell with the number of the copy: `host#2`."""
    if cell.null_of is None:
        return str(cell.platform)
    copy = cell.id.removeprefix(cell.null_of)
    if not copy.startswith("#"):
        copy = "#2"
    return f"{cell.platform}{copy}"


def list_factors_that_vary(results: Sequence[CellResult]) -> list[str]:
    """Return the factors that differ among the cells."""
    cells = [result.cell for result in results]
    implied = find_implied_placement([cell.factors for cell in cells])
    varying = []
    for name in list_factor_names(cells):
        levels = {cell.factors.get(name) for cell in cells}
        if name not in implied and len(levels) > 1:
            varying.append(name)
    return varying


def list_factor_names(cells: Iterable[Cell]) -> list[str]:
    """Return the factors that any of these cells has, in the order in which they first occur."""
    names: dict[str, None] = {}
    for cell in cells:
        names |= dict.fromkeys(cell.factors)
    return list(names)


def find_implied_placement(levels: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """Return the name of the placement factor if the other levels determine it; else an empty set.

    By default a burst is free and a single machine is pinned, so pattern and placement vary together.
    """
    cells = {frozenset(each.items()) for each in levels}
    others = set()
    for cell in cells:
        others.add(frozenset(item for item in cell if item[0] != placement.NAME))
    if len(others) == len(cells) > 1:
        return frozenset({placement.NAME})
    return frozenset()


def format_workload_label(result: CellResult) -> str:
    """Return the name of the cell's workload in tables."""
    return result.cell.workload.label or result.cell.workload.name


def _list_telling_levels(results: Iterable[CellResult]) -> list[tuple[CellResult, dict[str, str]]]:
    """Return for each result the levels that vary in its workload, by factor; numbers follow its name."""
    by_workload: dict[str, list[CellResult]] = {}
    for result in results:
        by_workload.setdefault(_find_workload_key(result), []).append(result)
    found = []
    for same in by_workload.values():
        factors = _list_telling_factors([result.cell for result in same])
        for result in same:
            levels = {}
            for factor in factors:
                level = result.cell.factors.get(factor)
                if level is not None:
                    levels[factor] = level if level[:1].isalpha() else f"{factor}={level}"
            found.append((result, levels))
    return found


def _list_telling_factors(cells: Sequence[Cell]) -> list[str]:
    """Return the factors that vary among these cells; of factors that vary together, only the first."""
    chosen: list[str] = []
    for name in list_factor_names(cells):
        levels = {cell.factors[name] for cell in cells if name in cell.factors}
        if len(levels) > 1 and not any(_are_varying_together(cells, name, other) for other in chosen):
            chosen.append(name)
    return chosen


def _are_varying_together(cells: Sequence[Cell], name: str, other: str) -> bool:
    """Return whether each level of one factor comes with just one of the other, in the cells that have both."""
    pairs = set()
    for cell in cells:
        if name in cell.factors and other in cell.factors:
            pairs.add((cell.factors[name], cell.factors[other]))
    if not pairs:
        return False
    levels, other_levels = zip(*pairs, strict=True)
    return len(pairs) == len(set(levels)) == len(set(other_levels))


def _find_workload_key(result: CellResult) -> str:
    return result.cell.workload.key or result.cell.workload.name


def _make_name_columns(results: Sequence[CellResult]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the texts of each column of names; there is at least one."""
    headings = list_factors_that_vary(results)
    columns = []
    for name in headings:
        columns.append([result.cell.get_displayed_level(name) or _NONE for result in results])
    platforms = [format_platform(result.cell) for result in results]
    labels = _list_distinct_labels(results, list(zip(platforms, *columns, strict=True)))
    # A plan's table may have a single platform, which needs no column if something else names the rows.
    grouped = all(result.cell.group for result in results)
    if len(set(platforms)) > 1 or not (grouped and (columns or len(set(labels)) > 1)):
        headings.insert(0, "platform")
        columns.insert(0, platforms)
    if len(set(labels)) > 1:
        headings.insert(0, "workload")
        columns.insert(0, labels)
    return headings, columns


def _list_distinct_labels(results: Sequence[CellResult], others: Sequence[tuple[str, ...]]) -> list[str]:
    """Return each workload's label; its key, or key and parameters, if rows with the same `others` would share it."""
    labels = [format_workload_label(result) for result in results]
    keys = [result.cell.workload.key or label for result, label in zip(results, labels, strict=True)]
    params = _list_differing_params([result.cell.workload.params for result in results])
    with_params = [f"{key} {own}".strip() for key, own in zip(keys, params, strict=True)]
    for names in (labels, keys, with_params):
        if len(set(zip(names, others, strict=True))) == len(results):
            return names
    return labels


def _list_differing_params(params: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the parameters that differ: `sync=fsync`; entries of nested tables are compared one by one."""
    flat = [dict(_flatten_params(each)) for each in params]
    differing = []
    for name in sorted(set[str]().union(*flat)):
        first = flat[0].get(name)
        if any(each.get(name) != first for each in flat):
            differing.append(name)
    return [_format_params(own, differing) for own in flat]


def _format_params(params: Mapping[str, Any], names: Sequence[str]) -> str:
    return " ".join(f"{name}={params[name]}" for name in names if name in params)


def _flatten_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten_params(value)
        else:
            yield name, value


def _choose_short_names(results: Iterable[CellResult], workload: WorkloadResult) -> list[str]:
    """Return for each cell its workload and the levels that differ from the baseline's, as in `dd full sync`."""
    shown = workload.shown_cells
    usual = (workload.baseline or shown[0]).cell
    with_workload = len({each.cell.workload.key for each in shown}) > 1
    with_platform = len({format_platform(each.cell) for each in shown}) > 1
    usual_levels = {name: _find_usual_level(name, usual, shown) for name in list_factors_that_vary(shown)}
    names = []
    for result in results:
        words = []
        if with_workload:
            words.append(_find_workload_key(result))
        if with_platform:
            words.append(format_platform(result.cell))
        for name, usual_level in usual_levels.items():
            level = result.cell.get_displayed_level(name) or ""
            if level and level != usual_level:
                words.append(level)
        names.append(" ".join(words) or result.cell.id)
    return names


def _find_usual_level(name: str, usual: Cell, shown: Sequence[CellResult]) -> str:
    """Return the level that need not be named: the usual cell's or, if that cell lacks the factor, the only one."""
    if name in usual.factors:
        return usual.get_displayed_level(name) or ""
    levels = {each.cell.get_displayed_level(name) or "" for each in shown if name in each.cell.factors}
    return levels.pop() if len(levels) == 1 else ""

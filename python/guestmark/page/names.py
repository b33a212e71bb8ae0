"""Names for the rows of tables: a column for each part that varies; a number and a short name for narrow screens."""

from collections.abc import Iterator, Mapping, Sequence
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
    columns = _make_name_columns(results)
    numbers = {result.cell.id: number for number, result in enumerate(workload.cells, start=1)}
    names = []
    for position, result in enumerate(results):
        parts = tuple(texts[position] for _, texts in columns)
        short, number = _choose_short_name(result, workload), numbers.get(result.cell.id, 0)
        names.append(RowName(parts, short, number, result.cell.id))
    return tuple(heading for heading, _ in columns), names


def name_in_sentences(workload: WorkloadResult) -> dict[str, str]:
    """Return names of a table's cells for sentences, by id: the names of its rows, with the names of factors.

    If such names would not tell cells apart, they are the ids.
    """
    headings, rows = name_rows(workload, workload.shown_cells)
    names = {}
    for row in rows:
        parts = []
        for heading, part in zip(headings, row.parts, strict=True):
            if part != _NONE:
                parts.append(part if heading in {"workload", "platform"} else f"{heading}={part}")
        names[row.id] = " ".join(parts)
    ids = {result.cell.id: result.cell.id for result in workload.cells}
    return ids if len(set(names.values())) < len(names) else ids | names


def name_across_workloads(results: Sequence[CellResult]) -> dict[str, str]:
    """Return names for rows of several workloads in one table, by id: the workload and the levels that vary in it.

    Cells that differ only in their platform share a name, as each platform is a column. Of factors that vary together,
    one is named; levels that are numbers follow the factor's name.
    """
    names: dict[str, str] = {}
    for key in dict.fromkeys(map(_find_workload_key, results)):
        cells = [result.cell for result in results if _find_workload_key(result) == key]
        factors = _list_telling_factors(cells)
        for cell in cells:
            parts = [key]
            for factor in factors:
                if factor in cell.factors:
                    level = cell.factors[factor]
                    parts.append(level if level[:1].isalpha() else f"{factor}={level}")
            names[cell.id] = " ".join(parts)
    places = [(names[result.cell.id], result.cell.platform) for result in results]
    if len(set(places)) < len(places):
        return {result.cell.id: result.cell.id for result in results}
    return names


def name_in_chart(result: CellResult, workload: WorkloadResult) -> str:
    """Return a cell's name for a chart: as in sentences if that is short."""
    name = name_in_sentences(workload).get(result.cell.id, result.cell.id)
    return name if len(name) <= _LONGEST_IN_CHART else _choose_short_name(result, workload)


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
    common = set.intersection(*(set(cell.factors.items()) for cell in cells))
    first = cells[0]
    levels = [f"{name}={first.get_displayed_level(name)}" for name in first.factors if name in dict(common)]
    return f"everywhere: {' '.join(levels)}" if levels else ""


def format_platform(cell: Cell) -> str:
    """Return the platform; of a null cell with the number of the copy: `host#2`."""
    if cell.null_of is None:
        return str(cell.platform)
    copy = cell.id.removeprefix(cell.null_of)
    return f"{cell.platform}{copy if copy.startswith('#') else '#2'}"


def list_factors_that_vary(results: Sequence[CellResult]) -> list[str]:
    """Return the factors that differ among the cells."""
    factors = dict.fromkeys(name for result in results for name in result.cell.factors)
    implied = find_implied_placement([result.cell.factors for result in results])
    varying = []
    for name in factors:
        levels = {result.cell.factors.get(name) for result in results}
        if name not in implied and len(levels) > 1:
            varying.append(name)
    return varying


def find_implied_placement(levels: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """Return the name of the placement factor if the other levels determine it; else an empty set.

    By default a burst is free and a single machine is pinned, so pattern and placement vary together.
    """
    cells = {frozenset(each.items()) for each in levels}
    others = {frozenset(item for item in cell if item[0] != placement.NAME) for cell in cells}
    return frozenset({placement.NAME}) if len(others) == len(cells) > 1 else frozenset()


def format_workload_label(result: CellResult) -> str:
    """Return the name of the cell's workload in tables."""
    return result.cell.workload.label or result.cell.workload.name


def _list_telling_factors(cells: Sequence[Cell]) -> list[str]:
    """Return the factors that vary among these cells; of factors that vary together, only the first."""
    chosen: list[str] = []
    for name in dict.fromkeys(name for cell in cells for name in cell.factors):
        levels = {cell.factors[name] for cell in cells if name in cell.factors}
        if len(levels) > 1 and not any(_are_varying_together(cells, name, other) for other in chosen):
            chosen.append(name)
    return chosen


def _are_varying_together(cells: Sequence[Cell], name: str, other: str) -> bool:
    """Return whether each level of one factor comes with just one of the other, in the cells that have both."""
    both = [cell.factors for cell in cells if name in cell.factors and other in cell.factors]
    pairs = {(factors[name], factors[other]) for factors in both}
    return bool(pairs) and len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})


def _find_workload_key(result: CellResult) -> str:
    return result.cell.workload.key or result.cell.workload.name


def _make_name_columns(results: Sequence[CellResult]) -> list[tuple[str, list[str]]]:
    """Return the heading and the texts of each column of names."""
    columns = []
    for name in list_factors_that_vary(results):
        columns.append((name, [result.cell.get_displayed_level(name) or _NONE for result in results]))
    platforms = [format_platform(result.cell) for result in results]
    labels = _list_distinct_labels(
        results, list(zip(platforms, *(texts for _, texts in columns), strict=True))
    )
    # A plan's table may have a single platform, which needs no column if something else names the rows.
    grouped = all(result.cell.group for result in results)
    if len(set(platforms)) > 1 or not (grouped and (columns or len(set(labels)) > 1)):
        columns.insert(0, ("platform", platforms))
    if len(set(labels)) > 1:
        columns.insert(0, ("workload", labels))
    return columns


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
    names = sorted({name for each in flat for name in each})
    differing = [name for name in names if any(each.get(name) != flat[0].get(name) for each in flat)]
    return [" ".join(f"{name}={each[name]}" for name in differing if name in each) for each in flat]


def _flatten_params(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flatten_params(value)
        else:
            yield name, value


def _choose_short_name(result: CellResult, workload: WorkloadResult) -> str:
    """Return the workload and the levels that differ from the baseline's: `dd full sync`."""
    shown = workload.shown_cells
    usual = (workload.baseline or shown[0]).cell
    words = []
    if len({each.cell.workload.key for each in shown}) > 1:
        words.append(_find_workload_key(result))
    if len({format_platform(each.cell) for each in shown}) > 1:
        words.append(format_platform(result.cell))
    for name in list_factors_that_vary(shown):
        level = result.cell.get_displayed_level(name) or ""
        if level and level != _find_usual_level(name, level, usual, shown):
            words.append(level)
    return " ".join(words) or result.cell.id


def _find_usual_level(name: str, level: str, usual: Cell, shown: Sequence[CellResult]) -> str:
    """Return the level that need not be named: the usual cell's or, if that cell lacks the factor, the only one."""
    if name in usual.factors:
        return usual.get_displayed_level(name) or ""
    levels = {each.cell.get_displayed_level(name) or "" for each in shown if name in each.cell.factors}
    return level if len(levels) == 1 else ""

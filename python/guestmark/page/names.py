"""What rows of tables are called: a column for all that varies, a number and a short name for narrow places."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guestmark.core import placement
from guestmark.core.model import Cell
from guestmark.page.tables import Row, RowName, Table
from guestmark.stats.analysis import CellResult, WorkloadResult

_BRIEF = 32  # characters


def name_rows(
    workload: WorkloadResult, results: Sequence[CellResult]
) -> tuple[tuple[str, ...], list[RowName]]:
    """Headings and names for a table of these results: workload, platform and factors, those that vary; the platform
    when nothing does.
    """
    columns = _name_columns(results)
    numbers = {result.cell.id: number for number, result in enumerate(workload.cells, start=1)}
    names = [
        RowName(
            tuple(texts[position] for _, texts in columns),
            _short_name(result, workload),
            numbers.get(result.cell.id, 0),
            result.cell.id,
        )
        for position, result in enumerate(results)
    ]
    return tuple(heading for heading, _ in columns), names


def name_in_sentences(workload: WorkloadResult) -> dict[str, str]:
    """What sentences call the cells of a table, by id: as its rows are named, with the factors' names."""
    headings, names = name_rows(workload, workload.shown_cells)
    said = {
        name.id: " ".join(
            part if heading in {"workload", "platform"} else f"{heading}={part}"
            for heading, part in zip(headings, name.parts, strict=True)
            if part != "–"
        )
        for name in names
    }
    alike = len(set(said.values())) < len(said)
    return {result.cell.id: result.cell.id for result in workload.cells} | ({} if alike else said)


def name_across_workloads(results: Sequence[CellResult]) -> dict[str, str]:
    """What rows of several workloads are called in one table, by id: the workload and the levels that vary in it.

    Cells that differ by their platform alone have one name: each platform is a column. Of factors that vary together
    one is enough; numbers have the factor's name beside them.
    """
    called: dict[str, str] = {}
    for key in dict.fromkeys(map(_workload_key, results)):
        cells = [result.cell for result in results if _workload_key(result) == key]
        chosen: list[str] = []
        for name in dict.fromkeys(name for cell in cells for name in cell.factors):
            varies = len({cell.factors[name] for cell in cells if name in cell.factors}) > 1
            if varies and not any(_vary_together(cells, name, other) for other in chosen):
                chosen.append(name)
        for cell in cells:
            own = [(name, cell.factors[name]) for name in chosen if name in cell.factors]
            said = (level if level[:1].isalpha() else f"{name}={level}" for name, level in own)
            called[cell.id] = " ".join([key, *said])
    places = [(called[result.cell.id], result.cell.platform) for result in results]
    return (
        called if len(set(places)) == len(places) else {result.cell.id: result.cell.id for result in results}
    )


def _vary_together(cells: Sequence[Cell], name: str, other: str) -> bool:
    """Whether each level of one goes with one level of the other, in the cells that have both."""
    pairs = {
        (cell.factors[name], cell.factors[other])
        for cell in cells
        if name in cell.factors and other in cell.factors
    }
    return bool(pairs) and len(pairs) == len({one for one, _ in pairs}) == len({two for _, two in pairs})


def _workload_key(result: CellResult) -> str:
    return result.cell.workload.key or result.cell.workload.name


def name_in_chart(result: CellResult, workload: WorkloadResult) -> str:
    """What a cell is called inside of a chart: as in sentences where that is short."""
    said = name_in_sentences(workload).get(result.cell.id, result.cell.id)
    return said if len(said) <= _BRIEF else _short_name(result, workload)


def make_name_key(workload: WorkloadResult) -> Table | None:
    """The names of all rows of a workload's tables; None where nothing can be mixed up."""
    if len(workload.shown_cells) < 3:
        return None
    headings, names = name_rows(workload, workload.shown_cells)
    rows = tuple(
        Row(name, (), strong=result.cell.baseline)
        for name, result in zip(names, workload.shown_cells, strict=True)
    )
    return Table("what the numbers mean", headings, (), rows)


def describe_common_levels(workload: WorkloadResult) -> str:
    """The factors that a plan's table has no column for: `everywhere: smp=1 format=raw`."""
    cells = [result.cell for result in workload.shown_cells]
    if len(cells) < 2 or not all(cell.group for cell in cells):
        return ""
    common = set.intersection(*(set(cell.factors.items()) for cell in cells))
    named = [
        f"{name}={cells[0].display_level(name)}"
        for name, level in cells[0].factors.items()
        if (name, level) in common
    ]
    return f"everywhere: {' '.join(named)}" if named else ""


def display_platform(cell: Cell) -> str:
    """The platform, of a null cell with the number of the copy: `host#2`."""
    if cell.null_of is None:
        return str(cell.platform)
    copy = cell.id.removeprefix(cell.null_of)
    return f"{cell.platform}{copy if copy.startswith('#') else '#2'}"


def varying_factors(results: Sequence[CellResult]) -> list[str]:
    """The factors that differ among the cells."""
    factors = dict.fromkeys(name for result in results for name in result.cell.factors)
    implied = implied_placement([result.cell.factors for result in results])
    return [
        name
        for name in factors
        if name not in implied and len({result.cell.factors.get(name) for result in results}) > 1
    ]


def implied_placement(levels: Sequence[Mapping[str, str]]) -> frozenset[str]:
    """The placement, as the name of its factor, where the other levels tell which one a cell has; else nothing.

    A burst is free and a single machine pinned without anybody's asking, so that pattern and placement say the same.
    """
    all_levels = {frozenset(each.items()) for each in levels}
    others = {frozenset(level for level in each if level[0] != placement.NAME) for each in all_levels}
    return frozenset({placement.NAME}) if len(others) == len(all_levels) > 1 else frozenset()


def workload_label(result: CellResult) -> str:
    """What the cell's workload is called."""
    return result.cell.workload.label or result.cell.workload.name


def _name_columns(results: Sequence[CellResult]) -> list[tuple[str, list[str]]]:
    columns = [
        (name, [result.cell.display_level(name) or "–" for result in results])
        for name in varying_factors(results)
    ]
    platforms = [display_platform(result.cell) for result in results]
    labels = _distinct_labels(results, list(zip(platforms, *(texts for _, texts in columns), strict=True)))
    grouped = all(result.cell.group for result in results)  # a plan's table may be that of one platform
    if len(set(platforms)) > 1 or not (grouped and (columns or len(set(labels)) > 1)):
        columns.insert(0, ("platform", platforms))
    if len(set(labels)) > 1:
        columns.insert(0, ("workload", labels))
    return columns


def _distinct_labels(results: Sequence[CellResult], others: Sequence[tuple[str, ...]]) -> list[str]:
    """What each cell's workload is called; where `others` leaves two rows alike, by its key or by what it is given."""
    labels = [workload_label(result) for result in results]
    keys = [result.cell.workload.key or labels[position] for position, result in enumerate(results)]
    given = _differing_params([result.cell.workload.params for result in results])
    for names in (labels, keys, [f"{key} {said}".strip() for key, said in zip(keys, given, strict=True)]):
        if len(set(zip(names, others, strict=True))) == len(results):
            return names
    return labels


def _differing_params(params: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parameters that are not the same for all: `sync=fsync`; of a table of settings each by itself."""
    flat = [dict(_flat(each)) for each in params]
    names = sorted({name for each in flat for name in each})
    differ = [name for name in names if any(each.get(name) != flat[0].get(name) for each in flat)]
    return [" ".join(f"{name}={each[name]}" for name in differ if name in each) for each in flat]


def _flat(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _short_name(result: CellResult, workload: WorkloadResult) -> str:
    """The workload and the levels that differ from the baseline: `dd full sync`."""
    shown = workload.shown_cells
    usual = (workload.baseline or shown[0]).cell
    words = []
    if len({result.cell.workload.key for result in shown}) > 1:
        words.append(result.cell.workload.key or result.cell.workload.name)
    if len({display_platform(result.cell) for result in shown}) > 1:
        words.append(display_platform(result.cell))
    words += [
        level
        for name in varying_factors(shown)
        if (level := result.cell.display_level(name) or "")
        and level != _usual_level(name, level, usual, shown)
    ]
    return " ".join(words) or result.cell.id


def _usual_level(name: str, level: str, usual: Cell, shown: Sequence[CellResult]) -> str:
    """The level that goes without saying: the usual cell's, and where it has no such factor the only one there is."""
    if name in usual.factors:
        return usual.display_level(name) or ""
    levels = {result.cell.display_level(name) or "" for result in shown if name in result.cell.factors}
    return level if len(levels) == 1 else ""

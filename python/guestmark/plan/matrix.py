"""Creates cells from workloads, platforms and factors: the matrix, its baselines, and the null cells."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from guestmark.core import registry
from guestmark.core.cell_levels import PLATFORM, WORKLOAD, get_level
from guestmark.core.errors import UsageError, make_unknown_name_error
from guestmark.core.factor import Labelled
from guestmark.core.levels import Levels as CellLevels
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec, parse_platform
from guestmark.core.units import list_first_names
from guestmark.core.workload_kind import WorkloadClass, workload_kind
from guestmark.plan import pattern
from guestmark.plan.pattern import Pattern

Levels = Mapping[str, tuple[str, ...]]


class NullCells(StrEnum):
    """Which cells get a second copy, so that comparing A with A gives the noise floor."""

    BASELINE = "baseline"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells in plan order, and remarks for the user (such as factors that do not apply everywhere)."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of a matrix with the levels of its factors, in order.

    `platforms` limits it to some of the matrix's platforms. Without `spans` it has only the cells that rows include.
    """

    workload: WorkloadSpec
    levels: Levels = field(default_factory=dict)
    platforms: tuple[PlatformSpec, ...] | None = None
    # None: every factor that the platform takes applies to the workload.
    kind: WorkloadClass | None = None
    spans: bool = True
    # Factors that occur as `{name}` in the workload's own command.
    own: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """The name by which patterns refer to it."""
        return self.workload.key or self.workload.name

    def applies(self, factor: str, platform: PlatformSpec) -> bool:
        """Return whether its cells on that platform have the factor."""
        if factor in self.own:
            return True
        if registry.is_variable(factor):
            return (self.kind or workload_kind(self.workload.name)).runs_command
        if self.kind is None:
            return platform.takes_factor(factor)
        return self.kind.has_factor(self.workload, factor, platform)


@dataclass(frozen=True, slots=True)
class Row:
    """Cells that a plan names individually: `levels` by factor; None for workload and platforms stands for all.

    Factors of the workload that the row does not name have their first level.
    """

    levels: Levels
    workloads: tuple[str, ...] | None = None
    platforms: tuple[PlatformSpec, ...] | None = None


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Cells that a plan leaves out; `reason` is shown to users who might expect them."""

    pattern: Pattern
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """Everything that determines the cells of a plan.

    `baseline` is a pattern, or what the user typed. `within` names what must be equal in cells that are compared with
    each other (`workload`, `platform`, factors); every such group has a baseline. None: the cells of one workload form
    a group without a name. `asked` are the factors set with `--set`: one that applies nowhere is an error.
    """

    entries: tuple[Entry, ...]
    platforms: tuple[PlatformSpec, ...]
    include: tuple[Row, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    only: str | None = None
    baseline: Pattern | str | None = None
    within: tuple[str, ...] | None = None
    null: NullCells = NullCells.BASELINE
    asked: frozenset[str] = frozenset()
    # The name of the only group when nothing has to be equal.
    title: str = ""


def make_cell_id(platform: str, levels: Mapping[str, str], key: str = "") -> str:
    """Return a cell's id in documents and for `--baseline` and `--only`: `tcg memory=512M smp=2`.

    The workload's `key` comes first in plans with several workloads. `levels` are the levels to show.
    """
    words = [platform, *(f"{name}={level}" for name, level in levels.items())]
    if key:
        words.insert(0, key)
    return " ".join(words)


def expand_workload(
    workload: WorkloadSpec,
    platforms: Sequence[PlatformSpec],
    settings: Levels,
    *,
    baseline: str | None = None,
    null: NullCells = NullCells.BASELINE,
) -> Matrix:
    """Return the matrix of one workload whose factors were all set by the user; see `expand_shape`."""
    asked = frozenset(settings)
    return expand_shape(
        Shape((Entry(workload, settings),), tuple(platforms), baseline=baseline, null=null, asked=asked)
    )


def expand_shape(shape: Shape) -> Matrix:
    """Return every workload on every platform at every combination of levels of the factors that apply there.

    A platform that does not take a factor has its cells without that factor, with a note; a factor set with `--set`
    that no platform takes is a `UsageError`. A repeated platform becomes the null cell of the first one. A `baseline`
    typed by the user is a cell id, a platform, or some of a cell's levels; a platform that is not among the platforms
    is added in front.
    """
    # A repeated platform asks for null cells, which are created at the end.
    unique = list(dict.fromkeys(shape.platforms))
    if isinstance(shape.baseline, str) and "=" not in shape.baseline and "#" not in shape.baseline:
        _add_platform(unique, shape.baseline, [entry.key for entry in shape.entries])
    notes = _check_applicable(shape, unique) + _note_impossible(shape, unique)
    cells, exclusions = _leave_out_excluded(shape, unique)
    notes += exclusions
    without = [str(spec) for spec in unique if not _has_rows(shape, spec)]
    if not cells:
        raise UsageError(
            f"the plan has no cell on {', '.join(without) or 'these platforms'}",
            hint=f"choose others with --on{_list_platforms_of_rows(shape)}",
        )
    if without:
        notes.append(
            f"left out: {', '.join(without)}: the plan has no cell there{_list_platforms_of_rows(shape)}"
        )
    if shape.only is not None:
        cells = pattern.select_cells(cells, shape.only)
    if shape.within is not None:
        cells = [replace(cell, group=_name_group(cell, shape)) for cell in cells]
    cells, more = _mark_baselines(cells, shape.baseline)
    # Copies are created last, because which cells get one depends on the baselines.
    copies = _make_null_copies(cells, shape.platforms, shape.null)
    return Matrix((*cells, *copies), (*notes, *more))


def _add_platform(unique: list[PlatformSpec], baseline: str, keys: Sequence[str]) -> None:
    for word in baseline.split() or [""]:
        if word not in keys:
            asked = parse_platform(word)
            if asked not in unique:
                unique.insert(0, asked)


def _leave_out_excluded(shape: Shape, platforms: Sequence[PlatformSpec]) -> tuple[list[Cell], list[str]]:
    """Return the cells that the plan does not exclude, and a note for each reason that it gives for the others."""
    # A row may name a cell that the factors span already.
    found = {cell.id: cell for cell in _make_cells(shape, platforms)}
    cells: list[Cell] = []
    left_out: dict[str, list[str]] = {}
    for cell in found.values():
        for exclusion in shape.exclude:
            if pattern.matches_pattern(exclusion.pattern, cell):
                if exclusion.reason:
                    left_out.setdefault(exclusion.reason, []).append(cell.id)
                break
        else:
            cells.append(cell)
    return cells, [f"left out: {list_first_names(ids, 'cell')}: {reason}" for reason, ids in left_out.items()]


def _make_cells(shape: Shape, platforms: Sequence[PlatformSpec]) -> Iterator[Cell]:
    """Yield the cells that the factors span, then those of the rows, both in plan order; some may occur twice."""
    named = len(shape.entries) > 1
    for entry in shape.entries:
        if entry.spans:
            where = _select_platforms(entry.platforms, platforms)
            yield from _expand_entry(entry, entry.levels, where, shape.asked, named=named)
    for row in shape.include:
        for entry in shape.entries:
            if row.workloads is not None and entry.key not in row.workloads:
                continue
            first = {name: levels[:1] for name, levels in entry.levels.items()}
            where = _select_platforms(row.platforms, _select_platforms(entry.platforms, platforms))
            yield from _expand_entry(entry, {**first, **row.levels}, where, shape.asked, named=named)


def _has_rows(shape: Shape, spec: PlatformSpec) -> bool:
    """Return whether the plan has rows for a platform, or leaves out cells of it."""
    for entry in shape.entries:
        if entry.platforms is not None and spec not in entry.platforms:
            continue
        for row in shape.include:
            if row.workloads is not None and entry.key not in row.workloads:
                continue
            if _covers_platform(row.platforms, spec):
                return True
        if entry.spans:
            return True
    return False


def _list_platforms_of_rows(shape: Shape) -> str:
    """Describe the platforms that rows name; empty if no row names any."""
    names: dict[str, None] = {}
    for row in shape.include:
        for spec in row.platforms or ():
            names[spec.form] = None
    if not names:
        return ""
    return f"; it has cells on {', '.join(names)}"


def _select_platforms(
    some: Sequence[PlatformSpec] | None, all_of_them: Sequence[PlatformSpec]
) -> list[PlatformSpec]:
    return [spec for spec in all_of_them if _covers_platform(some, spec)]


def _covers_platform(some: Sequence[PlatformSpec] | None, spec: PlatformSpec) -> bool:
    """Return whether a platform is among `some`; None stands for all of them."""
    return some is None or any(other.covers(spec) for other in some)


def _expand_entry(
    entry: Entry, levels: Levels, platforms: Sequence[PlatformSpec], asked: frozenset[str], *, named: bool
) -> Iterator[Cell]:
    # A level that all cells share, except those of rows, would only lengthen every id.
    usual: dict[str, str] = {}
    for name, some in entry.levels.items():
        if len(some) == 1 and name not in asked:
            usual[name] = some[0]
    for spec in platforms:
        applicable = _select_applicable(entry, levels, spec, asked)
        for combination in itertools.product(*applicable.values()):
            factors: dict[str, str] = {}
            labels: dict[str, str] = {}
            shown: dict[str, str] = {}
            for name, level in zip(applicable, combination, strict=True):
                factors[name] = str(level)
                if isinstance(level, Labelled):
                    labels[name] = level.label
                if usual.get(name) != level:
                    shown[name] = labels.get(name, level)
            cell_id = make_cell_id(str(spec), shown, entry.key if named else "")
            yield Cell(cell_id, entry.workload, spec, factors, labels=labels)


def _select_applicable(
    entry: Entry, levels: Levels, spec: PlatformSpec, asked: frozenset[str]
) -> dict[str, Sequence[str]]:
    """Return the factors that apply to the platform, with the levels that it can have or that were asked for."""
    applicable: dict[str, Sequence[str]] = {}
    for name, some in levels.items():
        if not entry.applies(name, spec):
            continue
        possible = some if name in asked else _select_possible(name, some, spec)
        # A factor without a possible level is omitted, like one that the platform does not take.
        if possible:
            applicable[name] = possible
    return applicable


def _select_possible(name: str, levels: Sequence[str], spec: PlatformSpec) -> tuple[str, ...]:
    """Return the levels that the platform's destination can have; for instance, it may not have restored starts."""
    return tuple(level for level in levels if not spec.explain_objection(CellLevels({name: str(level)})))


def _note_impossible(shape: Shape, specs: Sequence[PlatformSpec]) -> list[str]:
    """Return a note for each level of the plan's own that a platform's destination cannot have."""
    notes: dict[str, None] = {}
    for spec in specs:
        for entry in shape.entries:
            for name, levels in entry.levels.items():
                if name in shape.asked or not entry.applies(name, spec):
                    continue
                for level in levels:
                    if reason := spec.explain_objection(CellLevels({name: str(level)})):
                        notes[f"{name}={level} is left out on {spec}: {reason}"] = None
    return list(notes)


def _check_applicable(shape: Shape, specs: Sequence[PlatformSpec]) -> list[str]:
    """Return notes on factors that some platforms do not take.

    Raises `UsageError` for a factor that the user set and that none of them takes.
    """
    absent: dict[tuple[str, ...], list[str]] = {}
    factors: dict[str, None] = {}
    for entry in shape.entries:
        factors |= dict.fromkeys(entry.levels)
    for name in factors:
        users = [entry for entry in shape.entries if name in entry.levels]
        without = tuple(_list_platforms_without(name, users, specs))
        if name in shape.asked and len(without) == len(specs):
            raise _describe_unusable_factor(name, specs)
        # A factor at one level that the user did not ask for makes no difference between cells.
        if without and (name in shape.asked or any(len(entry.levels[name]) > 1 for entry in users)):
            absent.setdefault(without, []).append(name)
    notes = []
    for without, names in absent.items():
        verb = "does" if len(names) == 1 else "do"
        notes.append(f"{', '.join(names)} {verb} not apply to {', '.join(without)}")
    return notes


def _describe_unusable_factor(name: str, specs: Sequence[PlatformSpec]) -> UsageError:
    hint = "no workload in the plan uses it"
    if not any_platform_takes(name, specs):
        hint = f"it applies to {registry.describe_takers(registry.find_factor(name))}"
    return UsageError(f"factor {name} cannot be set on {', '.join(map(str, specs))}", hint=hint)


def _list_platforms_without(
    name: str, entries: Sequence[Entry], specs: Sequence[PlatformSpec]
) -> Iterator[str]:
    """Yield the platforms on which the factor applies to none of these entries."""
    for spec in specs:
        if not any(entry.applies(name, spec) for entry in entries):
            yield str(spec)


def any_platform_takes(name: str, specs: Sequence[PlatformSpec]) -> bool:
    """Return whether any of these platforms takes the factor."""
    return any(spec.takes_factor(name) for spec in specs)


# --- groups and baselines -----------------------------------------------------------------------------------


def _name_group(cell: Cell, shape: Shape) -> str:
    parts = []
    for name in shape.within or ():
        level = get_level(cell, name)
        if name == WORKLOAD:
            parts.append(cell.workload.label or level or "")
        elif level is not None:
            parts.append(level if name == PLATFORM else f"{name}={level}")
    return ", ".join(parts) or shape.title


def _mark_baselines(cells: Sequence[Cell], asked: Pattern | str | None) -> tuple[list[Cell], list[str]]:
    """Mark one baseline in each group; also return remarks about groups that lack the requested one."""
    wanted = _parse_baseline(cells, asked) if isinstance(asked, str) else asked
    chosen, notes = [], []
    left = list(cells)
    while left:
        group = [cell for cell in left if cell.compares_with(left[0])]
        left = [cell for cell in left if cell not in group]
        matching = group
        if wanted:
            matching = [cell for cell in group if pattern.matches_pattern(wanted, cell)]
        if matching:
            chosen.append(matching[0].id)
            continue
        where = f" in {group[0].group}" if group[0].group else ""
        notes.append(f"the plan's baseline is missing{where}: compared with {group[0].id} instead")
        chosen.append(group[0].id)
    return [replace(cell, baseline=cell.id in chosen) for cell in cells], notes


def change_baseline(cells: Sequence[Cell], asked: str) -> tuple[Cell, ...]:
    """Return the cells of a measured run with another baseline than planned.

    `asked` is what `--baseline` takes. Groups that do not contain it keep their baseline. Raises `UsageError` if no
    group contains it.
    """
    measured = [cell for cell in cells if cell.null_of is None]
    wanted = _parse_baseline(measured, asked)
    chosen = {cell.id for cell in cells if cell.baseline}
    for cell in measured:
        if not pattern.matches_pattern(wanted, cell):
            continue
        group = [other for other in measured if other.compares_with(cell)]
        # The first cell that matches becomes the baseline, unless the group's baseline matches as well.
        if not any(other.id in chosen and pattern.matches_pattern(wanted, other) for other in group):
            chosen -= {other.id for other in group}
            chosen.add(cell.id)
    return tuple(replace(cell, baseline=cell.id in chosen) for cell in cells)


def _parse_baseline(cells: Sequence[Cell], asked: str) -> Pattern:
    """Return the pattern that `--baseline` stands for. Raises `UsageError` if no cell matches it."""
    cell_id = " ".join(asked.split())
    for cell in cells:
        if cell.id == cell_id:
            return _make_exact_pattern(cell)
    conditions: list[pattern.Condition] = []
    keys = {cell.workload.key for cell in cells} - {""}
    for token in asked.split():
        name, equals, text = token.partition("=")
        if equals:
            conditions.append(pattern.make_condition(name, text, cells))
        elif token in keys:
            conditions.append(pattern.Condition(WORKLOAD, (token,)))
        else:
            # `tcg#2` is the id of a null cell, which never is a baseline.
            platform = parse_platform(name.partition("#")[0])
            conditions.append(pattern.Condition(PLATFORM, (str(platform),)))
    wanted = tuple(conditions)
    if not wanted or not any(pattern.matches_pattern(wanted, cell) for cell in cells):
        raise make_unknown_name_error("baseline", asked, [cell.id for cell in cells])
    return wanted


def _make_exact_pattern(cell: Cell) -> Pattern:
    """Return a pattern of all levels of the cell."""
    conditions = []
    for name in (WORKLOAD, PLATFORM, *cell.factors):
        level = get_level(cell, name)
        if level is not None:
            conditions.append(pattern.Condition(name, (level,)))
    return tuple(conditions)


def _make_null_copies(
    cells: Sequence[Cell], platforms: Sequence[PlatformSpec], null: NullCells
) -> list[Cell]:
    counts = {spec: platforms.count(spec) for spec in platforms}
    copies = []
    for cell in cells:
        # Every repetition of a platform after the first is a null cell.
        number = counts.get(cell.platform, 1) - 1
        if null is NullCells.ALL or (null is NullCells.BASELINE and cell.baseline):
            number = max(number, 1)
        for index in range(2, number + 2):
            # A repeated platform asks for its copies; others are added for the noise floor and shown apart.
            added = index > counts.get(cell.platform, 1)
            copy = replace(cell, id=f"{cell.id}#{index}", baseline=False, null_of=cell.id, added=added)
            copies.append(copy)
    return copies

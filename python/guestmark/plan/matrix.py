"""From workloads, platforms and factors to cells: the matrix, its baselines, and the null cells."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from guestmark.core import registry
from guestmark.core.cell_levels import PLATFORM, WORKLOAD, get_level
from guestmark.core.errors import UsageError, unknown_name_error
from guestmark.core.factor import Labelled
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec, parse_platform
from guestmark.core.units import format_count
from guestmark.core.workload_kind import WorkloadClass, workload_kind
from guestmark.plan import pattern
from guestmark.plan.pattern import Pattern

Levels = Mapping[str, tuple[str, ...]]
_IDS_SHOWN = 3  # cells, in a note


class NullCells(StrEnum):
    """Which cells get a second copy, so that A against A gives the noise floor."""

    BASELINE = "baseline"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells in plan order, and remarks the user should read (factors that do not apply everywhere)."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One workload of a matrix with the levels of its factors, in order.

    `platforms` limits it to some of the matrix's. Without `spans` it has only the cells that rows include.
    """

    workload: WorkloadSpec
    levels: Levels = field(default_factory=dict)
    platforms: tuple[PlatformSpec, ...] | None = None
    # None: a factor means something to it wherever the platform takes it.
    kind: WorkloadClass | None = None
    spans: bool = True
    # Factors that stand in the workload's own command.
    own: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        """What patterns call it."""
        return self.workload.key or self.workload.name

    def applies(self, factor: str, platform: PlatformSpec) -> bool:
        """Whether its cells on that platform have the factor."""
        if factor in self.own:
            return True
        if registry.is_variable(factor):
            return (self.kind or workload_kind(self.workload.name)).runs_command
        if self.kind is None:
            return platform.takes_factor(factor)
        return self.kind.has_factor(self.workload, factor, platform)


@dataclass(frozen=True, slots=True)
class Row:
    """Cells that a plan names individually: `levels` by factor; None for workload and platforms means all.

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
    """Everything that decides which cells there are.

    `baseline` is a pattern, or what the user typed. `within` names what must be equal in cells that are compared with
    each other (`workload`, `platform`, factors); every such group has its own baseline. `None`: cells of one workload,
    without a name for their group. `asked` are the factors the user set by hand: one that applies nowhere is an error.
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
    """What a cell is called in documents and by `--baseline` and `--only`: `tcg memory=512M smp=2`.

    The workload's `key` comes first in plans that have several. `levels` are the levels to show.
    """
    words = [key] if key else []
    return " ".join([*words, platform, *(f"{name}={level}" for name, level in levels.items())])


def expand_workload(
    workload: WorkloadSpec,
    platforms: Sequence[PlatformSpec],
    settings: Levels,
    *,
    baseline: str | None = None,
    null: NullCells = NullCells.BASELINE,
) -> Matrix:
    """The matrix of one workload whose factors were all set by hand; see `span`."""
    asked = frozenset(settings)
    return expand_shape(
        Shape((Entry(workload, settings),), tuple(platforms), baseline=baseline, null=null, asked=asked)
    )


def expand_shape(shape: Shape) -> Matrix:
    """Every workload on every platform at every combination of the factors' levels that apply there.

    A platform a factor does not apply to has its cells without that factor, with a note; when no platform takes a
    factor set with `--set`, that is a `UsageError`. A repeated platform becomes the null cell of the first one. A
    `baseline` typed by the user is a cell id, a platform, or some of a cell's levels; a platform that is not among the
    platforms is added in front.
    """
    unique = list(dict.fromkeys(shape.platforms))
    if isinstance(shape.baseline, str) and "=" not in shape.baseline and "#" not in shape.baseline:
        _add_platform(unique, shape.baseline, [entry.key for entry in shape.entries])
    notes = _check_applicable(shape, unique)
    left_out: dict[str, list[str]] = {}
    found = {
        cell.id: cell for cell in _make_cells(shape, unique)
    }  # a row may name a cell that already exists
    cells = []
    for cell in found.values():
        why = next(
            (exclusion for exclusion in shape.exclude if pattern.matches_pattern(exclusion.pattern, cell)),
            None,
        )
        if why is None:
            cells.append(cell)
        elif why.reason:
            left_out.setdefault(why.reason, []).append(cell.id)
    notes += [f"left out: {_shorten_ids(ids)}: {reason}" for reason, ids in left_out.items()]
    if not cells:
        raise UsageError("the plan has no cell on these platforms", hint="choose others with --on")
    if shape.only is not None:
        cells = pattern.select_cells(cells, shape.only)
    if shape.within is not None:
        cells = [replace(cell, group=_name_group(cell, shape)) for cell in cells]
    cells, more = _mark_baselines(cells, shape.baseline)
    copies = _make_null_copies(cells, shape.platforms, shape.null)
    return Matrix((*cells, *copies), (*notes, *more))


def _add_platform(unique: list[PlatformSpec], baseline: str, keys: Sequence[str]) -> None:
    for word in baseline.split() or [""]:
        if word not in keys:
            asked = parse_platform(word)
            if asked not in unique:
                unique.insert(0, asked)


def _make_cells(shape: Shape, platforms: Sequence[PlatformSpec]) -> Iterator[Cell]:
    """The cells the factors span, then those of the rows, both in plan order; some may come twice."""
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


def _select_platforms(
    some: Sequence[PlatformSpec] | None, all_of_them: Sequence[PlatformSpec]
) -> list[PlatformSpec]:
    return [spec for spec in all_of_them if some is None or spec in some]


def _expand_entry(
    entry: Entry, levels: Levels, platforms: Sequence[PlatformSpec], asked: frozenset[str], *, named: bool
) -> Iterator[Cell]:
    # A level shared by all but the included rows would lengthen every id and tell nothing.
    usual = {
        name: levels[0] for name, levels in entry.levels.items() if len(levels) == 1 and name not in asked
    }
    for spec in platforms:
        applicable = {name: some for name, some in levels.items() if entry.applies(name, spec)}
        for combination in itertools.product(*applicable.values()):
            chosen = dict(zip(applicable, combination, strict=True))
            labels = {name: level.label for name, level in chosen.items() if isinstance(level, Labelled)}
            said = {
                name: labels.get(name, level) for name, level in chosen.items() if usual.get(name) != level
            }
            yield Cell(
                make_cell_id(str(spec), said, entry.key if named else ""),
                entry.workload,
                spec,
                {name: str(level) for name, level in chosen.items()},
                labels=labels,
            )


def _check_applicable(shape: Shape, specs: Sequence[PlatformSpec]) -> list[str]:
    absent: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(name for entry in shape.entries for name in entry.levels):
        users = [entry for entry in shape.entries if name in entry.levels]
        takers = [spec for spec in specs if any(entry.applies(name, spec) for entry in users)]
        if not takers and name in shape.asked:
            others = ", ".join(str(spec) for spec in specs)
            what = (
                ""
                if any_platform_takes(name, specs)
                else f"it applies to {registry.describe_takers(registry.find_factor(name))}"
            )
            raise UsageError(
                f"factor {name} cannot be set on {others}", hint=what or "no workload in the plan uses it"
            )
        without = tuple(str(spec) for spec in specs if spec not in takers)
        if without and (name in shape.asked or any(len(entry.levels[name]) > 1 for entry in users)):
            absent.setdefault(without, []).append(name)
    return [
        f"{', '.join(names)} {'does' if len(names) == 1 else 'do'} not apply to {', '.join(without)}"
        for without, names in absent.items()
    ]


def any_platform_takes(name: str, specs: Sequence[PlatformSpec]) -> bool:
    """Whether any of these platforms takes the factor."""
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
    """The cells with one baseline in each group, and remarks about groups that do not have the one asked for."""
    wanted = _parse_baseline(cells, asked) if isinstance(asked, str) else asked
    chosen, notes = [], []
    left = list(cells)
    while left:
        group = [cell for cell in left if cell.compares_with(left[0])]
        left = [cell for cell in left if cell not in group]
        found = next((cell for cell in group if wanted and pattern.matches_pattern(wanted, cell)), None)
        if found is None and wanted:
            where = f" in {group[0].group}" if group[0].group else ""
            notes.append(f"the plan's baseline is missing{where}: compared with {group[0].id} instead")
        chosen.append((found or group[0]).id)
    return [replace(cell, baseline=cell.id in chosen) for cell in cells], notes


def change_baseline(cells: Sequence[Cell], asked: str) -> tuple[Cell, ...]:
    """The cells of a measured run, compared with another one of them than they were planned to be.

    `asked` is what `--baseline` takes. Groups in which it is not keep their baseline. Raises `UsageError` when it is in
    none.
    """
    measured = [cell for cell in cells if cell.null_of is None]
    wanted = _parse_baseline(measured, asked)
    chosen = {cell.id for cell in cells if cell.baseline}
    for cell in measured:
        if pattern.matches_pattern(wanted, cell) and not any(
            cell.compares_with(other)
            for other in measured
            if other.id in chosen and pattern.matches_pattern(wanted, other)
        ):
            chosen -= {other.id for other in measured if other.compares_with(cell)}
            chosen.add(cell.id)
    return tuple(replace(cell, baseline=cell.id in chosen) for cell in cells)


def _parse_baseline(cells: Sequence[Cell], asked: str) -> Pattern:
    """The cell that `--baseline` selects. Raises `UsageError` when it matches none."""
    exact = next((cell for cell in cells if cell.id == " ".join(asked.split())), None)
    if exact is not None:
        return tuple(
            pattern.Condition(name, (level,))
            for name in (WORKLOAD, PLATFORM, *exact.factors)
            if (level := get_level(exact, name)) is not None
        )
    keys = {cell.workload.key for cell in cells} - {""}
    conditions = []
    for token in asked.split():
        name, equals, level = token.partition("=")
        if equals:
            conditions.append(pattern.make_condition(name, level, cells))
        elif token in keys:
            conditions.append(pattern.Condition(WORKLOAD, (token,)))
        else:
            platform = parse_platform(name.partition("#")[0])
            conditions.append(pattern.Condition(PLATFORM, (str(platform),)))
    wanted = tuple(conditions)
    if not wanted or not any(pattern.matches_pattern(wanted, cell) for cell in cells):
        raise unknown_name_error("baseline", asked, [cell.id for cell in cells])
    return wanted


def _make_null_copies(
    cells: Sequence[Cell], platforms: Sequence[PlatformSpec], null: NullCells
) -> list[Cell]:
    counts = {spec: platforms.count(spec) for spec in platforms}
    copies = []
    for cell in cells:
        number = counts.get(cell.platform, 1) - 1
        if null is NullCells.ALL or (null is NullCells.BASELINE and cell.baseline):
            number = max(number, 1)
        copies += [
            replace(
                cell,
                id=f"{cell.id}#{index}",
                baseline=False,
                null_of=cell.id,
                added=index > counts.get(cell.platform, 1),
            )
            for index in range(2, number + 2)
        ]
    return copies


def _shorten_ids(ids: Sequence[str]) -> str:
    """The first of some cells, and how many more there are."""
    more = f" and {format_count(len(ids) - _IDS_SHOWN, 'more cell')}" if len(ids) > _IDS_SHOWN else ""
    return f"{', '.join(ids[:_IDS_SHOWN])}{more}"

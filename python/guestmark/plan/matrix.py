"""From platforms and factors to cells: the matrix, its baseline, and the null cells."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from guestmark.errors import UsageError
from guestmark.plan import factors
from guestmark.plan.model import Cell, WorkloadSpec
from guestmark.plan.nearest import unknown
from guestmark.plan.platform_spec import PlatformSpec, parse_platform


class Null(StrEnum):
    """Which cells get a second copy, so that A against A gives the noise floor."""

    BASELINE = "baseline"
    ALL = "all"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    """The cells in plan order, and remarks the user should read (factors that do not apply everywhere)."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()


def cell_id(platform: str, levels: Mapping[str, str]) -> str:
    """What a cell is called in tables, documents and `--baseline`: `tcg memory=512M smp=2`."""
    return " ".join([platform, *(f"{name}={level}" for name, level in levels.items())])


def expand(
    workload: WorkloadSpec,
    platforms: Sequence[PlatformSpec],
    settings: Mapping[str, tuple[str, ...]],
    *,
    baseline: str | None = None,
    null: Null = Null.BASELINE,
) -> Matrix:
    """Every platform at every combination of the factors' levels that apply to it.

    A platform a factor does not apply to has its cells without that factor, with a note; when no platform takes it,
    that is a `UsageError`. A repeated platform becomes the null cell of the first one. `baseline` is a cell id, a
    platform, or some of a cell's levels; a platform that is not among `platforms` is added in front.
    """
    unique = list(dict.fromkeys(platforms))
    if baseline is not None and "=" not in baseline and "#" not in baseline:
        asked = parse_platform(baseline)
        if asked not in unique:
            unique.insert(0, asked)
    notes = _check_applicable(unique, settings)
    cells: list[Cell] = []
    for spec in unique:
        applicable = {name: levels for name, levels in settings.items() if factors.get(name).applies_to(spec)}
        for combination in itertools.product(*applicable.values()):
            levels = dict(zip(applicable, combination, strict=True))
            cells.append(Cell(cell_id(str(spec), levels), workload, str(spec), levels))
    chosen = _choose_baseline(cells, baseline)
    cells = [replace(cell, baseline=cell.id == chosen) for cell in cells]
    copies = _null_copies(cells, platforms, null)
    return Matrix((*cells, *copies), tuple(notes))


def _check_applicable(specs: Sequence[PlatformSpec], settings: Mapping[str, tuple[str, ...]]) -> list[str]:
    notes = []
    for name in settings:
        factor = factors.get(name)
        takers = [spec for spec in specs if factor.applies_to(spec)]
        if not takers:
            others = ", ".join(str(spec) for spec in specs)
            raise UsageError(
                f"factor {name} cannot be set on {others}",
                hint=f"it applies to {', '.join(sorted(factor.kinds))}",
            )
        without = [str(spec) for spec in specs if spec not in takers]
        if without:
            verb = "is" if len(without) == 1 else "are"
            notes.append(f"{name} does not apply to {', '.join(without)}, which {verb} measured without it")
    return notes


def _choose_baseline(cells: Sequence[Cell], asked: str | None) -> str:
    if asked is None:
        return cells[0].id
    tokens = asked.split()
    wanted: dict[str, str] = {}
    platform = None
    for token in tokens:
        name, equals, level = token.partition("=")
        if equals:
            factor = factors.get(name)
            wanted[factor.name] = factors.parse_level(factor, level)
        else:
            platform = str(parse_platform(name.partition("#")[0]))
    for cell in cells:
        if platform in {None, cell.platform} and wanted.items() <= dict(cell.factors).items():
            return cell.id
    raise unknown("baseline", asked, [cell.id for cell in cells])


def _null_copies(cells: Sequence[Cell], platforms: Sequence[PlatformSpec], null: Null) -> list[Cell]:
    counts = {str(spec): platforms.count(spec) for spec in platforms}
    copies = []
    for cell in cells:
        number = counts.get(cell.platform, 1) - 1
        if null is Null.ALL or (null is Null.BASELINE and cell.baseline):
            number = max(number, 1)
        copies += [
            replace(cell, id=f"{cell.id}#{index}", baseline=False, null_of=cell.id)
            for index in range(2, number + 2)
        ]
    return copies

"""What to measure, before the matrix is expanded: `exec` and TOML plans both become an outline, then a plan."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from guestmark.core import registry
from guestmark.core.cell_levels import PLATFORM, get_level
from guestmark.core.context import Caller, Context, HostCommands
from guestmark.core.derived import Derived
from guestmark.core.errors import UsageError
from guestmark.core.gate import parse_gates
from guestmark.core.metric import MIN_BLOCKS, Metric
from guestmark.core.model import Cell, Plan, Policy, Published, Question
from guestmark.core.placement import FREE, NAME, PINNED
from guestmark.core.platform_spec import parse_platforms
from guestmark.core.tuning import Settings
from guestmark.plan.matrix import Entry, Row, Shape, expand_shape
from guestmark.plan.pattern import list_names
from guestmark.plan.policy_options import PolicyOptions, check_conflicts, collect_given_values

# Blocks for finding slow runs, which are rare.
_MOST_BLOCKS = 10_000
# With this many blocks, a difference can be claimed even among two thousand cells.
_FEW_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class Outline:
    """A plan whose cells have not been created yet."""

    name: str
    shape: Shape
    policy: Policy
    metrics: tuple[Metric, ...]  # the primary one first
    title: str = ""
    description: str = ""
    published: tuple[Published, ...] = ()
    questions: tuple[Question, ...] = ()
    # Seconds of a trial by platform, as declared.
    cost: Mapping[str, float] = field(default_factory=dict)
    # The part of these seconds that does not shrink with the scale.
    start: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0
    # Wall time of a run in seconds, unless the command line says otherwise.
    budget_s: float | None = None
    # A race for the best cell; if it requires a durability, the run proves it.
    race: Settings | None = None
    # Limits that a run must meet, in the notation of `--fail-if`.
    gates: tuple[str, ...] = ()
    # Metrics that are computed from others.
    derived: tuple[Derived, ...] = ()
    around: HostCommands = field(default_factory=HostCommands)
    # Workload, platform and factors whose levels the user chose.
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Overrides(PolicyOptions):
    """What the user gave on the command line; None keeps the outline's value."""

    on: Sequence[str] | None = None
    baseline: str | None = None
    settings: Sequence[str] = ()
    # Levels of the parameters that occur in the command as {name}.
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only: str | None = None


def override_outline(outline: Outline, given: Overrides) -> Outline:
    """Return the outline with the user's options applied. Raises `UsageError` for contradictory options."""
    check_conflicts(collect_given_values(given))
    shape = outline.shape
    settings = {**registry.parse_settings(given.settings), **given.parameters}
    if given.on is not None:
        shape = replace(shape, platforms=parse_platforms(given.on))
    if given.baseline is not None:
        shape = replace(shape, baseline=given.baseline)
    if given.null is not None:
        shape = replace(shape, null=given.null)
    if given.only is not None:
        shape = replace(shape, only=given.only)
    shape = replace(
        shape,
        asked=shape.asked | settings.keys(),
        entries=_set_entries(shape.entries, settings, frozenset(given.parameters)),
        include=tuple(_set_row(row, settings) for row in shape.include),
    )
    if (
        given.find is not None
        and given.find.starts
        and not any(platform.is_guest for platform in shape.platforms)
    ):
        raise UsageError(
            "--find: 'of starts' requires guests, but only machines that do not boot are measured",
            hint="leave out 'of starts', or measure guests: --on tcg",
        )
    named = {*shape.asked, *list_names(given.only or "")}
    if given.on is not None:
        named.add(PLATFORM)
    return replace(
        outline, shape=shape, policy=_override_policy(outline.policy, given), named=frozenset(named)
    )


def _set_entries(
    entries: tuple[Entry, ...], settings: Mapping[str, tuple[str, ...]], own: frozenset[str]
) -> tuple[Entry, ...]:
    """Replace the plan's levels by those of `--set`; a factor that no workload has yet is given to all of them."""
    result = []
    for entry in entries:
        levels = dict(entry.levels)
        for name, some in settings.items():
            is_new = not any(name in other.levels for other in entries)
            if name in entry.levels or is_new:
                levels[name] = some
        result.append(replace(entry, levels=levels, own=entry.own | own))
    return tuple(result)


def _set_row(row: Row, settings: Mapping[str, tuple[str, ...]]) -> Row:
    return replace(row, levels={name: settings.get(name, levels) for name, levels in row.levels.items()})


def _override_policy(policy: Policy, given: Overrides) -> Policy:
    # Options that the policy takes over unchanged; the number of blocks depends on others.
    values = collect_given_values(given)
    for name in ("null", "min_blocks", "max_blocks", "over_s"):
        values.pop(name, None)
    # The seed is stored with the run, so that its order can be reproduced.
    values.setdefault("seed", secrets.randbits(32))
    if given.precision is not None or given.time_limit_s is not None:
        # The user's goal replaces the plan's number of blocks.
        policy = replace(policy, blocks=None)
    if given.precision is not None:
        # A quick run stops at the precision that the user names, and does not continue to half of that width.
        policy = replace(policy, fine_s=0.0)
    if given.find is not None:
        # Rare slow runs need many blocks; any other goal would end the run too early.
        policy = replace(policy, blocks=None, enough_s=None, max_blocks=_MOST_BLOCKS)
    if given.min_blocks is not None:
        most = max(policy.max_blocks, given.min_blocks)
        policy = replace(policy, blocks=None, min_blocks=given.min_blocks, max_blocks=most)
    if given.max_blocks is not None:
        least = min(policy.min_blocks, given.max_blocks)
        policy = replace(policy, blocks=None, min_blocks=least, max_blocks=given.max_blocks)
    if given.over_s is not None:
        blocks = given.blocks or policy.blocks or max(policy.min_blocks, MIN_BLOCKS)
        policy = replace(policy, blocks=blocks, over_s=given.over_s, enough_s=None)
    return replace(policy, **values)


def _note_too_few_blocks(cells: Sequence[Cell], policy: Policy) -> list[str]:
    """Return a remark if so many cells are compared in so few blocks that hardly any difference can be claimed."""
    most = policy.blocks or policy.max_blocks
    if most > _FEW_BLOCKS:
        return []
    from guestmark.stats.compare import (
        MIN_BLOCKS,
        count_blocks_to_claim,
    )  # here, as loading these takes longer than all else of a plan

    compared = 0
    for baseline in cells:
        if baseline.baseline:
            group = sum(cell.null_of is None and cell.compares_with(baseline) for cell in cells)
            compared = max(compared, group - 1)
    if compared < 1 or not MIN_BLOCKS <= most < (needed := count_blocks_to_claim(compared)):
        return []
    return [
        f"{compared} cells are compared with one: if a single one differs, showing that takes {needed} "
        f"blocks or more (--blocks {needed})"
    ]


def assemble_plan(outline: Outline, caller: Caller) -> Plan:
    """Make the plan with all its cells, for `caller`. Raises `UsageError`."""
    matrix = expand_shape(replace(outline.shape, title=outline.shape.title or outline.title or outline.name))
    cells = tuple(place_cells(matrix.cells))
    # Gates are only checked here, so that a typing mistake does not cost a run.
    parse_gates(outline.gates, cells, {metric.name for metric in outline.metrics})
    context = Context.for_caller(
        caller,
        notes=(*matrix.notes, *note_unequal_processors(cells), *_note_too_few_blocks(cells, outline.policy)),
        scale=outline.scale,
        cost=outline.cost,
        start=outline.start,
        derived=outline.derived,
        around=outline.around,
        gates=outline.gates,
        named=_group_by_level(outline.named, cells),
        tune=outline.race,
        prove=outline.race is not None and bool(outline.race.durability),
    )
    return Plan(
        outline.name,
        cells,
        outline.policy,
        outline.metrics,
        context,
        title=outline.title,
        published=outline.published,
        questions=outline.questions,
    )


def _group_by_level(names: Collection[str], cells: Sequence[Cell]) -> tuple[tuple[str, ...], ...]:
    """Return the ids of the cells that share each level of these names."""
    groups: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for name in sorted(names):
            if cell.null_of is None and (level := get_level(cell, name)) is not None:
                groups.setdefault((name, level), []).append(cell.id)
    return tuple(map(tuple, groups.values()))


_SMP = "smp"
# Cells that can be named in a sentence.
_MANY = 3


def place_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells, each with a placement if it can have one, and with its number of processors.

    A machine has its processors to itself, but several machines at once share all of them. A level that the user did
    not ask for is not part of a cell's id. The host gets as many processors as the guests it is compared with: of those
    whose number was set the fewest, else one; without guests it has all of its own.
    """
    placed = []
    for cell in cells:
        if NAME in cell.factors or _can_be_placed(cell):
            # Several machines at once would share the processors of one.
            usual = FREE if registry.has_several_machines(cell) else PINNED
            cell = replace(cell, factors={**cell.factors, NAME: cell.factors.get(NAME, usual)})  # noqa: PLW2901
        placed.append(cell)
    result = []
    for cell in placed:
        if NAME in cell.factors:
            result.append(replace(cell, processors=_choose_processors(cell, placed)))
        else:
            result.append(cell)
    return result


def _can_be_placed(cell: Cell) -> bool:
    # guestmark cannot assign the processors of another machine.
    if cell.platform.is_elsewhere:
        return False
    kind = registry.workload_kind(cell.workload.name)
    return kind.has_factor(cell.workload, NAME, cell.platform)


def _choose_processors(cell: Cell, cells: Sequence[Cell]) -> int:
    if cell.platform.is_guest:
        return cell.platform.count_processors(cell.levels)
    guests = [other for other in cells if other.platform.is_guest and other.compares_with(cell)]
    if not guests:
        return 0
    numbers = [other.platform.count_processors(other.levels) for other in guests if _SMP in other.factors]
    return min(numbers, default=1)


def note_unequal_processors(cells: Sequence[Cell]) -> list[str]:
    """Return remarks about compared cells whose machines have different numbers of processors."""
    remarks = []
    for baseline in (cell for cell in cells if cell.baseline):
        group = []
        for cell in cells:
            # Machines of a crowd share all processors, so that their number is not comparable.
            if (
                cell.null_of is None
                and not registry.has_several_machines(cell)
                and cell.compares_with(baseline)
            ):
                group.append(cell)
        by_number: dict[int, list[str]] = {}
        for cell in group:
            if number := _count_processors(cell):
                by_number.setdefault(number, []).append(cell.id)
        if len(by_number) > 1:
            said = "; ".join(
                f"{number} in {_name_cells(ids, group)}" for number, ids in sorted(by_number.items())
            )
            remarks.append(f"the machines that are compared have different numbers of processors: {said}")
    return remarks


def _name_cells(ids: Sequence[str], group: Sequence[Cell]) -> str:
    if len(ids) > _MANY and 2 * len(ids) > len(group):
        return "all others"
    return ", ".join(ids)


def _count_processors(cell: Cell) -> int:
    """Return how many processors a cell's machine has; 0 if that is not known in advance."""
    if cell.platform.is_guest:
        return cell.platform.count_processors(cell.levels)
    if cell.factors.get(NAME) == PINNED and cell.processors:
        return cell.processors
    if cell.platform.is_this_host:
        return cell.platform.count_processors(cell.levels)
    return 0

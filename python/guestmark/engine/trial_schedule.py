"""The order of trials in a block, and the numbers of iterations and warm-up runs of each.

Everything depends only on the plan, the seed and the trials so far, so a resumed run continues as it would have.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from guestmark.core.model import Cell, Plan, Trial, TrialStatus, boots_any_machine
from guestmark.stats import stopping
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.stats.repetition import (
    MAX_ITERATIONS,
    MEASURING,
    MEASURING_TIMED,
    Pilot,
    choose_iterations,
    count_iterations_without_boot,
)
from guestmark.stats.slow_run_power import find_cheapest_iterations

# Iterations of the first trials, from which the number for all later ones is chosen.
_PILOT_ITERATIONS = 1
# A new random order starts after this many blocks.
_CHAIN_BLOCKS = 16
_LONGEST_BLOCK_S = 60.0  # of a run that looks for slow runs


def list_block_trials(trials: Iterable[Trial], block: int) -> list[Trial]:
    """Return the trials of one block."""
    return [trial for trial in trials if trial.block == block]


def find_last_block(trials: Iterable[Trial]) -> int:
    """Return the number of the last block that was begun; -1 if there is none."""
    return max((trial.block for trial in trials), default=-1)


def sum_durations(trials: Iterable[Trial]) -> float:
    """Return the seconds that these trials took together."""
    return sum(trial.duration_s for trial in trials)


def order_cells(
    seed: int,
    block: int,
    cells: Sequence[Cell],
    *,
    chained: bool = True,
    groups: Sequence[Sequence[Cell]] = (),
) -> list[Cell]:
    """Return the cells in the random order of `block`, which begins with the cell that ended the block before it.

    So a cell runs as often after itself as after each other one, and what a cell leaves behind cancels in comparisons
    (serially balanced sequences: Finney and Outhwaite, J. R. Stat. Soc. B 18, 1956). Two cells run as A B B A; a new
    random order starts every `_CHAIN_BLOCKS` blocks.

    With `chained=False` each block has an independent order. That is for blocks measured at the same time: none of
    them comes after another, and alternating orders would coincide with the machines that take turns.

    Cells of one of the `groups`, which together hold every cell, run one after another: the groups are in random order,
    and so are the cells in each.
    """
    first = block - block % _CHAIN_BLOCKS if chained else block
    units: Sequence[Sequence[Cell]] = groups or [(cell,) for cell in cells]
    ordered: list[Cell] = []
    for number in _make_chained_orders(str(seed), first, len(units))[block - first]:
        unit = units[number]
        if len(unit) == 1:
            ordered += unit
            continue
        inside = _make_chained_orders(f"{seed}:{unit[0].id}", first, len(unit))[block - first]
        ordered += [unit[index] for index in inside]
    return ordered


@functools.lru_cache(maxsize=256)
def _make_chained_orders(seed: str, first: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the orders of `_CHAIN_BLOCKS` blocks, starting with `first`, as indices of `count` cells."""
    orders: list[tuple[int, ...]] = []
    order: list[int] = []
    for block in range(first, first + _CHAIN_BLOCKS):
        others = [number for number in range(count) if not order or number != order[-1]]
        # Seeded by the block's own number, so that a resumed run need not replay the blocks before.
        random.Random(f"{seed}:{block}").shuffle(others)
        order = order[-1:] + others
        orders.append(tuple(order))
    return tuple(orders)


def find_missing_trials(
    seed: int,
    block: int,
    cells: Sequence[Cell],
    done: Mapping[tuple[int, str], Trial],
    *,
    chained: bool = True,
    groups: Sequence[Sequence[Cell]] = (),
) -> Iterator[tuple[int, Cell]]:
    """Yield position and cell of each trial of `block` that has not ended yet, in the order of `order_cells`."""
    for position, cell in enumerate(order_cells(seed, block, cells, chained=chained, groups=groups)):
        if (block, cell.id) not in done:
            yield position, cell


def count_iterations(plan: Plan, cell: Cell, block: int, trials: Sequence[Trial]) -> int:
    """Return how many iterations the trial of `cell` in `block` holds, given the trials so far.

    Trials of compared cells hold the same number, chosen from their pilots: their trials in the first block.
    """
    policy = plan.policy
    fixed = plan.context.iterations.get(cell.id) if policy.iterations is None else policy.iterations
    if fixed is not None:
        return fixed
    peers = {other.id for other in plan.cells if other.compares_with(cell)}
    earlier = []
    for trial in trials:
        if trial.block < block and trial.cell_id in peers and trial.status is TrialStatus.OK:
            earlier.append(trial)
    if not earlier:
        return _PILOT_ITERATIONS
    if any(not trial.run_s for trial in earlier):
        return _count_iterations_of_version_0_1(cell, earlier)
    first = min(trial.block for trial in earlier)
    pilots = list_block_trials(earlier, first)
    boot = boots_any_machine(other for other in plan.cells if other.id in peers)
    if policy.find is not None:
        return _count_to_find_slow_runs(plan, pilots, boot=boot)
    return _count_within_time(plan, pilots, list_block_trials(trials, first), boot=boot)


def _count_within_time(plan: Plan, pilots: Sequence[Trial], block: Sequence[Trial], *, boot: bool) -> int:
    """Return the iterations that balance start and measuring, as far as the plan has time for them.

    `block` are all trials of the pilots' block: a budget is divided as that block's time was.
    """
    policy = plan.policy
    timed = policy.enough_s is not None
    chosen = _count_from_pilots(pilots, policy.warmup, plan.context.within, boot=boot, timed=timed)
    if plan.context.budget_s is not None:
        block_s = sum(max(trial.duration_s, 1e-6) for trial in block)
        share = sum_durations(pilots) / block_s
        room_s = plan.context.budget_s * _MEASURING_SHARE * share / MIN_BLOCKS
        chosen = min(chosen, _count_in_block(pilots, room_s, policy.warmup if boot else 0))
    if policy.enough_s is None:
        return chosen
    return min(chosen, _count_in_time(pilots, policy.enough_s, policy.min_blocks))


def count_iterations_by_cell(
    plan: Plan, cells: Iterable[Cell], block: int, trials: Sequence[Trial]
) -> dict[str, int]:
    """Return `count_iterations` for each of the cells, by id."""
    counts = {}
    for cell in cells:
        counts[cell.id] = count_iterations(plan, cell, block, trials)
    return counts


def _count_from_pilots(
    pilots: Sequence[Trial], warmup: int, within: float, *, boot: bool, timed: bool
) -> int:
    """Return the iterations that balance the time of a machine's start against the time of measuring."""
    costs = {trial.cell_id: Pilot(_compute_start_s(trial), trial.run_s[-1]) for trial in pilots}
    if boot:
        return choose_iterations(costs, warmup, within=within)
    # Work between two trials, such as storing them, counts as harness as well.
    between_s = _find_shortest_pause(pilots)
    costs = {name: replace(pilot, start_s=pilot.start_s + between_s) for name, pilot in costs.items()}
    return count_iterations_without_boot(costs.values(), measuring=MEASURING_TIMED if timed else MEASURING)


# The share of a budget for the blocks that an answer needs; the rest is for the start, proofs and slower blocks.
_MEASURING_SHARE = 0.7
# A longer pause between two trials is not their harness: the run was interrupted, or a clock was set.
_LONGEST_PAUSE_S = 0.1


def _find_shortest_pause(trials: Sequence[Trial]) -> float:
    """Return the fewest seconds from the end of a trial to the beginning of the next one; 0 if none is known."""
    ordered = sorted(trials, key=lambda trial: trial.order)
    pauses = []
    for one, other in itertools.pairwise(ordered):
        pause = other.started_at - one.started_at - one.duration_s
        if 0 < pause <= _LONGEST_PAUSE_S:
            pauses.append(pause)
    return min(pauses, default=0.0)


def _count_to_find_slow_runs(plan: Plan, pilots: Sequence[Trial], *, boot: bool) -> int:
    """Return the iterations that find the slow runs of `policy.find` soonest, in blocks of a minute at most."""
    rare = plan.policy.find
    assert rare is not None
    iteration_s = max(_sum_last_runs(pilots), 1e-6)
    start_s = sum(map(_compute_start_s, pilots))
    if boot:
        start_s += plan.policy.warmup * iteration_s
    most = max(1, min(MAX_ITERATIONS, int((_LONGEST_BLOCK_S - start_s) / iteration_s)))
    return find_cheapest_iterations(
        rare, stopping.count_compared_cells(plan), most, lambda number: start_s + number * iteration_s
    )


def _count_in_block(pilots: Sequence[Trial], room_s: float, warmup: int) -> int:
    """Return how many iterations of each of these cells fit into `room_s`, beside starts and warm-ups; at least one."""
    iteration_s = max(_sum_last_runs(pilots), 1e-6)
    start_s = sum(map(_compute_start_s, pilots))
    return max(1, int((room_s - start_s) / iteration_s) - warmup)


def _count_in_time(pilots: Sequence[Trial], enough_s: float, blocks: int) -> int:
    """Return how many iterations let the fewest `blocks` end within `enough_s`; at least one."""
    block_s = max(_sum_last_runs(pilots), 1e-6)
    return max(1, int(enough_s / (blocks * block_s)))


def _compute_start_s(trial: Trial) -> float:
    """Return the seconds that the trial took besides its runs: the start of its machine, above all."""
    return max(trial.duration_s - sum(trial.run_s), 0.0)


def _sum_last_runs(pilots: Sequence[Trial]) -> float:
    """Return the seconds of the last run of each trial, together."""
    return sum(trial.run_s[-1] for trial in pilots)


def _count_iterations_of_version_0_1(cell: Cell, earlier: Sequence[Trial]) -> int:
    """Return the number of iterations of the cell's earlier trials.

    In version 0.1 every cell chose its own number. Such runs are completed as they were begun, as trials of another
    length could not be compared.
    """
    for trial in earlier:
        if trial.cell_id == cell.id and trial.measurements:
            return len(trial.measurements[0].iterations)
    return _PILOT_ITERATIONS


def count_warmups(plan: Plan, cell: Cell, trials: Sequence[Trial], warm: Collection[str] = ()) -> int:
    """Return how many warm-up runs the next trial of `cell` has, given the trials on this machine.

    A freshly booted machine is cold each time. If nothing boots, caches outlive a trial, so a cell is warmed up
    once, before its first measured run. Cells in `warm` have been measured here in trials besides these.
    """
    if boots_any_machine(other for other in plan.cells if other.compares_with(cell)):
        return plan.policy.warmup
    if cell.id in warm:
        return 0
    for trial in trials:
        if trial.cell_id == cell.id and trial.status is TrialStatus.OK:
            return 0
    return plan.policy.warmup

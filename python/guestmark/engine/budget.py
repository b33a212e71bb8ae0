"""`--for`: fits a plan into some minutes of wall time, such that the questions asked get answers.

First sizes shrink (`choose_scale`), then blocks become as few as answer large effects (`_FEW`), then parts of
questions are left out, the last ones first, those with a level that the user named at the very end (`spend`). The first
blocks show what a block really takes: then cells are left out or come back (`refit`). A cell whose questions are
answered rests, so that those whose questions are open get the time (`open_cells`). How long a plan takes is estimated
from earlier runs in the ledger, else from the plan's own figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from guestmark.core.errors import LedgerError
from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import counted, format_duration
from guestmark.core.workload_kind import adapts
from guestmark.engine import proofs
from guestmark.engine.question_status import COMPARING, AskedPair, Part, parts
from guestmark.stats import stopping

if TYPE_CHECKING:
    from guestmark.core.tuning import Settings
    from guestmark.ledger.store import Ledger


RUNS = 5  # how many of the newest runs to use
PROOF_S = 10.0  # of one kind of disk, where no earlier run says better


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a block and of its longest trial, how many blocks the plan asks for, and how many cells were
    `measured` earlier here, `declared` by the plan, or are `unknown` and in no sum.

    Without a fixed number of blocks there may be up to `max_blocks`, and `time_limit_s` ends the run.
    """

    block_s: float
    longest_s: float
    blocks: int
    exactly: bool  # whether the number of blocks is fixed
    measured: int
    declared: int
    unknown: int
    max_blocks: int
    time_limit_s: float
    scale: float = 1.0  # of the plan; its declared costs are for scale 1

    @property
    def blocks_in_time(self) -> int:
        """How many blocks there are at most: none begins that would end past the limit by more than one trial."""
        if self.exactly or not self.block_s:
            return self.blocks if self.exactly else self.max_blocks
        return min(self.max_blocks, max(1, math.floor((self.time_limit_s + self.longest_s) / self.block_s)))

    @property
    def seconds(self) -> float:
        """Of the whole run, at least."""
        return self.block_s * min(self.blocks, self.blocks_in_time)

    @property
    def expectation(self) -> str:
        """How long it takes and for how many blocks, for people."""
        limit, blocks = format_duration(self.time_limit_s), counted(self.blocks, "block")
        if not self.block_s:
            return (
                f"no estimate yet for {blocks}" if self.exactly else f"no estimate yet; stops after {limit}"
            )
        least, most = format_duration(self.seconds), format_duration(self.block_s * self.blocks_in_time)
        if self.exactly:
            return f"{least} for {blocks}"
        if self.blocks_in_time < self.blocks:
            return f"{least} for {self.blocks_in_time} of {blocks}: its time limit of {limit} ends it then"
        if self.unknown:
            return f"{least} or more for {blocks} or more; stops after {limit}"
        if self.blocks_in_time == self.blocks:
            return f"{least} for {blocks}"
        return f"{least} to {most} for {self.blocks} to {self.blocks_in_time} blocks"

    @property
    def origin(self) -> str:
        """Where the figures come from, for people."""
        parts = []
        if self.measured:
            parts.append("measured in earlier runs here")
        if self.declared:
            how = "as declared by the plan" + (" for its full size" if self.scale != 1 else "")
            parts.append(f"{self.declared} cells {how}" if self.measured else how)
        if self.unknown:
            parts.append(f"{self.unknown} cells unknown and not counted")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of a trial, by cell, of those that are known; `measured` of them in earlier runs here.

    `proof_s` is what cutting the power of one kind of disk takes.
    """

    trial_s: Mapping[str, float]
    measured: int
    proof_s: float

    def of(self, cell: Cell) -> float:
        """Of a cell; of one of which nothing is known what the others take on average."""
        known = self.trial_s.get(cell.id)
        return known if known is not None else sum(self.trial_s.values()) / max(len(self.trial_s), 1)


def prices(plan: Plan, ledger: Ledger | None) -> Prices:
    """What is known of `plan`'s trials here: from runs of that plan, else as it declares.

    A trial takes `start` seconds whatever the plan's scale is, and the rest in proportion to it.
    """
    scale = plan.context.scale
    earlier, proof_s = ({}, None) if ledger is None else _earlier(plan, ledger)
    found: dict[str, float] = {}
    measured = 0
    for cell in plan.cells:
        start = _declared(plan.context.start, cell)
        runs = earlier.get(cell.null_of or cell.id, {})
        declared = _declared(plan.context.cost, cell)
        if runs:
            nearest = min(runs, key=lambda size: abs(math.log(size / scale)))
            found[cell.id] = _scaled(runs[nearest], nearest, scale, start)
            measured += 1
        elif declared is not None:
            found[cell.id] = _scaled(declared, 1.0, scale, start)
    return Prices(found, measured, PROOF_S if proof_s is None else proof_s)


def _scaled(seconds: float, at: float, scale: float, start: float | None) -> float:
    """What a trial takes at one scale, from what it took at another; the same where nothing is known of its start."""
    if start is None or at == scale:
        return seconds
    fixed = min(start, seconds)
    return fixed + (seconds - fixed) * scale / at


def _declared(found: Mapping[str, float], cell: Cell) -> float | None:
    """Seconds that the plan declares for the cell's platform, or for the innermost part of it."""
    return found.get(str(cell.platform), found.get(cell.platform.inner.kind))


def estimate(plan: Plan, ledger: Ledger | None) -> Estimate:
    """The time `plan` takes here; see `prices`."""
    known = prices(plan, ledger)
    policy = plan.policy
    return Estimate(
        sum(known.trial_s.values()),
        max(known.trial_s.values(), default=0.0),
        policy.blocks or policy.min_blocks,
        exactly=policy.blocks is not None,
        measured=known.measured,
        declared=len(known.trial_s) - known.measured,
        unknown=len(plan.cells) - len(known.trial_s),
        max_blocks=policy.max_blocks,
        time_limit_s=policy.time_limit_s,
        scale=plan.context.scale if not plan.context.start else 1.0,
    )


def _earlier(plan: Plan, ledger: Ledger) -> tuple[dict[str, dict[float, float]], float | None]:
    """Mean seconds of a trial, by cell id and scale, in the newest runs of a plan of that name; and of proofs."""
    durations: dict[str, dict[float, list[float]]] = {}
    proofs: list[float] = []
    mine = [run for run in ledger.runs() if run.name == plan.name and run.trials]
    for overview in mine[-RUNS:]:
        try:
            stored = ledger.load_run(overview.id)
        except LedgerError:  # one run is damaged: others are not affected
            continue
        scale = stored.plan.context.scale
        proofs += stored.plan.context.proofs_took_s
        same = {cell.id for cell in stored.plan.cells} & {cell.id for cell in plan.cells}
        for trial in stored.trials:
            if trial.status is TrialStatus.OK and trial.cell_id in same:
                durations.setdefault(trial.cell_id, {}).setdefault(scale, []).append(trial.duration_s)
    means = {
        name: {scale: sum(series) / len(series) for scale, series in by_scale.items()}
        for name, by_scale in durations.items()
    }
    return means, sum(proofs) / len(proofs) if proofs else None


_CLOSING_S = 2.0  # the report, and the end of the process
_SET_UP_S = 3.0  # before a run begins: imports, and a look at what can be used
_SCALES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_FEW = stopping.FEW  # blocks that answer large effects; what they leave open then gets the time of the others
_SPARE = 2  # blocks more than the fewest that a scale should leave room for
_DEAREST = 0.5  # of the cells of a part may be left out, the dearest first, so that the others are compared
_TRIAL_SHARE = 0.25  # of a budget that one trial may take
_RACING_BLOCKS = 3  # that a cell is in on average, until it is dropped
_PROVING = 0.5  # of a budget, after which no proof is begun
_LATER = 0.75  # of a cell's first trial, which also makes what later ones find
_CONFIRMED = 3  # finalists that a race usually has


@dataclass(frozen=True, slots=True)
class Spending:
    """What a run takes: its cells, seconds of a block, of the longest trial and of all proofs, and how many blocks."""

    cells: int
    block_s: float
    longest_s: float
    proofs_s: float
    fewest: int
    most: int
    unknown: int  # cells of which nothing is known, and which are in no sum
    scale: float = 1.0

    @property
    def sentence(self) -> str:
        """In one line, for people."""
        if not self.block_s and not self.proofs_s:
            return ""
        least = format_duration(_round(self.proofs_s + self.block_s * self.fewest))
        blocks = counted(self.fewest, "block")
        size = f" at {self.scale:g} of the plan's sizes" if self.scale != 1 else ""
        said = f"{counted(self.cells, 'cell')}{size}, about {least} for {blocks}"
        if self.most > self.fewest:
            most = format_duration(_round(self.proofs_s + self.block_s * self.most))
            said += f", at most {most} for {self.most}"
        if self.proofs_s:
            said += f", of it about {format_duration(_round(self.proofs_s))} for proofs"
        return said + (f"; {counted(self.unknown, 'cell')} unknown and not counted" if self.unknown else "")


def _round(seconds: float) -> float:
    """As roughly as it is known."""
    step = 1.0 if seconds < 20 else 10.0 if seconds < 600 else 60.0
    return round(seconds / step) * step


def spending(plan: Plan, cells: Sequence[Cell], known: Prices, used_s: float = 0.0) -> Spending:
    """What these cells take by what is known of them, after `used_s` of their time."""
    costs = [known.trial_s[cell.id] for cell in cells if cell.id in known.trial_s]
    block_s, longest_s = sum(costs), max(costs, default=0.0)
    proofs_s = _proofs_s(plan, cells, known)
    policy = plan.policy
    if (racing := plan.context.tune) is not None:  # most leave it early
        policy = replace(policy, min_blocks=_RACING_BLOCKS, max_blocks=racing.max_blocks + racing.confirm)
    fewest = policy.blocks or policy.min_blocks
    most = fewest
    if policy.blocks is None and block_s:
        beyond = (
            0.0 if plan.context.budget_s is not None else longest_s
        )  # one trial of the last block may end past the limit
        room = (policy.time_limit_s + beyond - proofs_s - used_s) / block_s
        most = min(policy.max_blocks, max(1, math.floor(room)))
    unknown, scale = len(cells) - len(costs), plan.context.scale
    return Spending(len(cells), block_s, longest_s, proofs_s, min(fewest, most), most, unknown, scale)


def _proofs_s(plan: Plan, cells: Iterable[Cell], known: Prices) -> float:
    if not plan.context.prove:
        return 0.0
    return known.proof_s * len({kind for cell in cells if (kind := proofs.kind_of(cell)) is not None})


def choose_scale(plan_at: Callable[[float], Plan], ledger: Ledger | None, budget_s: float) -> Plan:
    """The plan at the largest scale at which all of it fits into the budget, else at the smallest."""
    plan = plan_at(1.0)
    if plan.context.tune is not None or plan_at(_SCALES[-1]).cells == plan.cells:
        return plan  # a race has fewer cells rather than smaller ones, and other plans may mark no sizes
    for scale in _SCALES:
        plan = plan if scale == 1.0 else plan_at(scale)
        known = prices(plan, ledger)
        blocks = _fewest(plan) + (_SPARE if plan.policy.blocks is None else 0)
        needs = _needs(plan, plan.cells, known, blocks) + _SET_UP_S + _CLOSING_S
        if len(known.trial_s) == len(plan.cells) and needs <= budget_s:
            return plan
    return plan


def _fewest(plan: Plan) -> int:
    """How many blocks answers take: as many as tell a difference from chance, where anything is compared."""
    from guestmark.stats.paired import MIN_BLOCKS

    if plan.questions and not any(question.wants in COMPARING for question in plan.questions):
        return plan.policy.blocks or 1
    return MIN_BLOCKS


def _needs(plan: Plan, cells: Sequence[Cell], known: Prices, blocks: int) -> float:
    return _proofs_s(plan, cells, known) + blocks * sum(known.of(cell) for cell in cells)


def spend(
    plan: Plan, able: Sequence[Cell], known: Prices, budget_s: float, used_s: float
) -> tuple[Plan, list[str]]:
    """The plan with what fits into `budget_s`, of which `used_s` are over; remarks on what is left out.

    `able` are the cells that can be measured here. A budget in which not even one part of a question fits gets the
    cheapest one.
    """
    left_s = budget_s - used_s - _CLOSING_S
    if all(map(adapts, able)):
        return replace(plan, policy=replace(plan.policy, time_limit_s=max(budget_s - _CLOSING_S, 1.0))), []
    enough = _fewest(plan)
    originals = [cell for cell in able if cell.null_of is None]
    fewest = enough if _needs(plan, originals, known, enough) <= left_s else min(enough, _FEW)
    racing = plan.context.tune
    if racing is not None:
        fewest = enough
        kept = race(plan, able, known, racing, left_s)
    else:
        kept = _fitting(plan, able, left_s, lambda cells: _needs(plan, cells, known, fewest), known.of)
        if _needs(plan, kept, known, enough) <= left_s:
            fewest = enough
    ids = {cell.id for cell in kept}
    gone = [cell for cell in able if cell.id not in ids]
    policy = replace(
        plan.policy,
        blocks=plan.policy.blocks if enough < 2 else None,
        min_blocks=min(plan.policy.min_blocks, fewest),
        time_limit_s=max(budget_s - _CLOSING_S, 1.0),
        trial_limit_s=min(plan.policy.trial_limit_s, max(_TRIAL_SHARE * budget_s, 20.0)),
    )
    notes = []
    if left_out := [cell for cell in gone if cell.null_of is None]:
        notes.append(f"left out to keep within {format_duration(budget_s)}: {_named(left_out)}")
    notes += [
        f"not asked, to keep within {format_duration(budget_s)}: {question.ask}"
        for question in plan.questions
        if not parts(question, kept)
    ]
    needs = _needs(plan, kept, known, fewest)
    if needs > left_s and racing is None:
        takes_s = _round(needs + used_s + _CLOSING_S)
        notes.append(
            f"{format_duration(budget_s)} is short for {counted(fewest, 'block')} of even these cells: --for "
            f"{math.ceil(takes_s)}s would do"
        )
    fitted = replace(
        plan, policy=policy, context=replace(plan.context, no_time=tuple(cell.id for cell in gone))
    )
    return (measured_alone(fitted, ()) if racing is not None else fitted), notes


def refit(  # noqa: PLR0917 (what is still measured follows from all of it)
    plan: Plan,
    alive: Sequence[Cell],
    trials: Sequence[Trial],
    used_s: float,
    resting: Collection[str],
    known: Callable[[], Prices],
) -> tuple[Cell, ...]:
    """The cells of `alive` for which there is time, by what blocks took so far, once at least one is complete.

    Until there are `_FEW` blocks there must be time for these, then for as many as every answer takes, but for cells
    that are `resting`. What was left out comes back where there is time for `_FEW` blocks of it, by what was `known`
    of it before the run.
    """
    budget_s = plan.context.budget_s
    gone = set(plan.context.no_time)
    measured = [cell for cell in alive if cell.id not in gone]
    blocks = {cell.id: len({trial.block for trial in trials if trial.cell_id == cell.id}) for cell in alive}
    if budget_s is None or not all(blocks[cell.id] for cell in measured):
        return tuple(measured)
    took: dict[str, list[float]] = {}
    for trial in trials:
        took.setdefault(trial.cell_id, []).append(trial.duration_s)
    cost = {name: min(series) * (_LATER if len(series) == 1 else 1.0) for name, series in took.items()}
    price = _beside(known() if gone else Prices({}, 0, PROOF_S), cost, alive)
    enough = _fewest(plan)
    least = min((blocks[cell.id] for cell in measured if cell.id not in resting), default=enough)
    goal = enough if least >= _FEW else min(enough, _FEW)

    def needs(cells: Sequence[Cell]) -> float:
        """Seconds until each of these has so many blocks; those that rest are measured no more."""
        due = [(cell, goal - blocks[cell.id]) for cell in cells if cell.id not in resting]
        return sum(left * price(cell) for cell, left in due if left > 0)

    left_s = budget_s - used_s - _CLOSING_S
    if needs(measured) > left_s:
        return tuple(_fitting(plan, measured, left_s, needs, price))
    return tuple(_fitting(plan, alive, left_s, needs, price, chosen=measured)) if gone else tuple(measured)


def _beside(known: Prices, took: Mapping[str, float], cells: Iterable[Cell]) -> Callable[[Cell], float]:
    """What a trial of a cell takes, from what trials of this run `took`.

    One that was not measured yet costs what was `known` before, in proportion to what others cost beside that; without
    limit where nothing was.
    """
    before = [
        (took[cell.id], known.trial_s[cell.id])
        for cell in cells
        if cell.id in took and cell.id in known.trial_s
    ]
    ratio = sum(now for now, _ in before) / max(sum(then for _, then in before), 1e-9) if before else 1.0

    def of(cell: Cell) -> float:
        own = took.get(cell.id) or took.get(cell.null_of or "")
        return own if own is not None else ratio * known.trial_s.get(cell.id, math.inf)

    return of


def open_cells(plan: Plan, pairs: Sequence[AskedPair] | None, alive: Iterable[Cell]) -> set[str]:
    """The ids of the cells that an open question is about; all of them while it is not known what is asked.

    Of a null copy too, as long as the cell is measured that it copies.
    """
    cells = list(alive)
    if plan.context.budget_s is None or pairs is None:
        return {cell.id for cell in cells}
    known = {name for pair in pairs for name in (pair.first, pair.second)}
    wanted = {
        name
        for pair in pairs
        if not stopping.is_settled(pair.comparison, plan.policy.precision)
        for name in (pair.first, pair.second)
    }
    asked = {cell.id for question in plan.questions for part in parts(question, cells) for cell in part.cells}
    unknown = asked - known  # nothing is known of these yet
    return {cell.id for cell in cells if (cell.null_of or cell.id) in wanted | unknown}


def proofs_end(plan: Plan, used_s: float) -> bool:
    """Whether proofs have had their share of the budget, so that there is time to measure what is proven."""
    budget_s = plan.context.budget_s
    return budget_s is not None and used_s > _PROVING * budget_s


def over(plan: Plan, blocks: int, trials: Sequence[Trial], used_s: float) -> bool:
    """Whether there is no room for another whole block, once there are as many as tell anything."""
    budget_s = plan.context.budget_s
    if budget_s is None or blocks < min(plan.policy.min_blocks, _fewest(plan)):
        return False
    return bool(used_s + stopping.block_cost(trials) > budget_s - _CLOSING_S)


def leaving_out(plan: Plan, gone: Iterable[Cell]) -> Plan:
    """The plan with just these cells left out for want of time."""
    return replace(plan, context=replace(plan.context, no_time=tuple(sorted(cell.id for cell in gone))))


def still_measured(plan: Plan, cells: Iterable[Cell]) -> list[Cell]:
    """Those of the cells for which there is time."""
    gone = set(plan.context.no_time)
    return [cell for cell in cells if cell.id not in gone]


def measured_alone(plan: Plan, trials: Iterable[Trial]) -> Plan:
    """The plan without the cells for which there was no time at all, and without the questions that nobody answers."""
    tried = {trial.cell_id for trial in trials}
    gone = set(plan.context.no_time) - tried
    kept = still_measured(plan, plan.cells)
    return replace(
        plan,
        cells=tuple(cell for cell in plan.cells if cell.id not in gone),
        questions=tuple(question for question in plan.questions if parts(question, kept)),
    )


def _fitting(  # noqa: PLR0917 (what is chosen follows from all of it)
    plan: Plan,
    able: Sequence[Cell],
    left_s: float,
    needs: Callable[[Sequence[Cell]], float],
    cost: Callable[[Cell], float],
    chosen: Iterable[Cell] = (),
) -> list[Cell]:
    """Those of the cells that fit, beside those `chosen`: all of them, else part after part of the questions.

    Parts that hold a level which the user named come first, as far as it takes to have each of these; null copies last.
    """
    if needs(able) <= left_s:
        return list(able)
    taken = {cell.id: cell for cell in chosen}

    def with_more(more: Iterable[Cell]) -> dict[str, Cell]:
        wanted = {**taken, **{cell.id: cell for cell in more}}
        # What is compared with a baseline in a table needs it.
        bases = [
            cell
            for cell in able
            if cell.baseline and any(cell.compares_with(other) for other in wanted.values())
        ]
        return {**wanted, **{cell.id: cell for cell in bases}}

    def fits(more: Iterable[Cell]) -> bool:
        return needs(list(with_more(more).values())) <= left_s

    wanted = [part for question in plan.questions for part in parts(question, able)]
    if not wanted:
        wanted = [Part((cell,)) for cell in able if cell.null_of is None]
    for level in plan.context.named:
        if any(name in taken for name in level):
            continue
        of_level = [part for part in wanted if any(cell.id in level for cell in part.cells)]
        for part in sorted(of_level, key=lambda part: sum(map(cost, part.cells))):
            least = _cheapest(part, level, cost)
            if fits(least):
                taken = with_more(least)
                break
    for part in wanted:
        cells = sorted(part.cells, key=cost)
        least_many = max(min(2, len(cells)), math.ceil(_DEAREST * len(cells)))
        while len(cells) > least_many and not fits(cells):
            cells.pop()
        if fits(cells):
            taken = with_more(cells)
    if not taken:
        taken = with_more(min((part.cells for part in wanted), key=lambda cells: sum(map(cost, cells))))
    for copy in (cell for cell in able if cell.null_of in taken):
        if fits([copy]):
            taken = with_more([copy])
    return [cell for cell in able if cell.id in taken]


def _cheapest(part: Part, level: Collection[str], cost: Callable[[Cell], float]) -> list[Cell]:
    """The two cheapest cells of a part that can be compared, one of which has the level."""
    with_level = min((cell for cell in part.cells if cell.id in level), key=cost)
    others = sorted((cell for cell in part.cells if cell is not with_level), key=cost)
    return [with_level, *others[:1]]


def _named(cells: Sequence[Cell]) -> str:
    shown = [cell.id for cell in cells[:6]]
    return ", ".join([*shown, *([f"{len(cells) - 6} more"] if len(cells) > 6 else [])])


def race(plan: Plan, able: Sequence[Cell], known: Prices, settings: Settings, left_s: float) -> list[Cell]:
    """The cells that can race in the time: each is proven and measured in some blocks, then the best are confirmed.

    Where that is not all, those that together show most of every level, as in screening.
    """
    from guestmark.stats.tuning.race import candidates_of
    from guestmark.stats.tuning.screen import choose_informative

    typical = sum(map(known.of, able)) / max(len(able), 1)
    proof = _proofs_s(plan, able, known) / max(len(able), 1)
    confirming = settings.confirm * min(settings.finalists, _CONFIRMED) * typical
    each = proof + _RACING_BLOCKS * typical
    number = max(2, math.floor((left_s - confirming) / each)) if each > 0 else len(able)
    if number >= len(able):
        return list(able)
    ids = set(choose_informative(candidates_of(able), number))
    return [cell for cell in able if cell.id in ids or cell.baseline]

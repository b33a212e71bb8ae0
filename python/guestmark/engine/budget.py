"""`--for`: a plan is fitted into some minutes of wall time, so that its questions get answers.

First sizes shrink (`choose_scale`), then blocks are reduced to as few as show large effects (`_FEWEST_BLOCKS`), then
parts of questions are left out: the last ones first, one of each question and those with a level that the user named
last (`fit_to_budget`). The first blocks show how long a block really takes: then cells are left out or come back
(`refit_cells`). A cell whose questions are answered rests, so that cells with open questions get the time
(`find_open_cells`).
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from guestmark.core.errors import UsageError
from guestmark.core.gate import Gate, read_plan_gates
from guestmark.core.model import Cell, Plan, QuestionKind, Trial, TrialStatus
from guestmark.core.tuning import Settings
from guestmark.core.units import format_count, format_duration, list_first_names
from guestmark.core.workload_kind import adapts_to_time
from guestmark.engine import proofs
from guestmark.engine.question_status import (
    COMPARING_QUESTIONS,
    AskedPair,
    QuestionPart,
    list_original_ids,
    list_originals,
    split_question,
)
from guestmark.engine.time_estimate import PROOF_S, TrialCosts, read_trial_costs
from guestmark.ledger.store import Ledger
from guestmark.stats import stopping
from guestmark.stats.analysis import Analysis
from guestmark.stats.paired import MIN_BLOCKS
from guestmark.stats.published import Repetition, group_published_ratios
from guestmark.stats.stopping import is_given_up
from guestmark.stats.tuning.race import list_candidates
from guestmark.stats.tuning.screen import choose_informative

# Seconds for the report and the end of the process.
_REPORT_S = 2.0
# Seconds before a run begins: imports, and the check of platforms.
_START_S = 3.0
SCALES = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
# This many blocks show large effects; questions that they leave open then get the time of the others.
_FEWEST_BLOCKS = stopping.FEWEST_IF_SETTLED
# A scale should leave room for this many blocks above the minimum.
_SPARE_BLOCKS = 2
# A smaller scale that saves no more than this share of the time is not worth its shorter measurements.
_LITTLE_SAVED = 0.2
# This share of a part's cells may be left out, the most expensive first, so that the others can be compared.
_DROPPABLE_SHARE = 0.5
# One trial may take this share of a budget, and half of a small one, as a guest that starts slowly may need.
_LONGEST_TRIAL_SHARE, _SLOW_START_S = 0.25, 60.0
# A limit is at least so many times what the longest trial is known to take.
_LIMIT_OF_KNOWN = 1.5
# A racing cell takes part in this many blocks on average, until it is dropped.
_RACING_BLOCKS = 3
# No proof is begun after this share of a budget.
_PROVING_SHARE = 0.5
# Later trials take this share of a cell's first one, which also creates files that they reuse.
_LATER_TRIAL_SHARE = 0.9
_USUAL_FINALISTS = 3  # finalists that a race usually has
# A trial that is expected to take more than so many times what is left is not begun; expectations are rough.
_WELL_BEYOND = 1.5


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of a run: its cells, its blocks, and the seconds of a block, of the longest trial and of all proofs.

    The number of cells of unknown cost is `unknown`; no sum includes them.
    """

    cells: int
    block_s: float
    longest_s: float
    proofs_s: float
    fewest: int
    most: int
    unknown: int
    scale: float = 1.0

    @property
    def sentence(self) -> str:
        """The cost in one line, for people; empty if nothing is known."""
        if not self.block_s and not self.proofs_s:
            return ""
        least = format_duration(_round_to_precision(self.proofs_s + self.block_s * self.fewest))
        blocks = format_count(self.fewest, "block")
        text = format_count(self.cells, "cell")
        if self.scale != 1:
            text += f" at {self.scale:g} of the plan's sizes"
        text += f", about {least} for {blocks}"
        if self.most > self.fewest:
            most = format_duration(_round_to_precision(self.proofs_s + self.block_s * self.most))
            text += f", at most {most} for {self.most}"
        if self.proofs_s:
            text += f", including about {format_duration(_round_to_precision(self.proofs_s))} for proofs"
        if self.unknown:
            text += f"; {format_count(self.unknown, 'cell')} of unknown cost not counted"
        return text


def _round_to_precision(seconds: float) -> float:
    """Return the seconds, rounded to the precision of an estimate: 1 s, 10 s, or a minute."""
    step = _choose_step(seconds)
    return round(seconds / step) * step


def _round_up(seconds: float) -> float:
    """Return the seconds, rounded up to the precision of an estimate, so that they suffice."""
    step = _choose_step(seconds)
    return math.ceil(seconds / step) * step


def _choose_step(seconds: float) -> float:
    if seconds >= 600:
        return 60.0
    if seconds >= 20:
        return 10.0
    return 1.0


def estimate_run_cost(plan: Plan, cells: Sequence[Cell], costs: TrialCosts, used_s: float = 0.0) -> RunCost:
    """Return the estimated cost of a run of these cells, of which `used_s` seconds are used already."""
    known = [costs.trial_s[cell.id] for cell in cells if cell.id in costs.trial_s]
    block_s, longest_s = sum(known), max(known, default=0.0)
    proofs_s = _estimate_proofs_s(plan, cells, costs)
    policy = plan.policy
    # Most cells leave a race early.
    if (racing := plan.context.tune) is not None:
        policy = replace(policy, min_blocks=_RACING_BLOCKS, max_blocks=racing.max_blocks + racing.confirm)
    fewest = policy.blocks or policy.min_blocks
    most = fewest
    if policy.blocks is None and block_s:
        # Without a budget, one trial of the last block may end past the limit.
        beyond = 0.0 if plan.context.budget_s is not None else longest_s
        room = (policy.time_limit_s + beyond - proofs_s - used_s) / block_s
        most = min(policy.max_blocks, max(1, math.floor(room)))
    unknown, scale = len(cells) - len(known), plan.context.scale
    return RunCost(len(cells), block_s, longest_s, proofs_s, min(fewest, most), most, unknown, scale)


def _estimate_proofs_s(plan: Plan, cells: Iterable[Cell], costs: TrialCosts) -> float:
    if not plan.context.prove:
        return 0.0
    # Cells with the same kind of disk share a proof.
    kinds = set(map(proofs.find_proof_kind, cells)) - {None}
    return costs.proof_s * len(kinds)


def choose_scale(plan_at: Callable[[float], Plan], ledger: Ledger | None, budget_s: float) -> Plan:
    """Return the plan at the largest scale at which all of it fits into the budget, else at its smallest scale.

    It fits with blocks to spare, or without if a smaller scale would save little, as starting takes most of a trial.
    """
    plan_at = functools.cache(plan_at)
    plan = plan_at(1.0)
    # A race has fewer cells rather than smaller ones.
    if plan.context.tune is not None:
        return plan

    scales = list(SCALES)
    # Below some scale nothing shrinks any further; a plan may have no sizes that scale at all.
    while len(scales) > 1 and plan_at(scales[-2]).cells == plan_at(scales[-1]).cells:
        scales.pop()
    if len(scales) == 1:
        return plan
    smallest_s, _ = _estimate_scaled_s(plan_at(scales[-1]), ledger)
    for scale in scales:
        plan = plan_at(scale)
        fewest_s, with_spare_s = _estimate_scaled_s(plan, ledger)
        saves_little = smallest_s >= (1 - _LITTLE_SAVED) * fewest_s
        if with_spare_s <= budget_s or (saves_little and fewest_s <= budget_s):
            return plan
    return plan


def _estimate_scaled_s(plan: Plan, ledger: Ledger | None) -> tuple[float, float]:
    """Return the seconds of a command with the fewest blocks, and with blocks to spare; inf if no cost is known."""
    costs = read_trial_costs(plan, ledger)
    # A cell whose cost nobody knows is expected to cost what the others do.
    if not costs.trial_s:
        return math.inf, math.inf
    fewest = _count_fewest_blocks(plan)
    spare = _SPARE_BLOCKS if plan.policy.blocks is None else 0
    around_s = _START_S + _REPORT_S
    return (
        _estimate_needed_s(plan, plan.cells, costs, fewest) + around_s,
        _estimate_needed_s(plan, plan.cells, costs, fewest + spare) + around_s,
    )


def _count_fewest_blocks(plan: Plan) -> int:
    """Return how many blocks answers need: as many as tell a difference from chance, if anything is compared."""
    if not plan.questions:
        # A plan without questions that wants a single block compares nothing.
        return 1 if plan.policy.blocks == 1 else MIN_BLOCKS
    if any(question.wants in COMPARING_QUESTIONS for question in plan.questions):
        return MIN_BLOCKS
    return plan.policy.blocks or 1


def _estimate_needed_s(plan: Plan, cells: Sequence[Cell], costs: TrialCosts, blocks: int) -> float:
    """Return the seconds of all proofs and of `blocks` blocks."""
    return _estimate_proofs_s(plan, cells, costs) + blocks * sum(costs.estimate(cell) for cell in cells)


def fit_to_budget(
    plan: Plan, able: Sequence[Cell], costs: TrialCosts, budget_s: float, used_s: float
) -> tuple[Plan, list[str]]:
    """Return the plan reduced to fit into `budget_s`, of which `used_s` are used, and remarks on what is left out.

    `able` are the cells that can be measured here. If not even one part of a question fits, the plan gets the
    cheapest one. Raises `UsageError` if the plan consists of one trial that does not fit.
    """
    left_s = budget_s - used_s - _REPORT_S
    time_limit_s = max(budget_s - _REPORT_S, 1.0)
    if all(map(adapts_to_time, able)):
        return replace(plan, policy=replace(plan.policy, time_limit_s=time_limit_s)), []
    enough = _count_fewest_blocks(plan)
    fewest = enough
    racing = plan.context.tune
    if racing is not None:
        kept = choose_racing_cells(plan, able, costs, racing, left_s)
    else:
        if _estimate_needed_s(plan, list_originals(able), costs, enough) > left_s:
            fewest = min(enough, _FEWEST_BLOCKS)
        blocks = fewest
        kept = _BudgetFit(
            plan, able, left_s, lambda cells: _estimate_needed_s(plan, cells, costs, blocks), costs.estimate
        ).pick()
        # The time of cells that were left out may suffice for more blocks of the others.
        if _estimate_needed_s(plan, kept, costs, enough) <= left_s:
            fewest = enough
    gone = _exclude_cells(able, {cell.id for cell in kept})
    is_single_trial = enough == 1 and len(kept) == 1
    # No limit is closer than what the kept cells are known to take.
    known_s = _LIMIT_OF_KNOWN * max((costs.trial_s.get(cell.id, 0.0) for cell in kept), default=0.0)
    longest_s = left_s if is_single_trial else max(limit_trial(budget_s), min(known_s, left_s))
    policy = replace(
        plan.policy,
        blocks=plan.policy.blocks if enough < 2 else None,
        min_blocks=min(plan.policy.min_blocks, fewest),
        time_limit_s=time_limit_s,
        trial_limit_s=min(plan.policy.trial_limit_s, longest_s),
    )
    within = format_duration(budget_s)
    notes = _note_omissions(plan, gone, kept, within)
    needed_s = _estimate_needed_s(plan, kept, costs, fewest)
    if needed_s > left_s and racing is None:
        takes_s = _round_up(needed_s + used_s + _REPORT_S)
        if is_single_trial and needed_s > _WELL_BEYOND * left_s:
            # No part of a single trial answers anything.
            raise UsageError(
                f"{within} is too short for the only trial of {kept[0].id}",
                hint=f"use --for {math.ceil(takes_s)}s",
            )
        notes.append(
            f"{within} is too short even for {format_count(fewest, 'block')} of these cells: --for "
            f"{math.ceil(takes_s)}s would suffice"
        )
    context = replace(
        plan.context,
        no_time=tuple(cell.id for cell in gone),
        budget_limits_trials=longest_s < plan.policy.trial_limit_s,
    )
    fitted = replace(plan, policy=policy, context=context)
    if racing is not None:
        fitted = drop_unmeasured_cells(fitted, ())
    return fitted, notes


def _note_omissions(plan: Plan, gone: Iterable[Cell], kept: Sequence[Cell], within: str) -> list[str]:
    """Return remarks on the cells that are `gone`, and on the questions that `kept` ones cannot answer."""
    notes = []
    if names := list_original_ids(gone):
        notes.append(f"left out to stay within {within}: {list_first_names(names, 'cell')}")
    for question in plan.questions:
        if not split_question(question, kept):
            notes.append(f"not asked, to stay within {within}: {question.ask}")
    return notes


def limit_trial(budget_s: float) -> float:
    """Return the seconds after which a trial of a run with this budget fails."""
    return max(_LONGEST_TRIAL_SHARE * budget_s, min(budget_s / 2, _SLOW_START_S), 20.0)


def refit_cells(  # noqa: PLR0917 (the choice of cells depends on all of it)
    plan: Plan,
    alive: Sequence[Cell],
    trials: Sequence[Trial],
    used_s: float,
    resting: Collection[str],
    read_costs: Callable[[], TrialCosts],
) -> tuple[Cell, ...]:
    """Return the cells of `alive` for which there is time, judging by how long blocks took so far.

    Before one block is complete, the choice stays. Until there are `_FEWEST_BLOCKS` blocks there must be time for
    these, then for as many as every answer needs, except for cells that are `resting`. Cells that were left out come
    back if there is time for `_FEWEST_BLOCKS` blocks of them; `read_costs` returns their costs as known before the run.
    """
    budget_s = plan.context.budget_s
    gone = plan.context.no_time
    measured = select_planned_cells(plan, alive)
    durations: dict[str, list[float]] = {}
    blocks: dict[str, set[int]] = {cell.id: set() for cell in alive}
    for trial in trials:
        durations.setdefault(trial.cell_id, []).append(trial.duration_s)
        blocks.setdefault(trial.cell_id, set()).add(trial.block)
    if budget_s is None or not all(blocks[cell.id] for cell in measured):
        return tuple(measured)
    took = {cell_id: estimate_next_trial_s(series) for cell_id, series in durations.items()}
    before = read_costs() if gone else TrialCosts({}, 0, PROOF_S)
    price = _make_calibrated_estimate(before, took, alive)
    enough = _count_fewest_blocks(plan)
    least = min((len(blocks[cell.id]) for cell in measured if cell.id not in resting), default=enough)
    goal = enough if least >= _FEWEST_BLOCKS else min(enough, _FEWEST_BLOCKS)

    def estimate_rest_s(cells: Sequence[Cell]) -> float:
        """Return the seconds until each of these cells has `goal` blocks; resting cells are no longer measured."""
        due = [(cell, goal - len(blocks[cell.id])) for cell in cells if cell.id not in resting]
        return sum(left * price(cell) for cell, left in due if left > 0)

    left_s = budget_s - used_s - _REPORT_S
    if estimate_rest_s(measured) > left_s:
        return tuple(_BudgetFit(plan, measured, left_s, estimate_rest_s, price).pick())
    if not gone:
        return tuple(measured)
    return tuple(_BudgetFit(plan, alive, left_s, estimate_rest_s, price, chosen=measured).pick())


def estimate_next_trial_s(durations: Sequence[float]) -> float:
    """Return the expected seconds of a cell's next trial, from those of its trials so far, in their order.

    A cell's first trial also creates files that later ones reuse, so it counts only if it is the only one.
    """
    first, *later = durations
    return statistics.median(later) if later else _LATER_TRIAL_SHARE * first


def _make_calibrated_estimate(
    costs: TrialCosts, took: Mapping[str, float], cells: Iterable[Cell]
) -> Callable[[Cell], float]:
    """Return a function that estimates the seconds of a cell's trial, from how long trials of this run `took`.

    A cell that was not measured yet costs what was known before, times the ratio of the others' cost now to their cost
    before; infinity if nothing was known.
    """
    both = [cell.id for cell in cells if cell.id in took and cell.id in costs.trial_s]
    ratio = 1.0
    if both:
        now_s = sum(took[cell_id] for cell_id in both)
        before_s = sum(costs.trial_s[cell_id] for cell_id in both)
        ratio = now_s / max(before_s, 1e-9)

    def estimate_trial_s(cell: Cell) -> float:
        own = took.get(cell.id) or took.get(cell.null_of or "")
        if own is not None:
            return own
        return ratio * costs.trial_s.get(cell.id, math.inf)

    return estimate_trial_s


def find_unasked_cells(plan: Plan, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells with a level that the user named which no question of the plan is about."""
    own = list_originals(cells)
    asked: set[str] = set()
    for question in plan.questions:
        for part in split_question(question, own):
            asked |= part.cell_ids
    unasked = set(itertools.chain.from_iterable(plan.context.named)) - asked
    return [cell for cell in own if cell.id in unasked]


def compare_unasked_cells(plan: Plan, alive: Sequence[Cell], analysis: Analysis) -> list[AskedPair]:
    """Return the comparisons of those cells with their baselines in the primary metric, as far as they are known."""
    wanted = {cell.id for cell in find_unasked_cells(plan, alive)}
    found = []
    for workload in analysis.workloads:
        baselines = [result.cell.id for result in workload.cells if result.cell.baseline]
        if not baselines or not workload.metrics:
            continue
        for result in workload.cells:
            comparison = result.comparison.get(workload.metrics[0].name)
            if result.cell.id in wanted and comparison is not None:
                found.append(AskedPair(result.cell.id, baselines[0], comparison))
    return found


def compare_published_cells(plan: Plan, alive: Iterable[Cell], analysis: Analysis) -> list[AskedPair]:
    """Return the comparisons of these cells with their baselines that the verdicts on published ratios still need.

    Without a budget there are none, as the blocks of such a run suffice for most ratios. A comparison whose interval
    excludes the published ratio is not needed any more.
    """
    found: list[AskedPair] = []
    if plan.context.budget_s is None:
        return found
    able = {cell.id for cell in alive}
    baselines = [cell for cell in plan.cells if cell.baseline and cell.id in able]
    for ratio in itertools.chain.from_iterable(group_published_ratios(analysis)):
        cell, now = ratio.result.cell, ratio.now
        if cell.id not in able or now is None or ratio.judge(plan.policy.margin) is Repetition.EXCLUDED:
            continue
        found += [AskedPair(cell.id, other.id, now) for other in baselines if other.compares_with(cell)]
    return found


def find_undecided_gates(plan: Plan, analysis: Analysis) -> set[str]:
    """Return the ids of cells with too few blocks to decide their gates; with them, those of all baselines."""
    gated = _find_gated_cells(plan, [gate for gate in read_plan_gates(plan) if gate.loss is None])
    found = set()
    for result in analysis.cells:
        if result.cell.id in gated and not is_given_up(result.trials):
            least = min((comparison.n for comparison in result.comparison.values()), default=0)
            if least < MIN_BLOCKS:
                found.add(result.cell.id)
    if found:
        found |= {cell.id for cell in plan.cells if cell.baseline}
    return found


def _find_gated_cells(plan: Plan, gates: Sequence[Gate]) -> set[str]:
    gated = set()
    for cell in plan.cells:
        if any(gate.selects_cell(cell) for gate in gates):
            gated.add(cell.id)
    return gated


def find_open_cells(
    plan: Plan,
    pairs: Sequence[AskedPair] | None,
    published: Sequence[AskedPair],
    alive: Iterable[Cell],
    analysis: Analysis,
) -> set[str]:
    """Return the ids of the cells of open questions; all ids while comparisons are not known.

    Questions need `pairs`, published ratios `published`. A null copy is among the cells if the one that it copies is. A
    gate is open until it has enough blocks to be decided.
    """
    cells = list(alive)
    if plan.context.budget_s is None or pairs is None:
        return {cell.id for cell in cells}
    known: set[str] = set()
    wanted = find_undecided_gates(plan, analysis)
    for pair in pairs:
        known |= {pair.first, pair.second}
    for pair in (*pairs, *published):
        if not stopping.is_settled(pair.comparison, plan.policy.precision):
            wanted |= {pair.first, pair.second}
    seen = {result.cell.id for result in analysis.cells if len(result.trials) >= _FEWEST_BLOCKS}
    for question in plan.questions:
        # What becomes of flushes is the same in every block.
        settled = known | seen if question.wants is QuestionKind.DURABILITY else known
        for part in split_question(question, cells):
            wanted |= part.cell_ids - settled
    wanted |= {cell.id for cell in find_unasked_cells(plan, cells)} - known - seen
    return {cell.id for cell in cells if (cell.null_of or cell.id) in wanted}


def is_out_of_share(plan: Plan, cell: Cell, trial: Trial, earlier: Iterable[Trial]) -> bool:
    """Return whether a trial failed because the budget has less time for it than it takes.

    Its cell is then left out for lack of time, unless others are compared with it or it has been measured before.
    """
    return (
        plan.context.budget_limits_trials
        and plan.context.tune is None
        and trial.status is TrialStatus.FAILED
        and trial.duration_s >= plan.policy.trial_limit_s
        and not (cell.baseline and _is_compared(plan, cell))
        and not any(other.cell_id == cell.id for other in earlier)
    )


def _is_compared(plan: Plan, cell: Cell) -> bool:
    """Return whether any other cell of the plan, apart from null copies, is compared with this one."""
    return any(other.id != cell.id and other.compares_with(cell) for other in list_originals(plan.cells))


def is_proving_over(plan: Plan, used_s: float) -> bool:
    """Return whether proofs have used their share of the budget; the rest is for measuring."""
    budget_s = plan.context.budget_s
    return budget_s is not None and used_s > _PROVING_SHARE * budget_s


def is_used_up(plan: Plan, blocks: int, trials: Sequence[Trial], used_s: float) -> bool:
    """Return whether the budget has no room for another block, once there are enough blocks for an answer."""
    budget_s = plan.context.budget_s
    if budget_s is None or blocks < min(plan.policy.min_blocks, _count_fewest_blocks(plan)):
        return False
    return bool(used_s + stopping.estimate_block_cost(trials) > budget_s - _REPORT_S)


def leave_out_cells(plan: Plan, gone: Iterable[Cell]) -> Plan:
    """Return the plan with exactly these cells left out for lack of time."""
    return replace(plan, context=replace(plan.context, no_time=tuple(sorted(cell.id for cell in gone))))


def select_planned_cells(plan: Plan, cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells for which there is time."""
    return _exclude_cells(cells, set(plan.context.no_time))


def _exclude_cells(cells: Iterable[Cell], gone: Collection[str]) -> list[Cell]:
    return [cell for cell in cells if cell.id not in gone]


def drop_unmeasured_cells(plan: Plan, tried: Collection[str]) -> Plan:
    """Return the plan without cells that were never `tried` for lack of time, and without questions about them."""
    # A gated cell stays, so that its gate is said not to be judged.
    gone = set(plan.context.no_time) - set(tried) - _find_gated_cells(plan, read_plan_gates(plan))
    # A question about cells that were measured a few times stays: the run may be resumed.
    kept = _exclude_cells(plan.cells, gone)
    questions = tuple(question for question in plan.questions if split_question(question, kept))
    return replace(plan, cells=tuple(kept), questions=questions)


class _BudgetFit:
    """Picks the cells that fit into the time left, so that as many questions as possible get an answer."""

    def __init__(  # noqa: PLR0917 (the choice depends on all of it)
        self,
        plan: Plan,
        able: Sequence[Cell],
        left_s: float,
        estimate_s: Callable[[Sequence[Cell]], float],
        price: Callable[[Cell], float],
        chosen: Iterable[Cell] = (),
    ) -> None:
        """Pick from `able`, in addition to the cells already `chosen`.

        `estimate_s` returns the seconds that a set of cells needs, `price` those of one trial.
        """
        self._plan = plan
        self._able = able
        self._left_s = left_s
        self._estimate_s = estimate_s
        self._price = price
        self._taken = {cell.id: cell for cell in chosen}

    def pick(self) -> list[Cell]:
        """Return all cells if they fit, else the cells of as many parts of the questions as fit.

        Parts with a level that the user named come first, until each of these levels is included, then one part of each
        question; null copies come last.
        """
        if self._estimate_s(self._able) <= self._left_s:
            return list(self._able)
        wanted = self._list_parts()
        self._take_named_levels(wanted)
        self._take_one_part_each()
        for part in wanted:
            self._take_part(part)
        if not self._taken and wanted:
            cheapest = min((part.cells for part in wanted), key=self._sum_prices)
            self._taken = self._add_baselines(cheapest)
        for copy in self._able:
            if copy.null_of in self._taken:
                self._take_if_it_fits([copy])
        return [cell for cell in self._able if cell.id in self._taken]

    def _list_parts(self) -> list[QuestionPart]:
        """Return the parts of all questions; without questions, each cell is one, with the baseline that it needs."""
        found: list[QuestionPart] = []
        for question in self._plan.questions:
            found += split_question(question, self._able)
        if found:
            # What the user named is wanted whether a question of the plan is about it or not.
            for cell in find_unasked_cells(self._plan, self._able):
                found.append(QuestionPart((cell,)))
            return found
        own = list_originals(self._able)
        for cell in own:
            # A baseline alone answers nothing.
            compared = any(other is not cell and cell.compares_with(other) for other in own)
            if not (cell.baseline and compared):
                found.append(QuestionPart((cell,)))
        return found

    def _take_named_levels(self, wanted: Sequence[QuestionPart]) -> None:
        """Take two cells for each level that the user named, so that it can be compared at all."""
        for level in self._plan.context.named:
            if not self._taken.keys().isdisjoint(level):
                continue
            of_level = [part for part in wanted if not part.cell_ids.isdisjoint(level)]
            for part in sorted(of_level, key=lambda part: self._sum_prices(part.cells)):
                if self._take_if_it_fits(self._pick_cheapest_pair(part, level)):
                    break

    def _take_one_part_each(self) -> None:
        """Take the two cheapest cells of the cheapest part of each question, so that none stays without an answer."""
        for question in self._plan.questions:
            pairs = []
            for part in split_question(question, self._able):
                pairs.append(sorted(part.cells, key=self._price)[:2])
            for pair in sorted(pairs, key=self._sum_prices):
                if self._take_if_it_fits(pair):
                    break

    def _take_part(self, part: QuestionPart) -> None:
        """Take the part, without its most expensive cells if it does not fit otherwise."""
        cells = sorted(part.cells, key=self._price)
        fewest = max(min(2, len(cells)), math.ceil(_DROPPABLE_SHARE * len(cells)))
        while not self._take_if_it_fits(cells) and len(cells) > fewest:
            cells.pop()

    def _pick_cheapest_pair(self, part: QuestionPart, level: Collection[str]) -> list[Cell]:
        """Return the two cheapest cells of a part that can be compared, one of which has the level."""
        with_level = min((cell for cell in part.cells if cell.id in level), key=self._price)
        others = sorted((cell for cell in part.cells if cell is not with_level), key=self._price)
        return [with_level, *others[:1]]

    def _take_if_it_fits(self, cells: Iterable[Cell]) -> bool:
        """Take the cells with the baselines that they need, if there is time; return whether there was."""
        taken = self._add_baselines(cells)
        if self._estimate_s(list(taken.values())) > self._left_s:
            return False
        self._taken = taken
        return True

    def _add_baselines(self, more: Iterable[Cell]) -> dict[str, Cell]:
        """Return the taken cells together with `more` cells and the baselines of their tables."""
        wanted = {**self._taken, **{cell.id: cell for cell in more}}
        baselines = {}
        for cell in self._able:
            if cell.baseline and any(cell.compares_with(other) for other in wanted.values()):
                baselines[cell.id] = cell
        return {**wanted, **baselines}

    def _sum_prices(self, cells: Iterable[Cell]) -> float:
        return sum(map(self._price, cells))


def choose_racing_cells(
    plan: Plan, able: Sequence[Cell], costs: TrialCosts, settings: Settings, left_s: float
) -> list[Cell]:
    """Return the cells that can race in the time, with proofs, some blocks each, and confirmation of the best.

    If not all cells can, they are those that together inform most about all levels, as in screening.
    """
    typical = sum(map(costs.estimate, able)) / max(len(able), 1)
    proof = _estimate_proofs_s(plan, able, costs) / max(len(able), 1)
    confirming = settings.confirm * min(settings.finalists, _USUAL_FINALISTS) * typical
    per_cell = proof + _RACING_BLOCKS * typical
    number = len(able)
    if per_cell > 0:
        number = max(2, math.floor((left_s - confirming) / per_cell))
    if number >= len(able):
        return list(able)
    ids = set(choose_informative(list_candidates(able), number))
    return [cell for cell in able if cell.id in ids or cell.baseline]

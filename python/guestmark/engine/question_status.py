"""The state of a plan's questions: which ones a run can answer, about which cells, and the comparisons so far."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from guestmark.core import registry
from guestmark.core.cell_levels import group_cells, pair_cells
from guestmark.core.errors import UsageError
from guestmark.core.findings import Durability
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Cell, LeftOut, Plan, Question, QuestionKind, select_runnable
from guestmark.core.units import format_count
from guestmark.disks.location import choose_default_location, is_in_memory
from guestmark.plan.outline import Outline
from guestmark.setting.disk import Disks
from guestmark.setting.location import LOCATION
from guestmark.stats import Comparison
from guestmark.stats.analysis import Analysis, CellResult
from guestmark.stats.pairwise import compare_pairs
from guestmark.stats.questions import find_question_metric, is_durable_enough

# Questions whose answer is a comparison.
COMPARING_QUESTIONS = frozenset({QuestionKind.BEST, QuestionKind.COMPARE})


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """A part of a question with its own answer: cells of which one is best, two compared cells, or one alone."""

    cells: tuple[Cell, ...]

    @property
    def cell_ids(self) -> set[str]:
        """The ids of its cells."""
        return {cell.id for cell in self.cells}


def list_originals(cells: Iterable[Cell]) -> list[Cell]:
    """Return the cells that are no null copies: only these were asked for, and only they are reported."""
    return [cell for cell in cells if cell.null_of is None]


def list_original_ids(cells: Iterable[Cell]) -> list[str]:
    """Return the ids of the cells that are no null copies."""
    return [cell.id for cell in list_originals(cells)]


def split_question(question: Question, cells: Iterable[Cell]) -> list[QuestionPart]:
    """Return the parts of a question that have an answer among these cells."""
    own = list_originals(cells)
    if question.wants is QuestionKind.COMPARE:
        return list(map(QuestionPart, pair_cells(question, own)))
    found = []
    for group in group_cells(question, own):
        if question.wants is not QuestionKind.BEST:
            found += [QuestionPart((cell,)) for cell in group]
        # One cell alone is trivially the best.
        elif len(group) > 1:
            found.append(QuestionPart(tuple(group)))
    return found


def keep_answerable_questions(plan: Plan, left_out: Sequence[LeftOut]) -> tuple[Plan, list[str]]:
    """Return the plan with the questions that its run can answer, and a remark on each of the others."""
    cells = select_runnable(plan.cells, left_out)
    few = _explain_too_few_blocks(plan)
    asked: list[Question] = []
    notes: list[str] = []
    unanswered = 0
    for question in plan.questions:
        if few and question.wants in COMPARING_QUESTIONS:
            unanswered += 1
        elif reason := _explain_unanswerable(question, plan, cells):
            notes.append(f"not asked: {question.ask} ({reason})")
        else:
            asked.append(question)
    # These have the same reason, so one remark counts them.
    if unanswered:
        notes.append(f"{few}, so {format_count(unanswered, 'question')} of the plan will not be answered")
    asks = plan.context.asks or bool(plan.questions)
    return replace(plan, questions=tuple(asked), context=replace(plan.context, asks=asks)), notes


def _explain_too_few_blocks(plan: Plan) -> str:
    """Return why so few blocks cannot show any difference, however large (`paired.early_p`); empty if they can."""
    blocks = plan.policy.blocks
    if blocks is None or blocks > 1:
        return ""
    return "1 block cannot show a difference"


def _explain_unanswerable(question: Question, plan: Plan, cells: Sequence[Cell]) -> str:
    """Return why nothing that this run measures can answer the question, however long it takes; empty if it can."""
    parts = split_question(question, cells)
    if question.durability or question.disk:
        if not plan.context.prove:
            return "it needs --prove"
        asked = itertools.chain.from_iterable(part.cells for part in parts)
        if not any(_is_provable(cell, question) for cell in asked):
            if question.durability:
                return "what its workloads acknowledge cannot be proven"
            return "its disks are in memory"
    if question.wants in COMPARING_QUESTIONS and not parts:
        if question.wants is QuestionKind.COMPARE:
            return "no two cells of this run differ only in that"
        return "no two cells of this run differ in what it asks about"
    return ""


def _is_provable(cell: Cell, question: Question) -> bool:
    """Return whether a proof of this cell can show the durability that the question asks for."""
    if str(Durability.PROVEN) not in (*question.durability, *question.disk):
        return True
    try:
        if any(is_in_memory(disk.location) for disk in cell.view(Disks)):
            return False
    except UsageError:
        return False
    if not question.durability:
        return True
    kind = registry.workload_kind(cell.workload.name)
    return bool(kind.acknowledging_params(cell))


def find_provable_location(outline: Outline, settings: Sequence[str]) -> list[str]:
    """Return the `--set` that moves a plan's disks from memory to a disk for proofs; nothing if a location was set."""
    if any(text.partition("=")[0].strip() == LOCATION.name for text in settings):
        return []
    places: set[str] = set()
    for entry in outline.shape.entries:
        places.update(entry.levels.get(LOCATION.name, ()))
    # A plan that names a location on a disk anywhere keeps its locations.
    if places and all(map(is_in_memory, places)):
        return [f"{LOCATION.name}={choose_default_location()}"]
    return []


@dataclass(frozen=True, slots=True)
class AskedPair:
    """Two cells that a question compares, the first over the second, and their comparison so far."""

    first: str
    second: str
    comparison: Comparison


def compare_asked_pairs(plan: Plan, analysis: Analysis, alive: Iterable[str]) -> list[AskedPair] | None:
    """Return the comparisons of these cells that the questions ask for, as far as they are known.

    If a question asks for the best cell, each is compared with the leader so far. None if no question compares.
    """
    asking = [question for question in plan.questions if question.wants in COMPARING_QUESTIONS]
    if not asking:
        return None
    among = set(alive)
    results = {result.cell.id: result for result in analysis.cells if result.cell.id in among}
    cells = [result.cell for result in results.values()]
    found: list[AskedPair] = []
    for question in asking:
        for part in split_question(question, cells):
            found += _compare_part(question, [results[cell.id] for cell in part.cells], analysis)
    return found


def _compare_part(question: Question, results: Sequence[CellResult], analysis: Analysis) -> list[AskedPair]:
    """Return the comparisons of one part of a question, of the cells that have a result and may be its answer."""
    metric = find_question_metric(question, results[0].cell.id, analysis)
    if metric is None:
        return []
    results = [result for result in results if metric.name in result.summary]
    if question.wants is QuestionKind.BEST:
        results = [result for result in results if is_durable_enough(result, question)]
    if len(results) < 2:
        return []
    pairs = [(results[0].cell.id, results[1].cell.id)]
    if question.wants is QuestionKind.BEST:
        lead = _find_leader(results, metric).cell.id
        pairs = [(result.cell.id, lead) for result in results if result.cell.id != lead]
    compared = compare_pairs(pairs, metric, analysis)
    return [AskedPair(*pair, comparison) for pair, comparison in compared.items()]


def _find_leader(results: Sequence[CellResult], metric: Metric) -> CellResult:
    sign = 1 if metric.better is Better.LOWER else -1
    return min(results, key=lambda result: sign * result.summary[metric.name].median)

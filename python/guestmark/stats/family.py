"""Limits on the claims of a report about one cell: all questions that it answers share one error rate.

Typical run, total, slow runs, first run and secondary metrics of one cell are tested on the same blocks. If each were
tested at 5 %, one in ten reports about equal cells would hold a false claim. So they share one error rate: each
question starts with a weight, and the weight of a claimed question passes to those that are left (Holm's step-down
method with weights; Benjamini and Hochberg 1997), which is valid under any dependence. Before that, p values are
adjusted over the cells of a table.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from guestmark.stats import paired
from guestmark.stats.cell_answers import Answers, SlowComparison
from guestmark.stats.compare import MANY_QUESTIONS_REASON, Comparison, Verdict, downgrade_verdict
from guestmark.stats.special import student_t_quantile

Question = TypeVar("Question")

# The error rate of all claims about one cell in a report.
FAMILY_LEVEL = 0.05
# With these weights, 8 blocks suffice for a claim: the typical run is held to about 6/2^8, slow runs to 2/2^8.
TYPICAL, TOTAL, SLOW, FIRST, SECONDARY = 0.47, 0.13, 0.2, 0.05, 0.15


def select_claimable_questions(
    p: Mapping[Question, tuple[float, float]], level: float = FAMILY_LEVEL
) -> dict[Question, float]:
    """Return the questions whose answers may be claimed, each with the level at which it was tested.

    `p` maps each question to its p value and weight. Weights add up to at most 1; the rest stays reserved for questions
    that were not asked. The chance that any claim is false is at most `level`.
    """
    left = dict(p)
    found: dict[Question, float] = {}
    whole = 1.0
    while left:
        levels = {question: level * weight / whole for question, (_, weight) in left.items()}
        passed = [question for question, (value, _) in left.items() if value <= levels[question]]
        if not passed:
            break
        for question in passed:
            found[question] = levels[question]
            whole -= left.pop(question)[1]
    return found


def judge_family(
    headline: Comparison | None, answers: Answers | None, secondary: Mapping[str, Comparison], margin: float
) -> tuple[Comparison | None, Answers | None, dict[str, Comparison]]:
    """Return a cell's comparisons (headline, answers, secondary) with verdicts that hold for all of them together.

    `headline` is about the primary metric's typical run, `secondary` about other metrics by name. Differences that are
    within chance among so many questions become inconclusive. No difference is claimed for the primary metric if
    typical run and total are equal and no other answer differs; if only the typical run is equal, the comparison is
    `alike`.
    """
    held = select_claimable_questions(_weigh_questions(headline, answers, secondary))
    level = held.get("secondary", 0.0)
    others = {}
    for name, other in secondary.items():
        others[name] = limit_to_typical_run(
            _withdraw_unless_held(other, other.q is not None and other.q <= level), margin
        )
    if headline is not None:
        headline = _withdraw_unless_held(headline, "typical" in held)
    if answers is None:
        if headline is not None:
            headline = limit_to_typical_run(headline, margin)
        return headline, None, others
    slow = answers.slow
    if slow is not None and slow.differs and "slow" not in held:
        slow = replace(slow, verdict=Verdict.INCONCLUSIVE, reason=MANY_QUESTIONS_REASON)
    total, first = answers.total, answers.first
    if total is not None:
        total = _withdraw_unless_held(total, "total" in held)
    if first is not None:
        first = _withdraw_unless_held(first, "first" in held)
    found = replace(answers, typical=headline or answers.typical, total=total, slow=slow, first=first)
    typical = found.typical
    if typical.verdict is Verdict.NO_DIFFERENCE and not _are_all_answers_equal(found):
        typical = limit_to_typical_run(typical, margin, _explain_inequality(found))
    found = replace(found, typical=typical)
    if headline is not None:
        headline = typical
    return headline, found, others


def _weigh_questions(
    headline: Comparison | None, answers: Answers | None, secondary: Mapping[str, Comparison]
) -> dict[str, tuple[float, float]]:
    """Return the p value and the weight of each question; p is 1 if its answer claims no difference."""
    weighted: list[tuple[str, Comparison | SlowComparison | None, float]] = [("typical", headline, TYPICAL)]
    if answers is not None:
        weighted.append(("total", answers.total, TOTAL))
        weighted.append(("slow", answers.slow, SLOW))
        weighted.append(("first", answers.first, FIRST))
    asked: dict[str, tuple[float, float]] = {}
    for name, answer, weight in weighted:
        if answer is not None and answer.q is not None:
            asked[name] = (answer.q if answer.differs else 1.0, weight)
    if secondary:
        # Secondary metrics were adjusted over all of them before, so the smallest q stands for them.
        q = [other.q for other in secondary.values() if other.differs and other.q is not None]
        asked["secondary"] = (min(q, default=1.0), SECONDARY)
    return asked


def hold_to_family_level(comparison: Comparison) -> Comparison:
    """Return a comparison of typical runs, held to the level that these have in a cell's table.

    So a sentence about any two cells claims nothing that their table would not claim.
    """
    return _withdraw_unless_held(
        comparison, comparison.q is not None and comparison.q <= FAMILY_LEVEL * TYPICAL
    )


def estimate_detectable_difference(comparison: Comparison, power: float = 0.9) -> float | None:
    """Return the relative difference of typical runs that such a run would claim with probability `power` or more.

    From the interval's width by Student's t at the level of the typical run; None without an interval over six blocks.
    """
    if comparison.ci is None or comparison.n < paired.MIN_BLOCKS or comparison.ci[0] <= 0:
        return None
    free = comparison.n - 1
    half = math.log(comparison.ci[1] / comparison.ci[0]) / 2
    error = (half - comparison.stretch) / float(student_t_quantile(free, (1 + paired.NOMINAL) / 2))
    # This run may be quieter than the next one by chance, so only a third of 1 - power is spent.
    claimed = float(student_t_quantile(free, 1 - FAMILY_LEVEL * TYPICAL / 2))
    missed = float(student_t_quantile(free, 1 - (1 - power) / 3))
    return math.expm1((claimed + missed) * error + comparison.stretch)


def _withdraw_unless_held(comparison: Comparison, held: bool) -> Comparison:
    if held or not comparison.differs:
        return comparison
    return downgrade_verdict(comparison, MANY_QUESTIONS_REASON)


def limit_to_typical_run(
    comparison: Comparison, margin: float, why: str = "rarer slow runs are not excluded"
) -> Comparison:
    """Return a comparison of typical runs alone: no difference becomes `alike`, which is weaker."""
    # If the value is the same in every run of both cells, there are no slow runs.
    constant = comparison.ci is not None and comparison.ci[0] == comparison.ci[1]
    if comparison.verdict is not Verdict.NO_DIFFERENCE or constant:
        return comparison
    return replace(downgrade_verdict(comparison, f"typical runs within {margin:.3g}; {why}"), alike=True)


def _are_all_answers_equal(answers: Answers) -> bool:
    others_differ = any(answer.differs for answer in (answers.slow, answers.first) if answer)
    return not others_differ and answers.total is not None and answers.total.verdict is Verdict.NO_DIFFERENCE


def _explain_inequality(answers: Answers) -> str:
    if answers.slow is not None and answers.slow.differs:
        return "more slow runs" if answers.slow.difference > 0 else "fewer slow runs"
    if answers.total is not None and answers.total.differs:
        return "a different total"
    return "rarer slow runs are not excluded"

"""What a report may claim of a cell: one error rate over all the questions that it answers.

Typical run, total, slow runs, first run and the secondary metrics of one cell are tested on the same blocks, so each
claim by itself at 5 % would make reports of equal cells wrong in one of ten. They share one rate instead: each question
starts with its weight, and the weight of one that is claimed passes to those that are left (Holm's step-down method
with weights; Benjamini and Hochberg 1997). That holds whatever depends on what. p values are adjusted over the cells of
a table before.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from guestmark.stats import paired
from guestmark.stats.compare import MANY_QUESTIONS_REASON, Comparison, Verdict, downgrade_verdict
from guestmark.stats.special import student_t_quantile
from guestmark.stats.trials import Answers

Question = TypeVar("Question")

FAMILY_LEVEL = 0.05  # of everything that a report claims of a cell
# Weights: with them the typical run reaches 6/2^8 of 8 blocks, and slow runs 2/2^8.
TYPICAL, TOTAL, SLOW, FIRST, SECONDARY = 0.47, 0.13, 0.2, 0.05, 0.15
_DIFFERENT = (Verdict.FASTER, Verdict.SLOWER)


def claim_questions(
    p: Mapping[Question, tuple[float, float]], level: float = FAMILY_LEVEL
) -> dict[Question, float]:
    """Return the questions that are claimed, each with the level that it was held to.

    `p` has the p value and the weight of each; weights add up to at most 1, and those of questions that are not among
    them stay reserved. The chance that any claim is false is at most `level`.
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
    """Return a cell's comparisons with the verdicts that hold for all of them together.

    `headline` is of the primary metric's typical run, `secondary` of other metrics by name. Differences that are within
    chance among so many questions become inconclusive. No difference is claimed of the primary metric where typical run
    and total are equal, and no other answer differs; where only the typical run is, the comparison is `alike`.
    """
    asked: dict[str, tuple[float, float]] = {}
    for name, answer, weight in (
        ("typical", headline, TYPICAL),
        ("total", answers.total if answers else None, TOTAL),
        ("slow", answers.slow if answers else None, SLOW),
        ("first", answers.first if answers else None, FIRST),
    ):
        if answer is not None and answer.q is not None:
            asked[name] = (answer.q if answer.verdict in _DIFFERENT else 1.0, weight)
    least = [other.q for other in secondary.values() if other.verdict in _DIFFERENT and other.q is not None]
    if secondary:
        asked["secondary"] = (min(least, default=1.0), SECONDARY)
    held = claim_questions(asked)
    level = held.get("secondary", 0.0)
    others = {
        name: limit_to_typical_run(
            _retract_unless_held(other, other.q is not None and other.q <= level), margin
        )
        for name, other in secondary.items()
    }
    if headline is not None:
        headline = _retract_unless_held(headline, "typical" in held)
    if answers is None:
        return (None if headline is None else limit_to_typical_run(headline, margin)), None, others
    slow = answers.slow
    if slow is not None and slow.verdict in _DIFFERENT and "slow" not in held:
        slow = replace(slow, verdict=Verdict.INCONCLUSIVE, reason=MANY_QUESTIONS_REASON)
    found = replace(
        answers,
        typical=headline or answers.typical,
        total=_retract_unless_held(answers.total, "total" in held) if answers.total else None,
        slow=slow,
        first=_retract_unless_held(answers.first, "first" in held) if answers.first else None,
    )
    typical = found.typical
    if typical.verdict is Verdict.NO_DIFFERENCE and not _all_answers_equal(found):
        typical = limit_to_typical_run(typical, margin, _explain_inequality(found))
    found = replace(found, typical=typical)
    return (None if headline is None else typical), found, others


def hold_to_family_level(comparison: Comparison) -> Comparison:
    """Return a comparison of typical runs with the level that they have in a cell's table, whoever is compared.

    So a sentence about two cells claims nothing that their table would not, and adds no false claims to its own.
    """
    return _retract_unless_held(
        comparison, comparison.q is not None and comparison.q <= FAMILY_LEVEL * TYPICAL
    )


def detectable_difference(comparison: Comparison, power: float = 0.9) -> float | None:
    """Return the relative difference of typical runs that such a run would claim with this probability, or more.

    From the interval's width by Student's t, at the level of the typical run. Other runs are noisier than this one by
    chance, so a third of what is left out counts. None without an interval of six blocks.
    """
    if comparison.ci is None or comparison.n < paired.MIN_BLOCKS or comparison.ci[0] <= 0:
        return None
    free = comparison.n - 1
    half = math.log(comparison.ci[1] / comparison.ci[0]) / 2
    error = (half - comparison.stretch) / float(student_t_quantile(free, (1 + paired.NOMINAL) / 2))
    quantiles = float(student_t_quantile(free, 1 - FAMILY_LEVEL * TYPICAL / 2)) + float(
        student_t_quantile(free, 1 - (1 - power) / 3)
    )
    return math.expm1(quantiles * error + comparison.stretch)


def _retract_unless_held(comparison: Comparison, held: bool) -> Comparison:
    if held or comparison.verdict not in _DIFFERENT:
        return comparison
    return downgrade_verdict(comparison, MANY_QUESTIONS_REASON)


def limit_to_typical_run(
    comparison: Comparison, margin: float, why: str = "rarer slow runs are not excluded"
) -> Comparison:
    """Return a comparison of typical runs alone: where they do not differ it is `alike`, which is less."""
    constant = (
        comparison.ci is not None and comparison.ci[0] == comparison.ci[1]
    )  # the same in every run of both
    if comparison.verdict is not Verdict.NO_DIFFERENCE or constant:
        return comparison
    return replace(downgrade_verdict(comparison, f"typical runs within {margin:.3g}; {why}"), alike=True)


def _all_answers_equal(answers: Answers) -> bool:
    apart = [answer for answer in (answers.slow, answers.first) if answer and answer.verdict in _DIFFERENT]
    return not apart and answers.total is not None and answers.total.verdict is Verdict.NO_DIFFERENCE


def _explain_inequality(answers: Answers) -> str:
    if answers.slow is not None and answers.slow.verdict in _DIFFERENT:
        return f"{'more' if answers.slow.difference > 0 else 'fewer'} slow runs"
    if answers.total is not None and answers.total.verdict in _DIFFERENT:
        return "another total"
    return "rarer slow runs are not excluded"

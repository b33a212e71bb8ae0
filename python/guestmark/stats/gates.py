"""Outcomes of gates: a regression beyond a limit is shown, excluded, or neither.

A gate is two one-sided signed-rank tests of the paired block differences against its limit. Each is tested at half of
the error probability of a ratio's interval, so a gate is decided exactly if the interval lies on one side of its limit.
Which of several gates are broken is decided by Holm's step-down method (1979), so a set of gates is wrongly called
broken no more often than a single one. A set is met only if every gate is: an intersection-union test, which needs no
adjustment (Berger 1982).

A gate that names no metric is about wall time. If other programs take processors, they lengthen a program's wall time,
but hardly its user time. Then user time may break the gate as well, at a fifth of the level, which leaves four fifths
for wall time (weighted Bonferroni; six blocks still decide). Its limit is moved to where it would be if only user time
had changed. User time never shows that such a gate is met, as it does not cover all of a run.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from guestmark.core.findings import Durability, Proof, Proven
from guestmark.core.gate import Gate, Loss
from guestmark.core.metric_spec import USER, WALL
from guestmark.core.model import CellStatus
from guestmark.core.units import format_count
from guestmark.stats import paired
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import adjust_holm
from guestmark.stats.noise import find_largest_foreign_share
from guestmark.stats.paired import log_ratios
from guestmark.stats.pairwise import arrange_block_values, explain_doubt
from guestmark.stats.repetition import count_blocks_until_within
from guestmark.stats.special import student_t_quantile
from guestmark.stats.validity import subtract_carry_over

_LOSSES = frozenset(word for word in Durability if word.is_loss)
_REFUSED_WORDS: Mapping[Loss, frozenset[Durability]] = {
    Loss.LOST: _LOSSES,
    Loss.UNSYNCED_PART: _LOSSES | {Durability.SYNCED_PART_PROVEN, Durability.NOTHING},
    Loss.UNPROVEN: frozenset(Durability) - {Durability.PROVEN, Durability.CONSISTENT, Durability.UNKNOWN},
}
# With these words nothing was shown, and the proof says why.
_UNSHOWN_WORDS = frozenset({Durability.UNKNOWN, Durability.MEMORY, Durability.NOTHING})
# Stands for the metric of a gate about power cuts.
DURABILITY = "durability"
# This many reasons of a failed check fit in a line.
_REASONS = 3
_NOT_CUT = "its power was not cut; --prove cuts it"

Array = NDArray[np.float64]

# Error probability of each side; with it, a gate agrees with the interval of its ratio.
ALPHA = (1 - paired.NOMINAL) / 2
_MOST_BLOCKS = 1000  # forecasts beyond this are of no use
_POWER = 0.9
_FARTHEST = math.log(10)
# Error probability on each side of a confidence interval whose unit is the run.
_ONE_SIDE = 0.025
# Share of the level that user time gets beside other programs; with the rest, six blocks still decide by wall time.
_USER_TIME_SHARE = 0.2


class Outcome(StrEnum):
    """A gate's result."""

    # Statistically, a regression beyond the limit is excluded (kept) or shown (broken).
    KEPT = "kept"
    BROKEN = "broken"
    UNDECIDED = "undecided"
    # The cell or its baseline gave no values.
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True)
class JudgedGate:
    """A gate and one of its cells; `blocks` is how many more blocks would probably decide it, None if unknown.

    `p_broken` and `p_kept` are of the one-sided tests, None without values; the first is adjusted over all gates.
    """

    gate: Gate
    cell: str
    metric: str
    outcome: Outcome
    reason: str = ""
    ratio: float | None = None
    ci: tuple[float, float] | None = None
    n: int = 0
    p_broken: float | None = None
    p_kept: float | None = None
    blocks: int | None = None
    # At least 3 in 4 such runs would report a ratio beyond this as broken.
    finds: float | None = None
    # The share of the processors that other programs used, if user time decided for that reason.
    beside: float | None = None


def find_smallest_detected_ratio(
    gate: Gate, error: float, freedom: int, level: float, stretch: float = 0.0
) -> float | None:
    """Return the smallest ratio at which at least 3 in 4 such runs would report the gate as broken.

    None if it exceeds a factor of 10. `error` is the standard error of the log ratio with `freedom` degrees of freedom,
    `level` the level of the one-sided test.
    """
    if freedom < 1:
        return None
    # This run may be quieter than the next one by chance, so only a third of 1 - power is spent.
    detected, missed = 1 - level, 1 - (1 - _POWER) / 3
    quantiles = float(student_t_quantile(freedom, detected)) + float(student_t_quantile(freedom, missed))
    return compute_ratio_beyond_limit(gate, quantiles * error + stretch)


def compute_ratio_beyond_limit(gate: Gate, away: float) -> float | None:
    """Return the ratio that lies `away`, a log, beyond the gate's limit; None beyond a factor of 10."""
    if away > _FARTHEST:
        return None
    if not gate.above:
        away = -away
    return gate.limit * math.exp(away)


def judge_gates(gates: Iterable[Gate], analysis: Analysis, alpha: float = ALPHA) -> tuple[JudgedGate, ...]:
    """Judge every gate for each of its cells, in order; each side of a gate may err with probability `alpha`."""
    found: list[JudgedGate | _GateEvidence] = []
    for gate in gates:
        found += _examine_gate(gate, analysis)
    tested = [evidence for evidence in found if isinstance(evidence, _GateEvidence)]
    adjusted = iter(adjust_holm(np.array([evidence.p_either for evidence in tested])).tolist())
    judged = []
    for evidence in found:
        if isinstance(evidence, _GateEvidence):
            evidence = _decide_gate(evidence, next(adjusted), len(tested), alpha)  # noqa: PLW2901 (now decided)
        judged.append(evidence)
    return tuple(judged)


def _examine_gate(gate: Gate, analysis: Analysis) -> Iterator["JudgedGate | _GateEvidence"]:
    """Yield for each cell of the gate its outcome, or the evidence that decides it."""
    for workload in analysis.workloads:
        for result in workload.cells:
            if not gate.selects_cell(result.cell):
                continue
            if gate.loss:
                yield _judge_durability(gate, gate.loss, result)
            else:
                tested = _test_gate(gate, result, workload, analysis)
                yield _add_user_time(tested, result, workload, analysis)


def combine_outcomes(judged: Sequence[JudgedGate]) -> Outcome:
    """Return the worst outcome of all gates; a cell that was not measured leaves the whole set undetermined."""
    outcomes = {gate.outcome for gate in judged}
    for outcome in (Outcome.UNMEASURED, Outcome.BROKEN, Outcome.UNDECIDED):
        if outcome in outcomes:
            return outcome
    return Outcome.KEPT


def _judge_durability(gate: Gate, loss: Loss, result: CellResult) -> JudgedGate:
    """Return the outcome of the cell's own power cuts, the worst of its trials."""
    proofs = []
    for trial in result.trials:
        proof = trial.facts.find_fact(Proof)
        # Only a proof of this very row, with its settings, says anything about it.
        if proof is not None and proof.proven.of_row:
            proofs.append(proof.proven)
    if not proofs:
        return JudgedGate(gate, result.cell.id, DURABILITY, Outcome.UNMEASURED, result.reason or _NOT_CUT)
    each = [_judge_proof(loss, proven) for proven in proofs]
    outcome = min(each, key=_WORST_FIRST.index)
    proven = proofs[each.index(outcome)]
    return JudgedGate(gate, result.cell.id, DURABILITY, outcome, _describe_proof(proven), n=len(proofs))


_WORST_FIRST = (Outcome.BROKEN, Outcome.UNDECIDED, Outcome.KEPT)


def _judge_proof(loss: Loss, proven: Proven) -> Outcome:
    """Return the outcome of one proof; undecided if the proof could not have seen a loss."""
    if proven.word in _REFUSED_WORDS[loss] or (loss is not Loss.LOST and proven.unsynced):
        return Outcome.BROKEN
    blind = any(not control.is_caught for control in proven.controls) or not proven.states
    if proven.word is Durability.CONSISTENT:
        return Outcome.KEPT
    if proven.word in _UNSHOWN_WORDS or blind:
        return Outcome.UNDECIDED
    return Outcome.KEPT


def _describe_proof(proven: Proven) -> str:
    parts = [str(proven.word)]
    if proven.word.is_about_consistency:
        parts.append(f"the check fails on {proven.losing:,} of {proven.states:,} crash states")
    elif proven.states:
        verb = "loses" if proven.losing == 1 else "lose"
        parts.append(f"{proven.losing:,} of {proven.states:,} crash states {verb} something")
    if proven.reasons:
        reasons = proven.reasons[:_REASONS]
        parts.append("; ".join(f"{reason.states:,}: {reason.said}" for reason in reasons))
    if proven.unsynced:
        parts.append(f"{format_count(len(proven.unsynced), 'file')} not fully synced")
    if proven.word in _UNSHOWN_WORDS and proven.why:
        parts.append(proven.why)
    return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class _GateEvidence:
    """The test results of one gate before adjustment; `walsh` are the Walsh averages of its log ratios."""

    judged: JudgedGate
    walsh: Array
    p_broken: float
    p_kept: float
    refused: str
    stretch: float
    # Which of its trials failed: what failed may have been slow, or lost, so the others show no limit to be met.
    failed: str = ""
    by_user: "_GateEvidence | None" = None

    @property
    def p_either(self) -> float:
        """The p value of the claim that the gate is broken, by wall time or by user time."""
        if self.by_user is None:
            return self.p_broken
        return min(1.0, self._adjust_user_p(self.by_user), self._adjusted_wall_p)

    @property
    def decisive_user_time(self) -> "_GateEvidence | None":
        """The evidence of user time if that would break the gate sooner; else None."""
        by_user = self.by_user
        if by_user is not None and self._adjust_user_p(by_user) < self._adjusted_wall_p:
            return by_user
        return None

    @property
    def wall_time_share(self) -> float:
        """The share of the level that wall time has."""
        return 1.0 if self.by_user is None else 1 - _USER_TIME_SHARE

    def _adjust_user_p(self, user: "_GateEvidence") -> float:
        return user.p_broken / _USER_TIME_SHARE

    @property
    def _adjusted_wall_p(self) -> float:
        return math.inf if self.refused else self.p_broken / self.wall_time_share


def _add_user_time(
    evidence: "JudgedGate | _GateEvidence", result: CellResult, workload: WorkloadResult, analysis: Analysis
) -> "JudgedGate | _GateEvidence":
    """Add the evidence of user time, if other programs took processors and the gate names no metric.

    Only for cells on this host: the clock of a guest goes on while its hypervisor waits, so the guest's user time shows
    no more than its wall time.
    """
    base = workload.baseline
    if not isinstance(evidence, _GateEvidence) or base is None:
        return evidence
    gate = evidence.judged.gate
    if gate.metric or evidence.judged.metric != WALL.name:
        return evidence
    taken = find_largest_foreign_share(trial.noise for trial in (*result.trials, *base.trials))
    if taken is None or not _has_own_user_time(result) or not _has_own_user_time(base):
        return evidence
    share = min(base.summary[USER.name].typical / base.summary[WALL.name].typical, 1.0)
    moved = 1 + (gate.limit - 1) / share if share > 0 else 0.0
    if moved <= 0:
        return evidence
    by_user = _test_gate(replace(gate, metric=USER.name, limit=moved), result, workload, analysis)
    if not isinstance(by_user, _GateEvidence) or by_user.refused:
        return evidence
    return replace(evidence, by_user=replace(by_user, judged=replace(by_user.judged, beside=taken)))


def _has_own_user_time(result: CellResult) -> bool:
    """Return whether this host's own clock counted the cell's user time."""
    return result.cell.platform.is_this_host and USER.name in result.summary


def _test_gate(
    gate: Gate, result: CellResult, workload: WorkloadResult, analysis: Analysis
) -> JudgedGate | _GateEvidence:
    """Return the gate's test results for one cell, or its outcome if there is nothing to test."""
    metric = gate.metric or (workload.metrics[0].name if workload.metrics else "")
    nothing = JudgedGate(gate, result.cell.id, metric, Outcome.UNMEASURED)
    base = workload.baseline
    if base is None or metric not in result.summary or metric not in base.summary:
        return replace(nothing, reason=_explain_missing_values(metric, result, base))
    d = _list_paired_log_ratios(result, base, metric, workload, analysis)
    if d is None or not d.size:
        return replace(nothing, reason="no block has values above zero for both cells")
    stretch: float = 0.0
    ci: tuple[float, float] | None = None
    if comparison := result.comparison.get(metric):
        stretch, ci = comparison.stretch, comparison.ci
    walsh = paired.walsh_averages(d)
    # A lower limit is tested like an upper one with all signs inverted.
    limit, side = math.log(gate.limit), 1.0 if gate.above else -1.0
    beyond, _ = paired.one_sided_signed_rank_p(walsh * side, limit * side + stretch)
    _, within = paired.one_sided_signed_rank_p(walsh * side, limit * side - stretch)
    return _GateEvidence(
        replace(nothing, n=d.size, ratio=math.exp(float(paired.hodges_lehmann(walsh))), ci=ci),
        walsh,
        beyond,
        within,
        explain_doubt(result, workload, metric, analysis),
        stretch,
        _describe_failed_trials(result, base),
    )


def _explain_missing_values(metric: str, result: CellResult, base: CellResult | None) -> str:
    """Return why the cell or its baseline has no value of the metric."""
    for side in (result, base):
        if side is not None and side.reason:
            return f"{side.cell.id}: {side.reason}"
    return f"{metric or 'its metric'} was not measured"


def _describe_failed_trials(result: CellResult, base: CellResult) -> str:
    """Return which trials of the cell, or else of its baseline, failed; empty if none did."""
    for side in (result, base):
        if side.status is CellStatus.PARTIAL:
            return f"{side.cell.id}: {side.reason}"
    return ""


def _decide_gate(evidence: _GateEvidence, p_broken: float, gates: int, alpha: float) -> JudgedGate:
    """Return the gate's outcome by its adjusted p, and how many more blocks would decide it."""
    judged = replace(evidence.judged, p_broken=p_broken, p_kept=evidence.p_kept)
    outcome, reason, more = Outcome.UNDECIDED, evidence.refused, None
    instead = evidence.decisive_user_time
    if instead is not None and instead.judged.n >= paired.MIN_BLOCKS and p_broken <= alpha:
        return replace(instead.judged, outcome=Outcome.BROKEN, p_broken=p_broken, p_kept=instead.p_kept)
    if reason:
        # The run itself is in doubt, so more blocks of it would not help.
        pass
    elif judged.n < paired.MIN_BLOCKS:
        reason = f"fewer than {paired.MIN_BLOCKS} blocks"
        more = paired.MIN_BLOCKS - judged.n
    elif p_broken <= alpha:
        outcome = Outcome.BROKEN
    elif evidence.failed:
        reason = evidence.failed
    elif evidence.p_kept <= alpha:
        outcome = Outcome.KEPT
    else:
        more = _count_blocks_to_decide(evidence, alpha * evidence.wall_time_share / gates)
        reason = "the interval contains the limit"
        if not more:
            reason = f"the ratio is too near the limit to decide in {_MOST_BLOCKS} blocks"
    found = _estimate_detected_ratio(evidence, alpha * evidence.wall_time_share / gates)
    return replace(judged, outcome=outcome, reason=reason, blocks=more, finds=found)


def _estimate_detected_ratio(evidence: _GateEvidence, alpha: float) -> float | None:
    """Return the smallest ratio that such runs would detect, by Student's t from the interval's width."""
    n = evidence.judged.n
    # The smallest one-sided p is 2^-n, so fewer blocks detect nothing.
    if n < paired.MIN_BLOCKS or 2.0**-n > alpha:
        return None
    low, high = paired.signed_rank_interval(evidence.walsh)
    error = float(high - low) / 2 / float(student_t_quantile(n - 1, (1 + paired.NOMINAL) / 2))
    return find_smallest_detected_ratio(evidence.judged.gate, error, n - 1, alpha, evidence.stretch)


def _count_blocks_to_decide(evidence: _GateEvidence, alpha: float) -> int | None:
    """Return how many more blocks would probably decide the gate if the ratio stays as it is; None if too many."""
    judged = evidence.judged
    low, high = paired.signed_rank_interval(evidence.walsh, 1 - 2 * alpha)
    if not (math.isfinite(float(low)) and math.isfinite(float(high))):
        # Too few blocks for an interval at the level that this many gates need.
        low, high = paired.signed_rank_interval(evidence.walsh)
    away = abs(math.log(judged.ratio or 1.0) - math.log(judged.gate.limit)) - evidence.stretch
    needed = count_blocks_until_within(float(high - low) / 2, judged.n, away, most=_MOST_BLOCKS)
    if needed is None:
        return None
    # The smallest one-sided p is 2^-n, so fewer blocks decide nothing.
    smallest = math.ceil(math.log2(1 / alpha))
    return max(needed, smallest, judged.n + 1) - judged.n


def _list_paired_log_ratios(
    result: CellResult, base: CellResult, metric: str, workload: WorkloadResult, analysis: Analysis
) -> Array | None:
    blocks = analysis.list_blocks()

    def values(of: CellResult) -> Array:
        array = arrange_block_values(of, metric, blocks)
        return subtract_carry_over(array, workload.carried.get(metric), of.cell.id)

    return log_ratios(values(result), values(base))


# --- limits to ratios between runs, or over several runs ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredRatio:
    """A ratio with Student's interval on its logarithm (None: `unknown` is the reason), over `n` blocks or sessions.

    The interval is at the level of one of `claims` claims.
    """

    ratio: float
    ci: tuple[float, float] | None
    n: int
    freedom: int
    unknown: str = ""
    blocks_alone: tuple[float, float] | None = None
    claims: int = 1


@dataclass(frozen=True, slots=True)
class RatioClaim:
    """A gate and a cell that it is about; without `measured`, `missing` is the reason why there is no ratio."""

    gate: Gate
    cell: str
    metric: str
    measured: MeasuredRatio | None
    missing: str = "at least one run has no such ratio"


def judge_ratios(claims: Sequence[RatioClaim]) -> tuple[JudgedGate, ...]:
    """Judge every claim by its interval; claims of a broken limit share one error rate (Bonferroni)."""
    known = sum(claim.measured is not None and claim.measured.ci is not None for claim in claims)
    return tuple(_judge_ratio(claim, known) for claim in claims)


def _judge_ratio(claim: RatioClaim, claims: int) -> JudgedGate:
    gate, measured = claim.gate, claim.measured
    about = (gate, claim.cell, claim.metric)
    if measured is None:
        return JudgedGate(*about, Outcome.UNMEASURED, claim.missing)
    ratio, ci, freedom = measured.ratio, measured.ci, measured.freedom
    if ci is None:
        return JudgedGate(
            *about, Outcome.UNDECIDED, measured.unknown, ratio, measured.blocks_alone, measured.n
        )
    outcome = Outcome.UNDECIDED
    if _is_beyond(gate, _change_claims(measured, ci, claims)):
        outcome = Outcome.BROKEN
    elif _is_within(gate, _change_claims(measured, ci, 1)):
        outcome = Outcome.KEPT
    error = math.log(ci[1] / ci[0]) / 2 / float(student_t_quantile(freedom, 1 - _ONE_SIDE / measured.claims))
    size = find_smallest_detected_ratio(gate, error, freedom, _ONE_SIDE / claims)
    return JudgedGate(*about, outcome, "", ratio, ci, measured.n, finds=size)


def _is_beyond(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[0] > gate.limit if gate.above else ci[1] < gate.limit


def _is_within(gate: Gate, ci: tuple[float, float]) -> bool:
    return ci[1] < gate.limit if gate.above else ci[0] > gate.limit


def _change_claims(measured: MeasuredRatio, ci: tuple[float, float], claims: int) -> tuple[float, float]:
    """Return the ratio's interval `ci` at the level of one of another number of claims."""
    middle, freedom = math.log(measured.ratio), measured.freedom
    stretch = float(student_t_quantile(freedom, 1 - _ONE_SIDE / claims)) / float(
        student_t_quantile(freedom, 1 - _ONE_SIDE / measured.claims)
    )
    low, high = (math.exp(middle + (math.log(end) - middle) * stretch) for end in ci)
    return low, high

"""Estimates of how long a plan takes here, from earlier runs in the ledger, else from the plan's own figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from guestmark.core.errors import LedgerError
from guestmark.core.model import Cell, Plan, TrialStatus
from guestmark.core.units import format_count, format_duration
from guestmark.ledger.store import Ledger

# The number of newest runs that are used.
RUNS = 5
# Seconds to cut the power of one kind of disk, unless earlier runs show otherwise.
PROOF_S = 10.0


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """An estimate of a plan's duration.

    `block_s` and `longest_s` are seconds of a block and of its longest trial, `blocks` the number that the plan asks
    for. The costs of `measured` cells come from earlier runs here, those of `declared` ones from the plan, and
    no sum includes the `unknown` ones. Without a fixed number of blocks there may be up to `max_blocks`, and
    `time_limit_s` ends the run.
    """

    block_s: float
    longest_s: float
    blocks: int
    # Whether the number of blocks is fixed.
    exactly: bool
    measured: int
    declared: int
    unknown: int
    max_blocks: int
    time_limit_s: float
    # The plan's scale; its declared costs are for scale 1.
    scale: float = 1.0

    @property
    def blocks_in_time(self) -> int:
        """The largest number of blocks, none of which would end past the limit by more than one trial."""
        if self.exactly:
            return self.blocks
        if not self.block_s:
            return self.max_blocks
        return min(self.max_blocks, max(1, math.floor((self.time_limit_s + self.longest_s) / self.block_s)))

    @property
    def seconds(self) -> float:
        """The shortest duration of the whole run."""
        return self.block_s * min(self.blocks, self.blocks_in_time)

    @property
    def expectation(self) -> str:
        """The run's duration and number of blocks, as a sentence."""
        limit, blocks = format_duration(self.time_limit_s), format_count(self.blocks, "block")
        if not self.block_s:
            return self._describe_unknown(blocks, limit)
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

    def _describe_unknown(self, blocks: str, limit: str) -> str:
        if self.exactly:
            return f"no estimate yet for {blocks}"
        return f"no estimate yet; stops after {limit}"

    @property
    def origin(self) -> str:
        """The source of the figures, as a phrase."""
        sources = []
        if self.measured:
            sources.append("measured in earlier runs here")
        if self.declared:
            how = "as declared by the plan"
            if self.scale != 1:
                how += " for its full size"
            if self.measured:
                how = f"{format_count(self.declared, 'cell')} {how}"
            sources.append(how)
        if self.unknown:
            sources.append(f"{format_count(self.unknown, 'cell')} of unknown cost not counted")
        return ", ".join(sources)


@dataclass(frozen=True, slots=True)
class TrialCosts:
    """The known seconds of a trial, by cell id; `measured` of them are from earlier runs here.

    `proof_s` are the seconds to cut the power of one kind of disk.
    """

    trial_s: Mapping[str, float]
    measured: int
    proof_s: float

    def estimate(self, cell: Cell) -> float:
        """Return the seconds of a trial of `cell`; the average of the others if they are unknown."""
        known = self.trial_s.get(cell.id)
        if known is not None:
            return known
        return sum(self.trial_s.values()) / max(len(self.trial_s), 1)


def read_trial_costs(plan: Plan, ledger: Ledger | None, *, own_run: str | None = None) -> TrialCosts:
    """Return the costs of `plan`'s trials here, from earlier runs of that plan, else as it declares.

    `own_run` is the id of the run that is being measured, which is excluded, because the durations of its trials are
    compared with those known before. A trial takes `start` seconds whatever the plan's scale is, and the rest in
    proportion to it.
    """
    scale = plan.context.scale
    earlier: dict[str, dict[float, float]] = {}
    proof_s = None
    if ledger is not None:
        earlier, proof_s = _read_earlier_runs(plan, ledger, own_run)
    found: dict[str, float] = {}
    measured = 0
    for cell in plan.cells:
        start = _find_declared(plan.context.start, cell)
        by_scale = earlier.get(cell.null_of or cell.id, {})
        declared = _find_declared(plan.context.cost, cell)
        if by_scale:
            nearest = min(by_scale, key=lambda size: abs(math.log(size / scale)))
            found[cell.id] = _convert_scale(by_scale[nearest], nearest, scale, start)
            measured += 1
        elif declared is not None:
            found[cell.id] = _convert_scale(declared, 1.0, scale, start)
    if proof_s is None:
        proof_s = PROOF_S
    return TrialCosts(found, measured, proof_s)


def _convert_scale(seconds: float, measured_at: float, scale: float, start: float | None) -> float:
    """Return a trial's duration, converted to `scale`; unchanged if its start-up time is unknown."""
    if start is None or measured_at == scale:
        return seconds
    fixed = min(start, seconds)
    return fixed + (seconds - fixed) * scale / measured_at


def _find_declared(seconds: Mapping[str, float], cell: Cell) -> float | None:
    """Return the plan's own figure for the cell's platform, or for the innermost layer of it."""
    return seconds.get(str(cell.platform), seconds.get(cell.platform.inner.kind))


def describe_time(plan: Plan, ledger: Ledger | None, budget_s: float | None) -> str:
    """Return the duration of `plan` here, in words: the budget into which it fits, else an estimate and its source."""
    if budget_s is not None:
        within = f"within {format_duration(budget_s)}, at sizes that fit"
        if plan.context.scale != 1:
            within += f" ({plan.context.scale:g} of the plan's)"
        return within
    estimate = estimate_time(plan, ledger)
    if not estimate.origin:
        return estimate.expectation
    return f"{estimate.expectation} ({estimate.origin})"


def estimate_time(plan: Plan, ledger: Ledger | None) -> TimeEstimate:
    """Return the time that `plan` takes here; see `read_trial_costs`."""
    costs = read_trial_costs(plan, ledger)
    policy = plan.policy
    return TimeEstimate(
        sum(costs.trial_s.values()),
        max(costs.trial_s.values(), default=0.0),
        policy.blocks or policy.min_blocks,
        exactly=policy.blocks is not None,
        measured=costs.measured,
        declared=len(costs.trial_s) - costs.measured,
        unknown=len(plan.cells) - len(costs.trial_s),
        max_blocks=policy.max_blocks,
        time_limit_s=policy.time_limit_s,
        scale=plan.context.scale if not plan.context.start else 1.0,
    )


def _read_earlier_runs(
    plan: Plan, ledger: Ledger, own_run: str | None
) -> tuple[dict[str, dict[float, float]], float | None]:
    """Return mean seconds of a trial, by cell id and scale, and of a proof, in the newest runs of that plan's name."""
    durations: dict[str, dict[float, list[float]]] = {}
    proof_times: list[float] = []
    same_plan = []
    for overview in ledger.list_runs():
        if overview.name == plan.name and overview.trials and overview.id != own_run:
            same_plan.append(overview)
    for overview in same_plan[-RUNS:]:
        try:
            stored = ledger.load_run(overview.id)
        except LedgerError:
            # One damaged run must not keep the others from being used.
            continue
        scale = stored.plan.context.scale
        proof_times += stored.plan.context.proofs_took_s
        shared = {cell.id for cell in stored.plan.cells} & {cell.id for cell in plan.cells}
        for trial in stored.trials:
            if trial.status is TrialStatus.OK and trial.cell_id in shared:
                durations.setdefault(trial.cell_id, {}).setdefault(scale, []).append(trial.duration_s)
    means: dict[str, dict[float, float]] = {}
    for cell_id, by_scale in durations.items():
        means[cell_id] = {scale: fmean(series) for scale, series in by_scale.items()}
    if not proof_times:
        return means, None
    return means, fmean(proof_times)

"""How long a plan takes here: from earlier runs in the ledger, else from the plan's own figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestmark.core.model import Plan, TrialStatus
from guestmark.core.units import counted, format_duration

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

RUNS = 5  # how many of the newest runs to use


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
            return f"the time is unknown for {blocks}" + (
                "" if self.exactly else f" or more, at most {limit} and a block"
            )
        least, most = format_duration(self.seconds), format_duration(self.block_s * self.blocks_in_time)
        if self.exactly:
            return f"{least} for {blocks}"
        if self.blocks_in_time < self.blocks:
            return f"{least} for {self.blocks_in_time} of {blocks}: its time limit of {limit} ends it then"
        if self.unknown:
            return f"{least} or more for {blocks} or more, at most {limit} and a block"
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


def estimate(plan: Plan, ledger: "Ledger | None") -> Estimate:
    """The time `plan` takes here. Earlier runs count when plan, scale and cell are the same."""
    earlier = _earlier(plan, ledger) if ledger is not None else {}
    costs: Mapping[str, float] = plan.context.get("cost", {})
    known_s: list[float] = []
    measured, declared, unknown = 0, 0, 0
    for cell in plan.cells:
        known = earlier.get(cell.null_of or cell.id)
        cost = costs.get(str(cell.platform), costs.get(cell.platform.inner.kind))
        if known is not None:
            known_s.append(known)
            measured += 1
        elif cost is not None:
            known_s.append(cost)
            declared += 1
        else:
            unknown += 1
    policy = plan.policy
    return Estimate(
        sum(known_s),
        max(known_s, default=0.0),
        policy.blocks or policy.min_blocks,
        exactly=policy.blocks is not None,
        measured=measured,
        declared=declared,
        unknown=unknown,
        max_blocks=policy.max_blocks,
        time_limit_s=policy.time_limit_s,
        scale=plan.context.get("scale", 1.0),
    )


def _earlier(plan: Plan, ledger: "Ledger") -> dict[str, float]:
    """Mean seconds of a trial, by cell id, in the newest runs of a plan of that name at that scale."""
    durations: dict[str, list[float]] = {}
    mine = [run for run in ledger.runs() if run.name == plan.name and run.trials]
    for overview in mine[-RUNS:]:
        stored = ledger.load_run(overview.id)
        if stored.plan.context.get("scale", 1.0) != plan.context.get("scale", 1.0):
            continue
        same = {cell.id for cell in stored.plan.cells} & {cell.id for cell in plan.cells}
        for trial in stored.trials:
            if trial.status is TrialStatus.OK and trial.cell_id in same:
                durations.setdefault(trial.cell_id, []).append(trial.duration_s)
    return {name: sum(series) / len(series) for name, series in durations.items()}

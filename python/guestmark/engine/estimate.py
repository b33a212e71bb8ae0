"""How long a plan takes here: from earlier runs in the ledger, else from the plan's own figures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from guestmark.core.errors import LedgerError
from guestmark.core.model import Cell, Plan, TrialStatus
from guestmark.core.units import counted, format_duration

if TYPE_CHECKING:
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


def prices(plan: Plan, ledger: "Ledger | None") -> Prices:
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


def estimate(plan: Plan, ledger: "Ledger | None") -> Estimate:
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


def _earlier(plan: Plan, ledger: "Ledger") -> tuple[dict[str, dict[float, float]], float | None]:
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

"""What a ledger holds, as the rest of guestmark sees it. Importing this costs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from guestmark.core.model import Plan, Trial


class RunState(StrEnum):
    """State of a run. `KILLED` is never stored: it is `RUNNING` while no process claims the run."""

    CREATED = "created"  # stored, nothing executed yet
    RUNNING = "running"
    COMPLETE = "complete"  # precision or the number of blocks was reached
    STOPPED = "stopped at the time limit"
    INTERRUPTED = "interrupted"  # Ctrl-C, SIGTERM
    FAILED = "failed"  # nothing could be measured
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class UnusablePlatform:
    """A platform that the plan names and this host cannot start, or the id of a cell that can never be filled here
    although its platform can be started; there are no trials of either.
    """

    platform: str
    reason: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RunOverview:
    """One line of `guestmark runs`; times are Unix times in seconds."""

    id: str
    name: str
    created_at: float
    state: RunState
    cells: int
    blocks: int  # blocks that hold at least one trial
    trials: int
    failed: int
    label: str = ""  # of the first workload


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A whole run; `trials` are ordered by block and by position inside the block.

    `environments` holds one record for each time the run was started or resumed; `environment` is the first.
    """

    id: str
    plan: Plan
    environments: tuple[Mapping[str, Any], ...]
    seed: int
    state: RunState
    created_at: float  # Unix time, seconds
    trials: tuple[Trial, ...] = ()
    unusable: tuple[UnusablePlatform, ...] = ()

    @property
    def environment(self) -> Mapping[str, Any]:
        """The environment the run was created in; empty when none was recorded."""
        return self.environments[0] if self.environments else {}

    @property
    def blocks(self) -> int:
        """Number of blocks that hold at least one trial."""
        return len({trial.block for trial in self.trials})

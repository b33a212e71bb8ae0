"""Progress that a run reports while it is measured."""

from dataclasses import dataclass
from typing import Protocol

from guestmark.core.model import Cell, Plan, Trial
from guestmark.stats.analysis import Analysis
from guestmark.stats.stopping import EndForecast as EndForecast  # noqa: PLC0414 (read by the command line)
from guestmark.stats.stopping import TimeLeft as TimeLeft  # noqa: PLC0414 (the same)


@dataclass(frozen=True, slots=True)
class ProgressEstimate:
    """The progress of a run, with its expected end.

    `goal` is the expected number of blocks, `left` the time until then; both are None while unknown. `resting` are
    the ids of cells with answered questions, which the next block does not measure.
    """

    blocks: int
    goal: int | None
    left: TimeLeft | None
    analysis: Analysis  # of the primary metric only
    foreseen: EndForecast | None = None
    resting: frozenset[str] = frozenset()

    @property
    def is_goal_known(self) -> bool:
        """Whether the number of blocks is fixed, or its forecast is narrow."""
        return self.left is None or self.left.is_narrow

    @property
    def is_going_on(self) -> bool:
        """Whether the run may have something left to do."""
        return not self.goal or (self.left is not None and self.left.most_s > 0)


class Observer(Protocol):
    """Callbacks for events of a run, in this order; they must be quick, because they run between measurements."""

    # Whether `block_ended` needs an analysis even if the number of blocks is fixed.
    wants_estimates: bool

    def started(self, plan: Plan, blocks: int) -> None:
        """Note that the run starts, or continues after `blocks` blocks."""

    def trial_started(self, cell: Cell, block: int) -> None:
        """Note that a machine for `cell` is about to be started."""

    def phase(self, name: str) -> None:
        """Note the trial's current phase: booting, preparing, warming up, measuring."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Note that the trial is in the ledger."""

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """Note that all cells of a block are done."""

    def note(self, text: str) -> None:
        """Show a remark that the user should read."""


class SilentObserver:
    """An observer that does nothing."""

    wants_estimates = False

    def started(self, plan: Plan, blocks: int) -> None:
        """Do nothing."""

    def trial_started(self, cell: Cell, block: int) -> None:
        """Do nothing."""

    def phase(self, name: str) -> None:
        """Do nothing."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Do nothing."""

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

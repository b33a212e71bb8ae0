"""What an experiment reports while it runs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from guestmark.core.model import Cell, Plan, Trial

if TYPE_CHECKING:
    from guestmark.stats.analysis import Analysis
    from guestmark.stats.stopping import Forecast as Forecast  # noqa: PLC0414 (of `Estimate`)


@dataclass(frozen=True, slots=True)
class ProgressEstimate:
    """How far the run is. `goal` is the expected number of blocks, `left_s` the seconds until then; None: unknown."""

    blocks: int
    goal: int | None
    left_s: float | None
    analysis: "Analysis"  # of the primary metric only
    foreseen: "Forecast | None" = None


class Observer(Protocol):
    """Is told what happens, in this order; must be quick, because it runs between measurements."""

    wants_estimates: bool  # whether `block_ended` is worth an analysis when the number of blocks is fixed

    def started(self, plan: Plan, blocks: int) -> None:
        """The run starts, or continues after `blocks` blocks."""

    def trial_started(self, cell: Cell, block: int) -> None:
        """A machine for `cell` is about to be started."""

    def phase(self, name: str) -> None:
        """What the trial does now: booting, preparing, warming up, measuring."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """The trial is in the ledger."""

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """All cells of a block are done."""

    def note(self, text: str) -> None:
        """A remark the user should read."""


class SilentObserver:
    """An observer that ignores everything."""

    wants_estimates = False

    def started(self, plan: Plan, blocks: int) -> None:
        """Nothing."""

    def trial_started(self, cell: Cell, block: int) -> None:
        """Nothing."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """Nothing."""

    def block_ended(self, estimate: ProgressEstimate) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

"""Progress without a terminal: one plain line on standard error for each thing that ended."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from guestmark.core.model import Cell, Plan, Trial, TrialStatus
from guestmark.core.units import format_duration

if TYPE_CHECKING:
    from guestmark.experiment.progress import Estimate
    from guestmark.stats.analysis import CellResult


class Lines:
    """An observer that prints plain lines."""

    wants_estimates = True

    def __init__(self) -> None:
        self._metric = ""
        self._unit = ""

    def started(self, plan: Plan, blocks: int) -> None:
        """How much there is to do."""
        self._metric, self._unit = plan.metrics[0].name, plan.metrics[0].unit
        goal = f"{plan.policy.blocks}" if plan.policy.blocks else f"at least {plan.policy.min_blocks}"
        resumed = f", {blocks} done before" if blocks else ""
        _line(f"{len(plan.cells)} cells, {goal} blocks{resumed}, seed {plan.policy.seed}")

    def trial_started(self, cell: Cell, block: int) -> None:
        """Nothing: the line comes when the trial ends."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def trial_ended(self, cell: Cell, trial: Trial) -> None:
        """The trial's value of the primary metric, or why it failed."""
        if trial.status is TrialStatus.FAILED:
            _line(f"block {trial.block + 1}: {cell.id} failed: {trial.reason}")
            return
        values = {one.metric.name: one.value for one in trial.measurements}
        _line(f"block {trial.block + 1}: {cell.id}: {self._value(values.get(self._metric))}")

    def _value(self, value: float | None) -> str:
        if value is None:
            return "done"
        from guestmark.report.figures import table_unit

        unit = table_unit(self._unit, [value])
        return f"{self._metric.removesuffix('_s')} {value / unit.size:.4g} {unit.name}".rstrip()

    def block_ended(self, estimate: Estimate) -> None:
        """The estimates so far and the time left."""
        goal = f" of {estimate.goal}" if estimate.goal else ""
        left = f", {format_duration(estimate.left_s)} left" if estimate.left_s else ""
        shown = [text for text in map(self._estimate, estimate.analysis.cells) if text]
        _line(f"{estimate.blocks}{goal} blocks done{left}" + (": " if shown else "") + "; ".join(shown))

    def note(self, text: str) -> None:
        """The remark."""
        _line(text)

    def _estimate(self, result: CellResult) -> str:
        from guestmark.report import figures

        comparison = result.comparison.get(self._metric)
        if comparison is None or comparison.ratio is None:
            return ""
        return f"{result.cell.id} {figures.ratio(comparison.ratio, comparison.ci)}"


def _line(text: str) -> None:
    # Nobody reads it any more: no reason to stop measuring.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"guestmark: {text}\n")
        sys.stderr.flush()

"""What the workload does on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.core.findings import Findings
from guestmark.core.model import Cell, Measurement, Plan
from guestmark.plan.schema import Strict
from guestmark_walk import FILES, WALL

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class WalkParams(Strict):
    """The parameters, as a plan has them under `params`."""

    directory: str = "/usr/share"


class Walk:
    """Walks the tree once for each iteration."""

    def __init__(self, plan: Plan, cell: Cell) -> None:
        self.facts = Findings()
        self.warnings: list[str] = []
        self._directory: str = cell.workload.params["directory"]
        self._limit_s = plan.policy.trial_limit_s

    def prepare(self, machine: Machine) -> None:
        """Nothing."""

    def run(self, machine: Machine) -> list[Measurement]:
        """One walk."""
        result = machine.agent.exec(
            ["find", self._directory, "-printf", "."], timeout_s=self._limit_s, output_limit=8 << 20
        )
        if result.status != 0:
            raise WorkloadError(f"find {self._directory} ended with status {result.status}")
        values = ((WALL, result.wall_s), (FILES, float(len(result.stdout))))
        return [Measurement(metric, value, (value,)) for metric, value in values]

    def cleanup(self, machine: Machine) -> None:
        """Nothing."""

"""What the workload does on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Measurement
from guestmark.plan.schema import Strict
from guestmark.workloads.base import Workload
from guestmark_walk import FILES, WALL

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine


class WalkParams(Strict):
    """The parameters, as a plan has them under `params`."""

    directory: str = "/usr/share"


class Walk(Workload[WalkParams]):
    """Walks the tree once for each iteration."""

    PARAMS = WalkParams

    def run(self, machine: Machine) -> list[Measurement]:
        """One walk."""
        directory = self.params.directory
        result = machine.agent.exec(
            ["find", directory, "-printf", "."], timeout_s=self.limit_s, output_limit=8 << 20
        )
        if result.status != 0:
            raise WorkloadError(f"find {directory} ended with status {result.status}")
        values = ((WALL, result.wall_s), (FILES, float(len(result.stdout))))
        return [Measurement(metric, value, (value,)) for metric, value in values]

"""The workload `walk`: `find` looks at every file of a directory tree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from guestmark.core.errors import WorkloadError
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.params import Params, param
from guestmark.core.platform_kind import Program
from guestmark.workloads.base import Workload

if TYPE_CHECKING:
    from guestmark.platforms.base import Machine

WALL = Metric("wall_s", "s")
FILES = Metric("files", "", Better.HIGHER)


class WalkParams(Params, frozen=True, kw_only=True):
    """The parameters, as a plan has them under `params`."""

    directory: Annotated[str, param("the tree that is walked", "path")] = "/usr/share"


class Walk(Workload[WalkParams]):
    """Walks the tree once for each iteration."""

    name = "walk"
    help = "how fast a directory tree is walked"
    measures = (WALL, FILES)
    programs = (Program("find", "findutils"),)

    @classmethod
    def describe_params(cls, params: WalkParams) -> str:
        """Returns what tables call it."""
        return f"walk through {params.directory}"

    def run(self, machine: Machine) -> list[Measurement]:
        """Walks once. Raises `WorkloadError` when `find` fails."""
        directory = self.params.directory
        result = machine.agent.exec(
            ["find", directory, "-printf", "."], timeout_s=self.limit_s, output_limit=8 << 20
        )
        if result.status != 0:
            raise WorkloadError(f"find {directory} ended with status {result.status}")
        values = ((WALL, result.wall_s), (FILES, float(len(result.stdout))))
        return [Measurement(metric, value, (value,)) for metric, value in values]

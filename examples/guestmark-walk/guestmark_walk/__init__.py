"""The workload `walk`: `find` looks at every file of a directory tree."""

from collections.abc import Mapping
from typing import Any

from guestmark.core.metric import Better, Metric
from guestmark.core.platform_kind import Program
from guestmark.core.workload_kind import WorkloadKind

WALL = Metric("wall_s", "s")
FILES = Metric("files", "", Better.HIGHER)


def _label(params: Mapping[str, Any]) -> str:
    return f"walk through {params['directory']}"


WORKLOADS = (
    WorkloadKind(
        "walk",
        "how fast a directory tree is walked",
        params="guestmark_walk.workload:WalkParams",
        run="guestmark_walk.workload:Walk",
        metrics=lambda _params: (WALL, FILES),
        label=_label,
        programs=(Program("find", "findutils"),),
    ),
)

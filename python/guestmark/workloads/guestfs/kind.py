"""The workload `guestfs-api` in plans: a session of several hundred libguestfs calls."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from guestmark.core.model import Better, Metric
from guestmark.core.workload_kind import WorkloadKind, register, takes_only
from guestmark.plan.schema import Strict
from guestmark.workloads.common.metrics import LAUNCH

WALL = Metric("wall_s", "s")  # of the session, between launch and shutdown
CALLS = Metric("rate", "calls/s", Better.HIGHER)
METRICS = (WALL, CALLS, LAUNCH)


class GuestfsApiParams(Strict):
    """A session makes a filesystem and then, `rounds` times, a directory with files that it works on and removes."""

    rounds: Annotated[int, Field(ge=1, le=10_000)] = 16


def _label(params: Mapping[str, Any]) -> str:
    from guestmark.workloads.guestfs.session import number_of_calls

    return f"libguestfs session of {number_of_calls(params['rounds'])} calls"


GUESTFS_API = register(
    WorkloadKind(
        "guestfs-api",
        "several hundred calls of libguestfs's API through the real guestfish, its launch apart",
        lambda: GuestfsApiParams,
        lambda _params: METRICS,
        _label,
        takes_only("memory", "smp"),
    )
)

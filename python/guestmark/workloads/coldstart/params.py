"""The workload `coldstart` in plans: what is started, and how often."""

from typing import Any

from guestmark.core.units import parse_duration, parse_size
from guestmark.plan.schema import Strict, param
from guestmark.workloads.coldstart.metrics import Launch

_LARGEST = 1 << 40


class ColdstartParams(Strict):
    """In each trial as many starts as fit into `time`, by how long the first one took, at most `starts`.

    `touch` is the working set that each machine touches once; `launch` is `new`, `fork` or `resumed`.
    """

    launch: str = param(
        Launch.NEW.value, "how machines start", "`new`, `fork` or `resumed`", pattern="^(new|fork|resumed)$"
    )
    touch: str = param("32M", "the working set that each touches", "size")
    starts: int = param(40, "starts of a trial, at most", ge=1, le=10_000)
    time: str = param("2s", "starts of a trial end after this", "duration")

    def to_params(self) -> dict[str, Any]:
        """In bytes and seconds. Raises `ValueError` for what cannot be."""
        touch, time_s = parse_size(self.touch), parse_duration(self.time)
        if not 0 < touch <= _LARGEST:
            raise ValueError(f"touch = {self.touch!r} is not between one byte and 1 TiB")
        if not time_s > 0:
            raise ValueError(f"time = {self.time!r} is not above 0")
        return {"launch": self.launch, "touch": touch, "starts": self.starts, "time_s": time_s}

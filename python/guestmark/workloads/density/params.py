"""The workload `density` in plans: what all machines run, and how much memory each of them uses."""

from typing import Any

from guestmark.core.units import parse_duration, parse_size
from guestmark.plan.schema import Strict, param
from guestmark.workloads.density.metrics import Crowd
from guestmark.workloads.exec import workload

_COUNT = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"


class DensityParams(Strict):
    """`command` runs again and again in every machine for `time`; each has touched `touch` bytes of memory before.

    `idle` is how long idle machines are watched.
    """

    command: list[str] = param(["sh", "-c", _COUNT], "what each machine runs", "words")
    touch: str = param("16M", "the memory that each touches", "size")
    idle: str = param("1s", "how long all are idle", "duration")
    time: str = param("2s", "how long all run the command", "duration")

    def to_params(self) -> dict[str, Any]:
        """In bytes and seconds. Raises `ValueError` for what cannot be."""
        if not self.command or not self.command[0] or any("\0" in word for word in self.command):
            raise ValueError("an empty name or a NUL character cannot be run")
        touch, idle_s, time_s = parse_size(self.touch), parse_duration(self.idle), parse_duration(self.time)
        if not (touch > 0 and idle_s > 0 and time_s > 0):
            raise ValueError("touch, idle and time are above 0")
        return {"command": self.command, "touch": touch, "idle_s": idle_s, "time_s": time_s}


def of_command(params: Crowd) -> tuple[str, ...]:
    """The packages with the program that all run, as of `exec`."""
    return workload.of_program(params.command[0])

"""The workloads `boot` and `guestfs-run` in plans: how long a guest takes to start and to go, by phase."""

from typing import Any

from guestmark.plan.schema import Strict, param
from guestmark.workloads.boot.metrics import Booted
from guestmark.workloads.exec import workload


class BootParams(Strict):
    """`command` runs between ready and power-off; `initcalls` has the kernel say what its start consists of."""

    command: list[str] = param([], "runs between ready and power-off", "words")
    initcalls: bool = param(False, "trace the kernel's initcalls")

    def to_params(self) -> dict[str, Any]:
        """As the workload and, for `watch`, the platform get them. Raises `ValueError` for no command at all."""
        if any("\0" in word for word in self.command) or self.command[:1] == [""]:
            raise ValueError("an empty name or a NUL character cannot be run")
        work = {"command": self.command} if self.command else {}
        return {"watch": {"initcalls": self.initcalls}, **work}


def of_command(params: Booted) -> tuple[str, ...]:
    """As of `exec`; none without a command."""
    return workload.of_program(params.command[0]) if params.command else ()

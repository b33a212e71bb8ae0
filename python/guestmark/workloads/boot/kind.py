"""The workloads `boot` and `guestfs-run` in plans: how long a guest takes to start and to go, by phase."""

import shlex
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from guestmark.core.workload_kind import WorkloadKind, register, takes_only
from guestmark.plan.schema import Strict
from guestmark.workloads.boot.metrics import ALL


class BootParams(Strict):
    """`command` runs between ready and power-off; `initcalls` has the kernel say what its start consists of."""

    command: list[str] = Field(default_factory=list)
    initcalls: bool = False

    def to_params(self) -> dict[str, Any]:
        """As the workload and, for `watch`, the platform get them. Raises `ValueError` for no command at all."""
        if any("\0" in word for word in self.command) or self.command[:1] == [""]:
            raise ValueError("an empty name or a NUL character cannot be run")
        work = {"command": self.command} if self.command else {}
        return {"watch": {"initcalls": self.initcalls}, **work}


class GuestfsRunParams(Strict):
    """`phases`: whether each trial holds a second launch, with libguestfs's messages, for them."""

    phases: bool = True


def _label(params: Mapping[str, Any]) -> str:
    work = f" with {shlex.join(params['command'])}" if "command" in params else ""
    return f"boot{work}{', initcalls traced' if params['watch']['initcalls'] else ''}"


BOOT = register(
    WorkloadKind(
        "boot",
        "the start and the end of a guest, phase by phase",
        lambda: BootParams,
        lambda _params: ALL,
        _label,
    )
)
GUESTFS_RUN = register(
    WorkloadKind(
        "guestfs-run",
        "the start and the end of libguestfs's guest: guestfish ... run",
        lambda: GuestfsRunParams,
        lambda _params: ALL,
        lambda _params: "guestfish run",
        takes_only("memory", "smp"),
    )
)

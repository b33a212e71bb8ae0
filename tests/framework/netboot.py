"""Runs one netboot trial without an experiment around it."""

import contextlib
from collections.abc import Iterator
from typing import Any

from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.workloads import netboot
from guestmark.workloads.netboot.machine import NetbootMachine
from guestmark.workloads.netboot.trial import NetbootTrial
from tests.framework.known import a
from tests.framework.processes import wait_until


def workload(
    size: str = "2M",
    files: int = 1,
    limit_s: float = 120.0,
    port: int = 0,
    certificate: str | None = None,
    *,
    kernel: bool = False,
    **factors: str,
) -> NetbootTrial:
    """Return a trial that fetches `files` files of `size` through an e1000 card, unless factors say otherwise."""
    given = {"size": size, "files": files, "port": port, "kernel": kernel}
    if certificate is not None:
        given["certificate"] = certificate
    cell = Cell(
        "cell",
        WorkloadSpec("netboot", netboot.NetbootWorkload.check_params(given)),
        PlatformSpec.read("tcg"),
        {"nic": "e1000", "console": "serial", **factors},
        baseline=True,
    )
    plan = Plan("test", (cell,), Policy(blocks=1, warmup=0, iterations=1, trial_limit_s=limit_s), netboot.ALL)
    return NetbootTrial(plan, cell)


@contextlib.contextmanager
def prepared(**given: Any) -> Iterator[tuple[NetbootTrial, NetbootMachine]]:
    """Yield a trial whose machine has booted, and the machine."""
    booting = workload(**given)
    with booting.machine(registry.get_platform("tcg")) as machine:
        booting.prepare(machine)
        yield booting, a(NetbootMachine, machine)


def growing(machine: NetbootMachine, name: str, size: int) -> None:
    """Wait until a capture is larger than `size` bytes."""
    capture = machine.scratch / name
    assert wait_until(lambda: capture.exists() and capture.stat().st_size > size, 60), "it did not grow"

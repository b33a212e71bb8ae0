"""One netboot trial without an experiment around it, for tests."""

import contextlib

from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.workloads.netboot import metrics
from guestmark.workloads.netboot.workload import NetbootWorkload
from processes import wait_until


def workload(size="2M", files=1, limit_s=120.0, port=0, **factors):
    spec = WorkloadSpec("netboot", {"size": size, "files": files, "port": port})
    cell = Cell("cell", spec, "tcg", {"nic": "e1000", "console": "serial", **factors}, baseline=True)
    plan = Plan("test", (cell,), Policy(blocks=1, warmup=0, iterations=1, trial_limit_s=limit_s), metrics.ALL)
    return NetbootWorkload(plan, cell)


@contextlib.contextmanager
def prepared(**given):
    """A workload whose machine has booted, and the machine."""
    one = workload(**given)
    with one.machine(None) as machine:
        one.prepare(machine)
        yield one, machine


def growing(machine, name, size):
    """Waits until a capture has `size` bytes."""
    capture = machine.scratch / name
    assert wait_until(lambda: capture.exists() and capture.stat().st_size > size, 60), "it did not grow"

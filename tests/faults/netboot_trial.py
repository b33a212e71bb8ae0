"""One netboot trial without an experiment around it, for tests."""

import contextlib
import time
from pathlib import Path

from guestmark.netboot import metrics
from guestmark.netboot.workload import NetbootWorkload
from guestmark.plan.model import Cell, Plan, Policy, WorkloadSpec


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


def gone(pid, within_s=5.0):
    """Whether the process ends in time; a zombie has ended."""
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def growing(machine, name, size):
    """Waits until a capture has `size` bytes."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            if (machine.scratch / name).stat().st_size > size:
                return
        time.sleep(0.01)
    raise AssertionError("the capture did not grow")

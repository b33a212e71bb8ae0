"""One trial of a database, in steps, as an experiment takes them."""

import contextlib
import os

import pytest

from guestmark.core import workload_kind as workload_kinds
from guestmark.core.errors import PlatformUnusableError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.platforms import registry
from guestmark.workloads.oltp.databases.kinds import KINDS
from guestmark.workloads.oltp.workload import OltpWorkload

SMALL = {"tables": 1, "rows": 200, "time": "1", "log": "8M", "buffer": "16M"}


def installed(server):
    try:
        KINDS[server]()
    except PlatformUnusableError:
        return False
    return True


SERVERS = [
    pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason=f"{name} is not installed"))
    for name in ("mariadb", "postgresql")
]


@contextlib.contextmanager
def started(platform="host", factors=None, **given):
    """A machine with a workload that is not prepared yet."""
    params = workload_kinds.get("oltp").params({**SMALL, **given})
    cell = Cell(platform, WorkloadSpec("oltp", params), platform, factors or {})
    context = {"uid": os.getuid(), "gid": os.getgid()}
    workload = OltpWorkload(Plan("test", (cell,), Policy(trial_limit_s=120.0), (), context), cell)
    with workload.machine(registry.get(platform)) as machine:
        yield machine, workload

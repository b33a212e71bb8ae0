"""One trial of a database, in steps, as an experiment takes them."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from guestmark.core.errors import PlatformUnusableError
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.base import Machine
from guestmark.workloads.oltp.databases.kinds import KINDS
from guestmark.workloads.oltp.workload import OltpWorkload
from tests.framework.cells import plan_of, spec

SMALL = {"tables": 1, "rows": 200, "time": "1", "log": "8M", "buffer": "16M"}


def installed(server: str) -> bool:
    """Whether the server's programs are there."""
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
def started(
    platform: str = "host", factors: Mapping[str, str] | None = None, **given: Any
) -> Iterator[tuple[Machine, OltpWorkload]]:
    """A machine with a workload that is not prepared yet."""
    cell = Cell(platform, spec("oltp", **{**SMALL, **given}), PlatformSpec.read(platform), factors or {})
    workload = OltpWorkload(plan_of(cell, context={"uid": os.getuid(), "gid": os.getgid()}), cell)
    with workload.machine(registry.get(platform)) as machine:
        yield machine, workload

"""Starts machines without an experiment around them."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from guestmark.core.context import Context
from guestmark.core.errors import GuestmarkError
from guestmark.core.model import Cell
from guestmark.platforms import registry
from guestmark.platforms.base import Machine
from guestmark.workloads import base
from guestmark.workloads.base import Workload
from tests.framework.cells import cell, plan_of


def start(platform: str, **factors: str) -> AbstractContextManager[Machine]:
    """Return a context with a fresh guest, started as for a trial."""
    return start_cell(cell(platform, **factors))


def start_cell(trial: Cell) -> AbstractContextManager[Machine]:
    """Return a context with a fresh machine for that cell."""
    return registry.get_platform(trial.platform).start(trial)


@contextlib.contextmanager
def started(trial: Cell, limit_s: float = 120.0) -> Iterator[tuple[Machine, Workload[Any]]]:
    """Yield the cell's machine and its workload, which is not prepared yet.

    The workload is cleaned up at the end; a failure of that is ignored.
    """
    caller = Context(env={"PATH": os.environ["PATH"]}, cwd="/")
    workload = base.create_trial(plan_of(trial, limit_s=limit_s, context=caller), trial)
    platform = registry.get_platform(base.choose_started_cell(trial).platform)
    with base.start_machine(workload, platform, trial) as machine:
        try:
            yield machine, workload
        finally:
            with contextlib.suppress(GuestmarkError):
                workload.cleanup(machine)


@contextlib.contextmanager
def prepared(trial: Cell, limit_s: float = 120.0) -> Iterator[tuple[Machine, Workload[Any]]]:
    """Yield the cell's machine and its prepared workload.

    Unlike with `started`, a clean-up that fails also fails the test.
    """
    workload = base.create_trial(plan_of(trial, limit_s=limit_s), trial)
    platform = registry.get_platform(base.choose_started_cell(trial).platform)
    with base.start_machine(workload, platform, trial) as machine:
        try:
            workload.prepare(machine)
            yield machine, workload
        finally:
            workload.cleanup(machine)

"""Finds runs and ledgers by the names that a command line gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from guestmark.core.errors import UsageError
from guestmark.ledger import find_default_ledger, open_ledger

if TYPE_CHECKING:
    from guestmark.ledger.model import StoredRun
    from guestmark.ledger.store import Ledger


@contextmanager
def open_ledger_if_any(path: str | None) -> Iterator[Ledger | None]:
    """Opens the ledger to look at earlier runs; None if there is none yet, so that looking does not create one."""
    # Only a file can be missing; a server reports its own errors.
    file = find_default_ledger() if path is None else path
    if "://" not in str(file) and not os.path.exists(file):
        yield None
        return
    with open_ledger(path, writable=False) as ledger:
        yield ledger


def load_distinct_runs(ledger: Ledger, names: Sequence[str]) -> list[StoredRun]:
    """Loads the runs of these names. Raises `UsageError` if one is named twice."""
    ids = list(map(ledger.resolve_run, names))
    refuse_repeated_runs(ids)
    return list(map(ledger.load_run, ids))


def refuse_repeated_runs(ids: Sequence[str]) -> None:
    """Raises `UsageError` if an id occurs twice: a run never differs from itself, which could be taken for a result."""
    for run_id in ids:
        if ids.count(run_id) > 1:
            raise UsageError(f"run {run_id} is given twice", hint="name another; guestmark runs lists them")

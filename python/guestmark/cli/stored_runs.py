"""Finds runs and ledgers by the names that a command line gives them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from guestmark.ledger import find_default_ledger, open_ledger

if TYPE_CHECKING:
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

"""Runs and trials, stored as soon as they exist.

`open_ledger` is the entry point; SQLAlchemy is imported only when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from guestmark.core.home import find_default_ledger
from guestmark.ledger.model import RunOverview, StoredRun

if TYPE_CHECKING:
    from pathlib import Path

    from guestmark.ledger.store import Ledger

__all__ = ["RunOverview", "StoredRun", "find_default_ledger", "open_ledger"]

BUSY_TIMEOUT_S = 10.0


def open_ledger(
    where: str | Path | None = None, *, writable: bool = True, busy_timeout_s: float = BUSY_TIMEOUT_S
) -> Ledger:
    """Open the ledger at `where` (a path, an SQLAlchemy URL, or None for `find_default_ledger()`); a context manager.

    A ledger that does not exist is created, with its directory, readable by its owner alone. With `writable=False`
    nothing is created or changed, and a ledger on read-only storage can be read.

    Raises `LedgerError` if it cannot be opened or is not a guestmark ledger.
    """
    from guestmark.ledger.connect import connect_ledger
    from guestmark.ledger.store import Ledger

    return Ledger(connect_ledger(where, writable=writable, busy_timeout_s=busy_timeout_s))

"""Locates the stored logs of proofs. Every run imports this module, so it imports nothing of proofs itself."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from guestmark.core.home import find_default_ledger

_beside: ContextVar[Path | None] = ContextVar("_beside", default=None)


def locate_evidence(ledger: Path | None = None) -> Path:
    """Return the directory of stored logs: beside that ledger, else the ledger in use, else the default ledger."""
    return (ledger or _beside.get() or find_default_ledger()).parent / "powercut"


@contextlib.contextmanager
def keep_beside(ledger: Path | None) -> Iterator[None]:
    """Store logs beside that ledger while the context lasts; for None, beside the default ledger."""
    token = _beside.set(ledger)
    try:
        yield
    finally:
        _beside.reset(token)

"""Locates kept logs of proofs. Every run needs this; only runs that prove something import more."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from guestmark.core.home import find_default_ledger

_beside: ContextVar[Path | None] = ContextVar("_beside", default=None)


def locate_evidence(ledger: Path | None = None) -> Path:
    """Return the directory of kept logs: beside that ledger, else the one in use, else the default one."""
    return (ledger or _beside.get() or find_default_ledger()).parent / "powercut"


@contextlib.contextmanager
def keep_beside(ledger: Path | None) -> Iterator[None]:
    """Keep logs beside that ledger while the context lasts; beside the default ledger if it is not a file."""
    token = _beside.set(ledger)
    try:
        yield
    finally:
        _beside.reset(token)

"""Declares `guestmark vacuum`."""

from dataclasses import dataclass

from guestmark.cli import options


@dataclass(frozen=True, kw_only=True)
class Options:
    """Delete removed runs for good, and free their disk space."""

    ledger: options.Ledger = None

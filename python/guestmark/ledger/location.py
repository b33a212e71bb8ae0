"""Where the ledger is. Importing this costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def default_path() -> Path:
    """The default place of the ledger: `$XDG_DATA_HOME/guestmark/ledger.sqlite`."""
    import os
    from pathlib import Path

    from guestmark.core.home import home

    base = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is invalid and to be ignored (XDG Base Directory Specification).
    data = Path(base) if base.startswith("/") else home() / ".local" / "share"
    return data / "guestmark" / "ledger.sqlite"

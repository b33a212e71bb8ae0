"""The user's own directory, for whoever has none, too, and the ledger in it. Importing this costs nothing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


LATEST = "last"  # what commands call the newest run of a ledger


def home() -> Path:
    """`$HOME` if it is a path, else what the system's list of users says, else `/`; it need not exist."""
    from pathlib import Path

    said = os.environ.get("HOME", "")
    if said.startswith("/"):
        return Path(said)
    import pwd

    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a user that only has a number, as in containers
        listed = "/"
    return Path(listed if listed.startswith("/") else "/")


def default_path() -> Path:
    """The default place of the ledger: `$XDG_DATA_HOME/guestmark/ledger.sqlite`."""
    import os
    from pathlib import Path

    from guestmark.core.home import home

    base = os.environ.get("XDG_DATA_HOME", "")
    # A relative XDG_DATA_HOME is invalid and to be ignored (XDG Base Directory Specification).
    data = Path(base) if base.startswith("/") else home() / ".local" / "share"
    return data / "guestmark" / "ledger.sqlite"

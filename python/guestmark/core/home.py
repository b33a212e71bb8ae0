"""The user's own directory, for whoever has none, too. Importing this costs nothing."""

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

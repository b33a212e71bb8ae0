"""Finds the user's directories, even for users without a passwd entry. Cheap to import."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


# The environment variable that names another ledger.
LEDGER = "GUESTMARK_LEDGER"
# The name of a ledger's newest run on the command line.
LATEST = "last"


def find_home_directory() -> Path:
    """Return `$HOME` if it is an absolute path, else the home directory in passwd, else `/`; it may not exist."""
    from pathlib import Path

    said = os.environ.get("HOME", "")
    if said.startswith("/"):
        return Path(said)
    import pwd

    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        # The user id has no passwd entry, as is common in containers.
        listed = "/"
    if not listed.startswith("/"):
        return Path("/")
    return Path(listed)


def find_default_ledger() -> Path:
    """Return the default path of the ledger: `$XDG_DATA_HOME/guestmark/ledger.sqlite`."""
    return _find_xdg_directory("XDG_DATA_HOME", ".local/share") / "ledger.sqlite"


def find_state_directory() -> Path:
    """Return the directory for keys, campaigns and crash reports: `$XDG_STATE_HOME/guestmark`. It may not exist."""
    return _find_xdg_directory("XDG_STATE_HOME", ".local/state")


def find_config_directory() -> Path:
    """Return the directory for files that users write for guestmark: `$XDG_CONFIG_HOME/guestmark`. It may not exist."""
    return _find_xdg_directory("XDG_CONFIG_HOME", ".config")


def find_cache_home() -> Path:
    """Return the directory for files that can be reproduced: `$XDG_CACHE_HOME/guestmark`. It may not exist."""
    return _find_xdg_directory("XDG_CACHE_HOME", ".cache")


def _find_xdg_directory(variable: str, usual: str) -> Path:
    from pathlib import Path

    base = os.environ.get(variable, "")
    # A relative path is invalid there and to be ignored (XDG Base Directory Specification).
    parent = Path(base) if base.startswith("/") else find_home_directory() / usual
    return parent / "guestmark"

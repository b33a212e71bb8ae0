"""Where guestmark keeps what it can make again (XDG cache) and what lives only as long as a machine (scratch)."""

import os
from pathlib import Path


def cache_directory() -> Path:
    """`$XDG_CACHE_HOME/guestmark` (default `~/.cache/guestmark`); made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "guestmark"
    path.mkdir(parents=True, exist_ok=True)
    return path


def scratch_parent() -> Path:
    """Directory for machines' scratch directories: the session's runtime directory, else the temporary one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.access(runtime, os.W_OK):
        return Path(runtime)
    return Path(os.environ.get("TMPDIR") or "/tmp")

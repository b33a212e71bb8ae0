"""guestmark: what virtualization costs a user's own workload, measured so that it is hard to fool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guestmark.library import Compared, Moved, Ratio, Result, exec, load, read_document, run  # noqa: A004

__all__ = ["Compared", "Moved", "Ratio", "Result", "__version__", "exec", "load", "read_document", "run"]
__version__ = "0.3.0"


def __getattr__(name: str) -> Any:
    """The library's functions, imported when they are first used: the command line starts without them."""
    if name in __all__:
        from guestmark import library

        return getattr(library, name)
    raise AttributeError(f"module 'guestmark' has no attribute {name!r}")

"""“Unknown X; did you mean Y?”, in the same words for platforms, factors, commands and everything else with a name."""

import difflib
from collections.abc import Iterable

from guestmark.core.errors import UsageError


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name; suggests the nearest known name, then lists all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}", hint=f"{nearest}known: {', '.join(names)}")

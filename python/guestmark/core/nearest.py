"""“Unknown X; did you mean Y?”, the same for platforms, factors, verbs and whatever else has a name."""

import difflib
from collections.abc import Iterable

from guestmark.core.errors import UsageError


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name: the nearest known one first, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}", hint=f"{nearest}known: {', '.join(names)}")

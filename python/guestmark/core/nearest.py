"""“Unknown X; did you mean Y?”, in the same words for platforms, factors, commands and everything else with a name."""

import difflib
import re
from collections.abc import Iterable

from guestmark.core.errors import UsageError


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for an unknown name; suggests the nearest known name, then lists all of them.

    A known name may be a form with a part that is to be filled in, `ssh:DEST`.
    """
    names = sorted(known)
    # Of a form such as `tcg[@ARCH]` the name itself.
    bare = {re.split(r"[\[@:]", form, maxsplit=1)[0]: form for form in names}
    close = difflib.get_close_matches(name.lower(), bare, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}", hint=f"{nearest}known: {', '.join(names)}")

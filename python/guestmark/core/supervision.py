"""Ends programs on the host when this process ends, however it ends, before what they write to is removed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from guestmark.core.keeper import keeper
from guestmark.core.own_program import find_agent_binary


@dataclass(frozen=True, slots=True)
class Supervision:
    """The beginning of a command that ends with this process, and the keyword arguments of `subprocess` for it."""

    before: tuple[str, ...]
    options: dict[str, Any]


@contextlib.contextmanager
def start_supervision() -> Iterator[Supervision]:
    """Yield a supervision for any number of commands; those still running at the end of the block are ended."""
    handles, (lifeline, ours) = keeper().handles, os.pipe()
    words = ("supervise", f"--lifeline={lifeline}", *(f"--hold={handle}" for handle in handles), "--")
    try:
        yield Supervision((str(find_agent_binary()), *words), {"pass_fds": (lifeline, *handles)})
    finally:
        os.close(lifeline)
        os.close(ours)

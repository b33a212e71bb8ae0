"""The processes of a hypervisor on the host."""

import contextlib
from pathlib import Path


def children(pid: int) -> list[int]:
    """Process ids of what `pid` started and is still there, whichever of its threads did; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Process ids of everything that `pid` started and what that started; empty when it is gone."""
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found

"""The processes of a hypervisor on the host."""

import contextlib
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Process ids of everything that `pid` started and what that started; empty when it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found

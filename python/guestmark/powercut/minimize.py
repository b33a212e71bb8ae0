"""Delta debugging (Zeller, Hildebrandt 2002): finds a minimal subset that still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def find_minimal_failing_subset(every: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a minimal failing subset of a failing set: without any one of its items it passes (algorithm `ddmin`)."""
    left, parts = list(every), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[start : start + size] for start in range(0, len(left), size)]
        without = [[each for other in chunks if other is not chunk for each in other] for chunk in chunks]
        # A single chunk that fails shrinks the set most; only then is each chunk left out.
        found = next((chunk for chunk in chunks if fails(chunk)), None)
        if found is not None:
            left, parts = found, 2
            continue
        found = next((rest for rest in without if parts > 2 and fails(rest)), None)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
            continue
        if parts >= len(left):
            break
        parts = min(2 * parts, len(left))
    return left

"""Delta debugging (Zeller, Hildebrandt 2002): finds a minimal subset that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def find_minimal_failing_subset(every: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a minimal failing subset of a failing set: without any one of its items it passes (algorithm `ddmin`)."""
    left, parts = list(every), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[start : start + size] for start in range(0, len(left), size)]
        # A single chunk that fails shrinks the set most; only then is each chunk left out.
        found = _find_first_failing(chunks, fails)
        if found is not None:
            left, parts = found, 2
            continue
        if parts > 2:
            found = _find_first_failing(_leave_out_each(chunks), fails)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
            continue
            continue
        if parts >= len(left):
            break
        parts = min(2 * parts, len(left))
    return left


def _find_first_failing(subsets: Iterable[list[T]], fails: Callable[[Sequence[T]], bool]) -> list[T] | None:
    for subset in subsets:
        if fails(subset):
            return subset
    return None


def _leave_out_each(chunks: Sequence[list[T]]) -> Iterator[list[T]]:
    """Yield for each chunk the items of all others."""
    for chunk in chunks:
        rest = []
        for other in chunks:
            if other is not chunk:
                rest += other
        yield rest

"""What nothing else is better than in all that counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from guestmark.core.model import Better


def front(points: Mapping[str, Sequence[float]], better: Sequence[Better]) -> list[str]:
    """The points that no other equals or beats in every coordinate, the best in the first one first."""
    signed = {
        name: tuple(
            value if way is Better.LOWER else -value for value, way in zip(values, better, strict=True)
        )
        for name, values in points.items()
    }
    kept = [
        name
        for name, mine in signed.items()
        if not any(
            all(theirs <= own for theirs, own in zip(other, mine, strict=True)) and other != mine
            for other in signed.values()
        )
    ]
    return sorted(kept, key=lambda name: signed[name])

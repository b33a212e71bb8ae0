"""Change points of a ratio over many runs, found by Apache Otava."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

# Fewer values are not searched for change points.
FEWEST = 8
# Largest p of a change point. In 1 of 200 simulated histories of 40 runs without a change, one was found.
MAX_P = 0.0005


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of the ratio at value number `at`, counted from 0: typical ratios before and after, and Otava's p."""

    at: int
    before: float
    after: float
    p: float


def find_change_points(ratios: Sequence[float], max_p: float = MAX_P) -> tuple[ChangePoint, ...] | None:
    """Return the changes that Apache Otava finds in the log ratios; None without Otava, or below `FEWEST` ratios.

    Its method is E-divisive means over windows with a t test (Fleming et al., "Hunter", 2023). It is given log ratios
    to a control of the same run: in raw times it would report every change of the host's state.
    """
    if len(ratios) < FEWEST or not has_otava():
        return None
    # Otava is an optional dependency, and its imports cost seconds.
    from otava.analysis import compute_change_points

    logs = [math.log(ratio) for ratio in ratios]
    found, _ = compute_change_points(logs, max_pvalue=max_p)
    changes = sorted((int(change.index), float(change.stats.pvalue)) for change in found)
    bounds = [0, *(index for index, _ in changes), len(logs)]
    points = []
    for number, (index, p) in enumerate(changes):
        before = _compute_typical_ratio(logs[bounds[number] : index])
        after = _compute_typical_ratio(logs[index : bounds[number + 2]])
        points.append(ChangePoint(index, before, after, p))
    return tuple(points)


def has_otava() -> bool:
    """Return True if Apache Otava can be imported here."""
    return find_spec("otava") is not None and find_spec("scipy") is not None


def _compute_typical_ratio(logs: Sequence[float]) -> float:
    return math.exp(sum(logs) / len(logs))

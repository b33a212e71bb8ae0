"""How often the user's own machines failed to start, and the price of their time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from guestmark.core.machine_facts import OWN_MACHINE_ID, OwnMachine
from guestmark.core.model import Cell, Trial, TrialStatus
from guestmark.core.platform_kind import OWN_PARAMETER
from guestmark.core.workload_kind import index_workload_kinds
from guestmark.stats.tails import estimate_failed_share

OWN = "own"
_READY = "ready"
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Creations:
    """The machines of one kind that a run tried to start; a kind is a platform with its parameters.

    `share` of them never answered, with its 95 % interval (`estimate_failed_share`) and `reasons`, commonest first. A
    trial asks for one machine and never tries again; workloads whose trials start several of them are not counted.
    `ready_s` is the mean time until one answers; None if none did.
    """

    kind: str
    tried: int
    failed: int
    share: float
    interval: tuple[float, float]
    reasons: tuple[tuple[str, int], ...]
    ready_s: float | None
    # The price in the machine's definition, in any currency; None without one.
    price_per_hour: float | None

    @property
    def price_of_thousand_starts(self) -> float | None:
        """Price of the time until a thousand machines answer; None without a price or a start."""
        if self.price_per_hour is None or self.ready_s is None:
            return None
        return 1000 * self.ready_s / _HOUR_S * self.price_per_hour


def count_creations(trials: Iterable[Trial], cells: Collection[Cell]) -> list[Creations]:
    """Count the user's own machines by kind."""
    known = index_workload_kinds()
    kinds: dict[str, str] = {}
    for cell in cells:
        starts_several = cell.workload.name in known and known[cell.workload.name].starts_several
        if cell.platform.outer.kind == OWN and not starts_several:
            kinds[cell.id] = _name_kind(cell)
    by_kind: dict[str, list[Trial]] = {}
    for trial in trials:
        if trial.cell_id in kinds and trial.status is not TrialStatus.LOST:
            by_kind.setdefault(kinds[trial.cell_id], []).append(trial)
    return [_count_kind(kind, own) for kind, own in by_kind.items()]


def _name_kind(cell: Cell) -> str:
    levels = [f"{name}={level}" for name, level in cell.factors.items() if name.startswith(OWN_PARAMETER)]
    return " ".join([str(cell.platform), *levels])


def _count_kind(kind: str, trials: list[Trial]) -> Creations:
    lost = [trial for trial in trials if trial.status is not TrialStatus.OK and _READY not in trial.phases]
    failed = np.array([float(trial in lost) for trial in trials])
    share, interval = estimate_failed_share(failed, np.ones(len(trials)))
    answered = [trial.phases[_READY] for trial in trials if _READY in trial.phases]
    reasons = Counter(OWN_MACHINE_ID.sub("{id}", trial.reason or "failed") for trial in lost)
    price = None
    for trial in trials:
        machine = trial.facts.find_fact(OwnMachine)
        if machine is not None:
            price = machine.price_per_hour
    return Creations(
        kind=kind,
        tried=len(trials),
        failed=len(lost),
        share=share,
        interval=interval,
        reasons=tuple(reasons.most_common()),
        ready_s=sum(answered) / len(answered) if answered else None,
        price_per_hour=price,
    )

"""What the host did to a run meanwhile: blocks that were disturbed, and how much of the machines' processors was taken.

A machine's own processes wait for each other, those of User-Mode Linux all the time, and that is no disturbance. Nor is
what happens on processors that the machine does not use. So pressure and run-queue delay, which count all that, give
way to the time that others ran on the machine's processors, where that is known. The kernel counts it, and steal, in
steps of 10 ms: both are added up over trials, and no single short trial decides.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from guestmark.core.model import Trial
from guestmark.stats.noise import THRESHOLDS, flag_blocks

TICK_S = 0.01  # in which the kernel counts
_OWN_DOING = frozenset({"psi_cpu_some", "run_queue_delay"})  # where it is known what others did


def disturbed_blocks(
    trials: Iterable[Trial], blocks: Sequence[int]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Blocks in which the host was disturbed, by the thresholds fixed beforehand, and how often by which."""
    held: dict[int, list[Mapping[str, object]]] = {block: [] for block in blocks}
    for trial in trials:
        held[trial.block].append(trial.noise)
    noise = {
        name: np.array([_of_block(name, held[block]) for block in blocks], dtype=np.float64)
        for name in THRESHOLDS
    }
    flagged = tuple(block for block, flag in zip(blocks, flag_blocks(noise), strict=True) if flag)
    counts = {name: int(flag_blocks({name: series}).sum()) for name, series in noise.items()}
    return flagged, {name: count for name, count in counts.items() if count}


def foreign_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the machines' processors that others had, over all trials together; None where nobody looked."""
    return _share(noises, "foreign_s")


def stolen_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the machines' processors' time that the host's own host took, over all trials together."""
    known = list(noises)
    alone = _share(known, "machine_steal_s")
    if alone is not None:
        return alone
    stolen = [
        (steal * elapsed, elapsed)
        for noise in known
        if (steal := _number(noise, "steal")) is not None
        for elapsed in (_number(noise, "elapsed_s") or 1.0,)
    ]
    total = sum(elapsed for _, elapsed in stolen)
    return sum(part for part, _ in stolen) / total if total > 0 else None


def waiting_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the time for which the machine's busiest threads waited for a processor; None where nobody looked."""
    waited = elapsed = 0.0
    for noise in noises:
        part, whole = _number(noise, "run_queue_delay"), _number(noise, "elapsed_s")
        if part is not None and whole is not None:
            waited += part * whole
            elapsed += whole
    return min(waited / elapsed, 1.0) if elapsed > 0 else None


def _share(noises: Iterable[Mapping[str, object]], name: str) -> float | None:
    taken = available = 0.0
    count = 0
    for noise in noises:
        part, elapsed = _number(noise, name), _number(noise, "elapsed_s")
        processors = _number(noise, "machine_processors")
        if part is not None and elapsed is not None and processors is not None:
            taken += part
            count += 1
            available += elapsed * processors
    if available <= 0:
        return None
    # One reading is off by half a tick at each end: what may be that is nothing.
    return min(taken / available, 1.0) if taken > 3 * TICK_S * math.sqrt(count) else 0.0


def _of_block(name: str, noises: Sequence[Mapping[str, object]]) -> float:
    """What is held against the threshold: the worst of the trials, or all together for what is counted coarsely."""
    if name == "foreign_cpu":
        found = foreign_share(noises)
    elif name == "steal":
        found = stolen_share(noises)
    else:
        known = [
            value
            for noise in noises
            if not (name in _OWN_DOING and "foreign_s" in noise)
            and (value := _number(noise, name)) is not None
        ]
        found = max(known, default=None)
    return math.nan if found is None else found


def _number(noise: Mapping[str, object], name: str) -> float | None:
    value = noise.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

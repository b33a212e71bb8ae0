"""The noise floor from null comparisons, and blocks flagged by rules that do not know the cells."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from guestmark.core.model import Trial
from guestmark.stats.special import student_t_quantile

Array = NDArray[np.float64]

MIN_HISTORY = 20  # fewer ratios have no 95th percentile
_PRIOR_RUNS = 2  # earlier null comparisons that count as much as none at all
_Z = 1.96

# What a block may show before it is flagged, fixed before anything is measured.
# Fractions are of the trial's duration. Input/output pressure is not among them: a disk workload makes its own.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "psi_cpu_some": 0.10,
        "psi_memory_some": 0.01,
        "run_queue_delay": 0.05,
        "foreign_cpu": 0.10,
        "steal": 0.02,
        "frequency_drop": 0.10,
        "throttled": 0.0,
        "swapped_pages": 0.0,
    }
)


@dataclass(frozen=True, slots=True)
class Null:
    """A null comparison of an earlier run of the same host and kind of cell: the log of its ratio, over `blocks`."""

    log_ratio: float
    blocks: int


def floor_from_nulls(
    null_pairs: Sequence[tuple[Array, Array]],
    n_blocks: int,
    history: Sequence[Null] = (),
    *,
    interval: Callable[[Array, Array], tuple[float, float, int] | None],
) -> float | None:
    """Return the size |ratio - 1| that comparisons of `n_blocks` blocks without any difference reach; None if
    unknown.

    `null_pairs` hold the values, shape (K,), of cells that are copies of each other; `interval` gives of such a pair
    the log ratio, the half-width of its 95 % interval and its blocks (None: too few), see
    `compare.estimate_noise_floor`. By its own noise a null comparison is off by more than the half-width h in one case
    of twenty, so that is the floor, h shrinking with the root of the blocks. It is not below what the pairs showed:
    copies that are off by a constant raise it.

    Runs minutes apart differ by more than the blocks inside one of them say. `history` tells by how much: with J
    earlier null ratios g of k blocks, the variance between runs is estimated by moments, t² = mean(g² - v/k), v being
    this run's variance per block, and shrunk towards none by J / (J + 2), as two null runs say little about a
    variance: floor² = h² + q² t² J/(J + 2), q being Student's .975 quantile with J degrees of freedom. Without a null
    pair in this run, `MIN_HISTORY` earlier ones give the 95th percentile of their |ratio - 1|.
    """
    if n_blocks < 1:
        return None
    own = [found for found in (interval(a, b) for a, b in null_pairs) if found is not None]
    if not own:
        earlier = np.abs([null.log_ratio for null in history])
        return float(np.expm1(np.quantile(earlier, 0.95))) if earlier.size >= MIN_HISTORY else None
    per_block = _variance_per_block(own)
    square = per_block / n_blocks + _reach_between_runs(per_block, history) ** 2
    return math.expm1(max(math.sqrt(square), *(abs(shift) for shift, _, _ in own)))


def bias_from_nulls(
    null_pairs: Sequence[tuple[Array, Array]],
    history: Sequence[Null],
    *,
    interval: Callable[[Array, Array], tuple[float, float, int] | None],
) -> float:
    """Return q·t·√(J/(J+2)) of `floor_from_nulls`: how far equal cells differ from run to run beyond block scatter.

    Without a null pair in this run all that earlier ones were off by counts; 0 without history.
    """
    own = [found for found in (interval(a, b) for a, b in null_pairs) if found is not None]
    return _reach_between_runs(_variance_per_block(own) if own else 0.0, history)


def _variance_per_block(own: Sequence[tuple[float, float, int]]) -> float:
    return float(np.mean([half**2 * blocks for _, half, blocks in own]))


def _reach_between_runs(per_block: float, history: Sequence[Null]) -> float:
    if not history:
        return 0.0
    earlier = np.array([null.log_ratio for null in history])
    blocks = np.array([null.blocks for null in history])
    between = max(0.0, float(np.mean(earlier**2 - per_block / _Z**2 / blocks)))
    return float(student_t_quantile(earlier.size, 0.975)) * math.sqrt(
        between * earlier.size / (earlier.size + _PRIOR_RUNS)
    )


def flag_blocks(
    noise: Mapping[str, Array], thresholds: Mapping[str, float] = THRESHOLDS
) -> NDArray[np.bool_]:
    """Return a mask of shape (K,): True for blocks in which any trial exceeded any threshold.

    `noise` maps names of `thresholds` to arrays of shape (K,) or (K, cells), NaN where unknown; other names
    are ignored. Whole blocks are flagged by the worst of their trials, whichever cell it belongs to, so a
    rule cannot favour a cell. Flagged blocks are reported; their values stay in every estimate. Raises
    ValueError if the numbers of blocks differ.
    """
    blocks = {values.shape[0] for values in noise.values()}
    if len(blocks) > 1:
        raise ValueError(f"noise series of different lengths: {sorted(blocks)}")
    flagged = np.zeros(blocks.pop() if blocks else 0, dtype=np.bool_)
    for name, limit in thresholds.items():
        if name in noise:
            above = np.asarray(noise[name]) > limit  # NaN compares false: unknown is not flagged
            flagged |= above if above.ndim == 1 else above.any(axis=1)
    return flagged


TICK_S = 0.01  # in which the kernel counts
_OWN_DOING = frozenset({"psi_cpu_some", "run_queue_delay"})  # where it is known what others did


def find_disturbed_blocks(
    trials: Iterable[Trial], blocks: Sequence[int]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Blocks in which the host was disturbed, by the thresholds fixed beforehand, and how often by which.

    A machine's own processes wait for each other, those of User-Mode Linux all the time, and that is not a disturbance.
    Nor is what happens on processors that the machine does not use. So pressure and run-queue delay, which count all
    that, give way to the time that others ran on the machine's processors, where that is known. The kernel counts it,
    and steal, in steps of 10 ms: both are added up over trials, and no single short trial decides.
    """
    held: dict[int, list[Mapping[str, object]]] = {block: [] for block in blocks}
    for trial in trials:
        held[trial.block].append(trial.noise)
    noise = {
        name: np.array([_block_disturbance(name, held[block]) for block in blocks], dtype=np.float64)
        for name in THRESHOLDS
    }
    flagged = tuple(block for block, flag in zip(blocks, flag_blocks(noise), strict=True) if flag)
    counts = {name: int(flag_blocks({name: series}).sum()) for name, series in noise.items()}
    return flagged, {name: count for name, count in counts.items() if count}


def foreign_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the machines' processors that others had, over all trials together; None where nobody looked."""
    return _share_of_processors(noises, "foreign_s")


def stolen_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the machines' processors' time that the host's own host took, over all trials together."""
    known = list(noises)
    alone = _share_of_processors(known, "machine_steal_s")
    if alone is not None:
        return alone
    stolen = [
        (steal * elapsed, elapsed)
        for noise in known
        if (steal := _finite_number(noise, "steal")) is not None
        for elapsed in (_finite_number(noise, "elapsed_s") or 1.0,)
    ]
    total = sum(elapsed for _, elapsed in stolen)
    return sum(part for part, _ in stolen) / total if total > 0 else None


def taken_by_others(noises: Iterable[Mapping[str, object]]) -> float | None:
    """The larger of both shares, foreign and stolen, if it is above its threshold."""
    known = list(noises)
    shares = (("foreign_cpu", foreign_share(known)), ("steal", stolen_share(known)))
    return max(
        (share for name, share in shares if share is not None and share > THRESHOLDS[name]), default=None
    )


def waiting_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Share of the time for which the machine's busiest threads waited for a processor; None where nobody looked."""
    waited = elapsed = 0.0
    for noise in noises:
        part, whole = _finite_number(noise, "run_queue_delay"), _finite_number(noise, "elapsed_s")
        if part is not None and whole is not None:
            waited += part * whole
            elapsed += whole
    return min(waited / elapsed, 1.0) if elapsed > 0 else None


def _share_of_processors(noises: Iterable[Mapping[str, object]], name: str) -> float | None:
    taken = available = 0.0
    count = 0
    for noise in noises:
        part, elapsed = _finite_number(noise, name), _finite_number(noise, "elapsed_s")
        processors = _finite_number(noise, "machine_processors")
        if part is not None and elapsed is not None and processors is not None:
            taken += part
            count += 1
            available += elapsed * processors
    if available <= 0:
        return None
    # One reading is off by half a tick at each end: what may be that is nothing.
    return min(taken / available, 1.0) if taken > 3 * TICK_S * math.sqrt(count) else 0.0


def _block_disturbance(name: str, noises: Sequence[Mapping[str, object]]) -> float:
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
            and (value := _finite_number(noise, name)) is not None
        ]
        found = max(known, default=None)
    return math.nan if found is None else found


def _finite_number(noise: Mapping[str, object], name: str) -> float | None:
    value = noise.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

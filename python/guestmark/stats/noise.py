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

MIN_HISTORY = 20  # with fewer ratios, the 95th percentile is not defined
# The prior of no variance between runs counts as much as this many earlier null comparisons.
_PRIOR_RUNS = 2
_Z = 1.96

# A block is flagged above these, which were fixed before any measurement. Fractions are of the trial's duration.
# Input/output pressure is not among them, because disk workloads cause it themselves.
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
    """A null comparison, over `blocks` blocks, from an earlier run of the same kind of cell on the same host."""

    log_ratio: float
    blocks: int


# Returns the log ratio of a null pair, the half-width of its 95 % interval and its blocks; None with too few.
_NullInterval = Callable[[Array, Array], tuple[float, float, int] | None]


def estimate_floor_from_nulls(
    null_pairs: Sequence[tuple[Array, Array]],
    n_blocks: int,
    history: Sequence[Null] = (),
    *,
    interval: _NullInterval,
) -> float | None:
    """Return |ratio - 1| that comparisons of equal cells over `n_blocks` blocks reach; None if unknown.

    `null_pairs` hold the values, shape (K,), of cells that are copies of each other. `interval` returns for such a pair
    the log ratio, the half-width of its 95 % interval and its blocks (None: too few), see
    `compare.estimate_noise_floor`. By its own noise a null comparison is off by more than the half-width h in one case
    of twenty, so h is the floor; it shrinks with the root of the blocks. The floor is not below what the pairs showed:
    copies that differ by a constant raise it.

    Runs minutes apart differ by more than the blocks inside each of them tell. `history` shows by how much. From J
    earlier null ratios g over k blocks, the variance between runs is estimated by moments, t² = mean(g² - v/k), where v
    is this run's variance per block. It is shrunk towards 0 by J / (J + 2), as two null runs say little about a
    variance: floor² = h² + q² t² J/(J + 2), with q the .975 quantile of Student's t with J degrees of freedom. Without
    a null pair in this run, the floor is the 95th percentile of |ratio - 1| in at least `MIN_HISTORY` earlier ones.
    """
    if n_blocks < 1:
        return None
    own = _measure_null_pairs(null_pairs, interval)
    if not own:
        if len(history) < MIN_HISTORY:
            return None
        earlier = np.abs([null.log_ratio for null in history])
        return float(np.expm1(np.quantile(earlier, 0.95)))
    per_block = _compute_variance_per_block(own)
    square = per_block / n_blocks + _estimate_reach_between_runs(per_block, history) ** 2
    return math.expm1(max(math.sqrt(square), *(abs(shift) for shift, _, _ in own)))


def estimate_bias_from_nulls(
    null_pairs: Sequence[tuple[Array, Array]],
    history: Sequence[Null],
    *,
    interval: _NullInterval,
) -> float:
    """Return q·t·√(J/(J+2)) of `estimate_floor_from_nulls`: how far runs shift the ratio of equal cells.

    The result is a log; it is 0 without history. Without a null pair in this run, the whole deviation of earlier ones
    counts.
    """
    own = _measure_null_pairs(null_pairs, interval)
    per_block = _compute_variance_per_block(own) if own else 0.0
    return _estimate_reach_between_runs(per_block, history)


def _measure_null_pairs(
    null_pairs: Iterable[tuple[Array, Array]], interval: _NullInterval
) -> list[tuple[float, float, int]]:
    """Return log ratio, half-width and blocks of the pairs that have enough blocks."""
    found = []
    for a, b in null_pairs:
        measured = interval(a, b)
        if measured is not None:
            found.append(measured)
    return found


def _compute_variance_per_block(own: Sequence[tuple[float, float, int]]) -> float:
    """Return the mean over null pairs of the squared half-width times the blocks."""
    return float(np.mean([half**2 * blocks for _, half, blocks in own]))


def _estimate_reach_between_runs(per_block: float, history: Sequence[Null]) -> float:
    if not history:
        return 0.0
    earlier = np.array([null.log_ratio for null in history])
    blocks = np.array([null.blocks for null in history])
    # The scatter of blocks explains a part of each earlier ratio; only the rest is variance between runs.
    between = max(0.0, float(np.mean(earlier**2 - per_block / _Z**2 / blocks)))
    return float(student_t_quantile(earlier.size, 0.975)) * math.sqrt(
        between * earlier.size / (earlier.size + _PRIOR_RUNS)
    )


def flag_blocks(
    noise: Mapping[str, Array], thresholds: Mapping[str, float] = THRESHOLDS
) -> NDArray[np.bool_]:
    """Return a mask of shape (K,): True for blocks in which any trial exceeded any threshold.

    `noise` maps names of `thresholds` to arrays of shape (K,) or (K, cells), NaN if unknown; other names are ignored. A
    block is flagged by the worst of its trials, whichever cell that belongs to, so no rule can favour a cell. Flagged
    blocks are reported; their values stay in every estimate. Raises ValueError if the numbers of blocks differ.
    """
    blocks = {values.shape[0] for values in noise.values()}
    if len(blocks) > 1:
        raise ValueError(f"noise series of different lengths: {sorted(blocks)}")
    flagged = np.zeros(blocks.pop() if blocks else 0, dtype=np.bool_)
    for name, limit in thresholds.items():
        if name in noise:
            # NaN compares false, so unknown noise is not flagged.
            above = np.asarray(noise[name]) > limit
            if above.ndim > 1:
                above = np.asarray(above.any(axis=1), dtype=np.bool_)
            flagged |= above
    return flagged


# The kernel counts processor time in steps of this length (USER_HZ is 100).
TICK_S = 0.01
# A machine's own processes wait for each other (those of User-Mode Linux all the time), and these two also count other
# processors than the machine's. So they are ignored if the time of other programs is known.
_SELF_INFLICTED = frozenset({"psi_cpu_some", "run_queue_delay"})


def find_disturbed_blocks(
    trials: Iterable[Trial], blocks: Sequence[int]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Return the blocks that the host disturbed, by thresholds fixed beforehand, and for each rule in how many.

    The kernel counts foreign processor time and steal in steps of 10 ms, so both are added up over the trials of a
    block, and no short trial decides alone.
    """
    held: dict[int, list[Mapping[str, object]]] = {block: [] for block in blocks}
    for trial in trials:
        held[trial.block].append(trial.noise)
    noise = {}
    counts: dict[str, int] = {}
    for name in THRESHOLDS:
        series = [_measure_block_disturbance(name, held[block]) for block in blocks]
        noise[name] = np.array(series, dtype=np.float64)
        count = int(flag_blocks({name: noise[name]}).sum())
        if count:
            counts[name] = count
    flagged = tuple(block for block, flag in zip(blocks, flag_blocks(noise), strict=True) if flag)
    return flagged, counts


def compute_foreign_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Return the share of the machines' processors that other programs used, over all trials; None if unknown."""
    return _compute_processor_share(noises, "foreign_s")


def compute_stolen_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Return the share of the machines' processor time that the hypervisor below the host took; None if unknown."""
    known = list(noises)
    alone = _compute_processor_share(known, "machine_steal_s")
    if alone is not None:
        return alone
    # Without the machine's own processors, steal is known as a fraction over all of the host's.
    stolen = total = 0.0
    for noise in known:
        steal = _read_finite_number(noise, "steal")
        if steal is not None:
            elapsed = _read_finite_number(noise, "elapsed_s") or 1.0
            stolen += steal * elapsed
            total += elapsed
    return stolen / total if total > 0 else None


def find_largest_foreign_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Return the larger of the foreign and the stolen share that is above its threshold; None if neither is."""
    known = list(noises)
    shares = (("foreign_cpu", compute_foreign_share(known)), ("steal", compute_stolen_share(known)))
    above: list[float] = []
    for name, share in shares:
        if share is not None and share > THRESHOLDS[name]:
            above.append(share)
    return max(above, default=None)


def compute_waiting_share(noises: Iterable[Mapping[str, object]]) -> float | None:
    """Return the share of time that the machine's busiest threads waited for a processor; None if unknown."""
    waited = elapsed = 0.0
    for noise in noises:
        part, whole = _read_finite_number(noise, "run_queue_delay"), _read_finite_number(noise, "elapsed_s")
        if part is not None and whole is not None:
            waited += part * whole
            elapsed += whole
    return min(waited / elapsed, 1.0) if elapsed > 0 else None


def _compute_processor_share(noises: Iterable[Mapping[str, object]], name: str) -> float | None:
    """Return the share of the machines' processor time that `name`, a number of seconds, accounts for."""
    taken = available = 0.0
    count = 0
    for noise in noises:
        part, elapsed = _read_finite_number(noise, name), _read_finite_number(noise, "elapsed_s")
        processors = _read_finite_number(noise, "machine_processors")
        if part is not None and elapsed is not None and processors is not None:
            taken += part
            count += 1
            available += elapsed * processors
    if available <= 0:
        return None
    # A reading may be off by half a tick at each end; over many readings such errors add up by their root.
    if taken <= 3 * TICK_S * math.sqrt(count):
        return 0.0
    return min(taken / available, 1.0)


def _measure_block_disturbance(name: str, noises: Sequence[Mapping[str, object]]) -> float:
    """Return the value to compare with a threshold: the worst trial's, or over all trials if coarse; NaN if unknown."""
    if name == "foreign_cpu":
        found = compute_foreign_share(noises)
    elif name == "steal":
        found = compute_stolen_share(noises)
    else:
        known = []
        for noise in noises:
            value = _read_finite_number(noise, name)
            if value is not None and not (name in _SELF_INFLICTED and "foreign_s" in noise):
                known.append(value)
        found = max(known, default=None)
    return math.nan if found is None else found


def _read_finite_number(noise: Mapping[str, object], name: str) -> float | None:
    value = noise.get(name)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None

"""The noise floor from null comparisons, and blocks flagged by rules that do not know the cells."""

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from guestmark.stats.paired import log_ratios

Array = NDArray[np.float64]

MIN_NULL_BLOCKS = 6  # fewer null differences say nothing about their spread
MIN_HISTORY = 20  # fewer ratios have no 95th percentile
_DRAWS = 4_000
_SEED = 20_130_402

# What a block may show before it is flagged, fixed before anything is measured.
# Fractions are of the trial's duration. Input/output pressure is not among them: a disk workload makes its own.
THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "psi_cpu_some": 0.10,
        "psi_memory_some": 0.01,
        "run_queue_delay": 0.05,
        "steal": 0.02,
        "frequency_drop": 0.10,
        "throttled": 0.0,
        "swapped_pages": 0.0,
    }
)


def noise_floor(
    null_pairs: Sequence[tuple[Array, Array]],
    n_blocks: int,
    history: Sequence[float] = (),
    *,
    quantile: float = 0.95,
) -> float | None:
    """Return the size |ratio - 1| that comparisons of `n_blocks` blocks without any difference reach; None if
    unknown.

    `null_pairs` hold the values, shape (K,), of cells that are copies of each other. One run has a few of
    them at most, too few for a percentile of their ratios. Their block differences are exchangeable in sign,
    though, so the floor is the 95th percentile of |exp(mean) - 1| over means of `n_blocks` differences drawn
    from all pairs with random signs (fixed seed), and not below the 95th percentile of the ratios that were
    observed: a null pair that is off by a constant raises the floor to that constant. `history` are null
    ratios of earlier runs on this host; 20 or more raise the floor to their 95th percentile.
    """
    if n_blocks < 1:
        return None
    differences = [d for d in (log_ratios(a, b) for a, b in null_pairs) if d is not None and d.size]
    pool = np.concatenate(differences) if differences else np.empty(0)
    floors = []
    if pool.size >= MIN_NULL_BLOCKS:
        picks, signs = _draws(pool.size, n_blocks)
        means = (pool[picks] * signs).mean(axis=1)
        floors.append(float(np.quantile(np.abs(np.expm1(means)), quantile)))
        observed = [abs(math.expm1(float(d.mean()))) for d in differences]
        floors.append(float(np.quantile(observed, quantile)))
    if len(history) >= MIN_HISTORY:
        floors.append(float(np.quantile(np.abs(np.asarray(history, dtype=np.float64) - 1), quantile)))
    return max(floors, default=None)


@functools.lru_cache(maxsize=8)
def _draws(size: int, n_blocks: int) -> tuple[NDArray[np.int64], Array]:
    generator = np.random.default_rng(_SEED)
    picks = generator.integers(0, size, size=(_DRAWS, n_blocks))
    signs = generator.choice(np.array([-1.0, 1.0]), size=(_DRAWS, n_blocks))
    return picks, signs


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

"""Simulate whether a warm-up could be chosen from a run's first block: how often two runs would differ."""

import numpy as np

from guestmark.stats import count_needed_warmups

Array = np.ndarray
ITERATIONS = 7
CELLS = 3
# What the first runs on a fresh machine take, in times of a warm one.
CURVES = {
    "steady": (),
    "first +5 %": (1.05,),
    "first +8 %": (1.08,),
    "first x1.8": (1.8,),
    "x1.8, then +5 %": (1.8, 1.05),
    "x2, +20 %, +8 %": (2.0, 1.2, 1.08),
}


def simulate_starts(
    generator: np.random.Generator, count: int, runs: int, curve: tuple[float, ...], spikes: float
) -> Array:
    """Simulate all runs of `count` fresh machines: 2 % between machines, 2 % between runs, spikes of 20 %."""
    noise = generator.normal(0, 0.02, (count, runs)) + generator.normal(0, 0.02, (count, 1))
    values = np.exp(noise)
    values[:, : len(curve)] *= curve[:runs]
    hit = generator.random((count, runs)) < spikes
    return values * (1 + hit * generator.exponential(0.2, (count, runs)))


def share_of_disagreement(
    curve: tuple[float, ...], pilot: tuple[int, int], spikes: float, sims: int, seed: int
) -> float:
    """Return the share of pairs of runs that would choose different numbers of warm-up runs.

    Each chooses the largest number that one of its cells needs, from `pilot` blocks and runs in each trial.
    """
    generator = np.random.default_rng(seed)
    chosen = [
        max(
            count_needed_warmups(simulate_starts(generator, *pilot, curve, spikes).tolist()) or 0
            for _ in range(CELLS)
        )
        for _ in range(sims)
    ]
    return 1 - float(((np.bincount(chosen) / sims) ** 2).sum())


def bias_after_one(curve: tuple[float, ...], warmup: int, spikes: float, sims: int, seed: int) -> float:
    """Return how much longer the median of a trial is after this warm-up than after a sufficient one, relatively."""
    medians = []
    for before in (warmup, len(curve) + 1):
        values = simulate_starts(np.random.default_rng(seed), sims, before + ITERATIONS, curve, spikes)
        medians.append(float(np.median(np.median(values[:, before:], axis=1))))
    return medians[0] / medians[1] - 1

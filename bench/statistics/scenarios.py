"""Hosts that make measuring hard, simulated: what `guestmark.stats` is accepted against.

A scenario gives the log of a trial's value minus that of its cell's true value, for trials in the order in which they
ran; cells then get their trials by the random order inside each block, as in a real run.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Generator = np.random.Generator


@dataclass(frozen=True, slots=True)
class Scenario:
    """`host(generator, sims, trials)` is shared by all cells; `own` is added to all cells but the baseline."""

    name: str
    host: Callable[[Generator, int, int], Array]
    own: Callable[[Generator, tuple[int, ...]], Array] | None = None
    clock: float = 0.0  # step of the clock, relative to the true value
    missing: float = 0.0  # share of trials that fail

    def blocks(
        self, generator: Generator, sims: int, blocks: int, effects: tuple[float, ...] = (0.0, 0.0)
    ) -> Array:
        """Return values of shape (sims, blocks, cells), NaN where missing; `effects` are true logs per cell."""
        cells = len(effects)
        host = self.host(generator, sims, blocks * cells).reshape(sims, blocks, cells)
        values = generator.permuted(host, axis=2) + np.asarray(effects)
        if self.own is not None:
            values[:, :, 1:] += self.own(generator, (sims, blocks, cells - 1))
        values = np.exp(values)
        if self.clock:
            values = np.round(values / self.clock) * self.clock
        values[generator.random(values.shape) < self.missing] = np.nan
        return values


def _normal(spread: float) -> Callable[[Generator, int, int], Array]:
    return lambda generator, sims, trials: generator.normal(0, spread, (sims, trials))


def _autocorrelated(rho: float) -> Callable[[Generator, int, int], Array]:
    def host(generator: Generator, sims: int, trials: int) -> Array:
        noise = generator.normal(0, 0.02, (sims, trials))
        noise[:, 1:] *= np.sqrt(1 - rho**2)
        for i in range(1, trials):
            noise[:, i] += rho * noise[:, i - 1]
        return noise + generator.normal(0, 0.005, noise.shape)  # each boot differs a little

    return host


def _bimodal(generator: Generator, sims: int, trials: int) -> Array:
    """Memory layout decided at boot: three in ten boots are 5 % slower."""
    return generator.normal(0, 0.01, (sims, trials)) + 0.05 * (generator.random((sims, trials)) < 0.3)


def _drift(generator: Generator, sims: int, trials: int) -> Array:
    """The host gets 10 % slower during the run."""
    return generator.normal(0, 0.01, (sims, trials)) + np.linspace(0, 0.1, trials)


def _regime(generator: Generator, sims: int, trials: int) -> Array:
    """From a random moment a neighbour costs 10 %."""
    moment = generator.integers(0, trials, (sims, 1))
    return generator.normal(0, 0.01, (sims, trials)) + 0.1 * (np.arange(trials) >= moment)


def _spikes(generator: Generator, sims: int, trials: int) -> Array:
    """One trial in ten is hit by something that takes 20 % on average."""
    hit = generator.random((sims, trials)) < 0.1
    return generator.normal(0, 0.01, (sims, trials)) + hit * generator.exponential(0.2, (sims, trials))


def _own_spikes(generator: Generator, shape: tuple[int, ...]) -> Array:
    return (generator.random(shape) < 0.1) * generator.exponential(0.2, shape)


SCENARIOS = (
    Scenario("iid", _normal(0.02)),
    Scenario("AR .5", _autocorrelated(0.5)),
    Scenario("AR .8", _autocorrelated(0.8)),
    Scenario("bimodal", _bimodal),
    Scenario("drift", _drift),
    Scenario("regime", _regime),
    Scenario("spikes", _spikes),
    Scenario("unequal variance", _normal(0.01), own=lambda g, shape: g.normal(0, 0.03, shape)),
    Scenario("quantised clock", _normal(0.01), clock=0.01),
    Scenario("missing blocks", _normal(0.02), missing=0.05),
)
# No test of a null: with spikes of its own the cell does differ. Kept to show what intervals do.
ONE_SIDED_SPIKES = Scenario("one-sided spikes", _normal(0.01), own=_own_spikes)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
QUIET = Scenario("quiet", _normal(0.01))  # for tables of many cells

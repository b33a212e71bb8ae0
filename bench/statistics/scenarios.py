"""Simulates hosts and cells that are hard to measure, as the test bed of `guestmark.stats`.

A scenario defines what the host does to trials in the order in which they run; cells then get their trials by the
random order inside each block, as in a real run. Cell 0 is the baseline, cell 1 its null copy; the others are
compared, and effects on "the cell" apply to these.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Generator = np.random.Generator
Shape = tuple[int, ...]

OWN = 2  # cells from here on have a law of their own where the scenario gives one
ITERATIONS = 7


def _quiet(generator: Generator, sims: int, trials: int) -> Array:
    return generator.normal(0, 0.01, (sims, trials))


@dataclass(frozen=True, slots=True)
class Scenario:
    """Effects on the logs of the values; an effect that is None or 0 does not occur.

    `host(generator, sims, trials)` is shared by all cells. `own` and `tail` return additions for the cells that are
    compared: to trials, shape (sims, blocks, cells), and to iterations, with one more axis.
    """

    name: str
    host: Callable[[Generator, int, int], Array] = _quiet
    own: Callable[[Generator, Shape], Array] | None = None
    tail: Callable[[Generator, Shape], Array] | None = None
    every: Callable[[Generator, Shape], Array] | None = None  # like `tail`, but for all cells
    within: float = 0.01  # spread between the iterations of a trial
    within_own: float | None = None  # the same for the cells that are compared, if it differs
    clock: float = 0.0  # step of the clock, relative to the true value of the baseline
    missing: float = 0.0  # share of trials that fail
    carry: float = 0.0  # added to the log of a trial that follows one of a compared cell

    def run(  # noqa: PLR0917 (all of it is what one simulation is)
        self,
        generator: Generator,
        sims: int,
        blocks: int,
        effects: tuple[float, ...] = (0.0, 0.0, 0.0),
        iterations: int = ITERATIONS,
        own_from: int = OWN,
        position: NDArray[np.int64] | None = None,
    ) -> tuple[Array, NDArray[np.int64]]:
        """Return values, shape (sims, blocks, cells, iterations), NaN where a trial failed, and each trial's position
        in its block, shape (sims, blocks, cells); `effects` are true logs per cell. Cells from `own_from` on have the
        law of their own. `position` of this shape is drawn if it is not given.
        """
        cells = len(effects)
        shape = (sims, blocks, cells)
        host = self.host(generator, sims, blocks * cells).reshape(shape)
        if position is None:
            position = generator.permuted(np.broadcast_to(np.arange(cells), shape), axis=2).astype(np.int64)
        if self.carry:
            ran = np.argsort(position, axis=2).reshape(sims, -1)  # the cells in the order in which they ran
            after = np.zeros(ran.shape, dtype=np.bool_)
            after[:, 1:] = ran[:, :-1] >= own_from
            host = host + self.carry * after.reshape(shape)
        logs = np.take_along_axis(host, position, axis=2) + np.asarray(effects)
        if self.own is not None:
            logs[:, :, own_from:] += self.own(generator, (sims, blocks, cells - own_from))
        spread = np.full(cells, self.within)
        spread[own_from:] = self.within if self.within_own is None else self.within_own
        full = logs[..., None] + generator.normal(0, 1, (*shape, iterations)) * spread[:, None]
        if self.every is not None:
            full += self.every(generator, full.shape)
        if self.tail is not None:
            full[:, :, own_from:] += self.tail(generator, full[:, :, own_from:].shape)
        values = np.exp(full)
        if self.clock:
            values = np.maximum(np.round(values / self.clock), 1) * self.clock
        if self.missing:
            values[generator.random(shape) < self.missing] = np.nan
        return values, position


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
    """Return hosts whose memory layout is decided at boot: three in ten boots are 5 % slower."""
    return _quiet(generator, sims, trials) + 0.05 * (generator.random((sims, trials)) < 0.3)


def _drift(generator: Generator, sims: int, trials: int) -> Array:
    """Return hosts that get slower by 10 % in 120 trials."""
    return _quiet(generator, sims, trials) + 0.1 * np.arange(trials) / 120


def _regime(generator: Generator, sims: int, trials: int) -> Array:
    """Return hosts on which a neighbour costs 10 % from a random moment on."""
    moment = generator.integers(0, min(trials, 60), (sims, 1))
    return _quiet(generator, sims, trials) + 0.1 * (np.arange(trials) >= moment)


def _switching(generator: Generator, sims: int, trials: int) -> Array:
    """Return hosts whose neighbour, which costs 10 %, comes or goes before every third trial, mostly in a block."""
    state = np.cumsum(generator.random((sims, trials)) < 1 / 3, axis=1) % 2
    return _quiet(generator, sims, trials) + 0.1 * state


def _spikes(generator: Generator, sims: int, trials: int) -> Array:
    """Return hosts on which one trial in ten is delayed by 20 % on average."""
    hit = generator.random((sims, trials)) < 0.1
    return _quiet(generator, sims, trials) + hit * generator.exponential(0.2, (sims, trials))


def _pareto(generator: Generator, sims: int, trials: int) -> Array:
    """Return hosts with Pareto delays of index 2.5: no third moment; one trial in 300 takes a quarter longer."""
    return _quiet(generator, sims, trials) + np.log1p(0.03 * generator.pareto(2.5, (sims, trials)))


def _pareto_iterations(generator: Generator, shape: Shape) -> Array:
    return np.log1p(0.03 * generator.pareto(2.5, shape))


def _own_spikes(generator: Generator, shape: Shape) -> Array:
    return (generator.random(shape) < 0.1) * generator.exponential(0.2, shape)


def _sometimes(factor: float, share: float) -> Callable[[Generator, Shape], Array]:
    return lambda generator, shape: np.log(factor) * (generator.random(shape) < share)


def _in_two_modes(factor: float, share: float) -> Callable[[Generator, int, int], Array]:
    """Return starts that scatter by 2 %, a share of which takes `factor` times as long, in every iteration."""

    def host(generator: Generator, sims: int, trials: int) -> Array:
        slow = generator.random((sims, trials)) < share
        return np.asarray(generator.normal(0, 0.02, (sims, trials)) + np.log(factor) * slow)

    return host


# Both cells have the same two modes, between their starts or between the runs of a start.
MODES = tuple(
    scenario
    for factor in (1.2, 2.0, 5.0)
    for share in (0.03, 0.1, 0.3, 0.45, 0.6)
    for scenario in (
        Scenario(f"x{factor:g} in {share:.0%} of starts, alike", _in_two_modes(factor, share)),
        Scenario(
            f"x{factor:g} in {share:.0%} of runs, alike", _normal(0.02), every=_sometimes(factor, share)
        ),
    )
)
# Equal laws unless an effect is given: every claim of a difference is false.
SCENARIOS = (
    Scenario("iid", _normal(0.02)),
    Scenario("AR .5", _autocorrelated(0.5)),
    Scenario("AR .8", _autocorrelated(0.8)),
    Scenario("bimodal", _bimodal),
    Scenario("drift", _drift),
    Scenario("regime", _regime),
    Scenario("switching in blocks", _switching),
    Scenario("spikes", _spikes),
    Scenario("heavy tails", _pareto, every=_pareto_iterations),
    Scenario("unequal variance", own=lambda g, shape: g.normal(0, 0.03, shape)),
    Scenario("unequal durations", _normal(0.02), within=0.03, within_own=0.03 / np.sqrt(5)),
    Scenario("quantised clock", clock=0.01),
    Scenario("missing blocks", _normal(0.02), missing=0.05),
    Scenario("10 % failures", _normal(0.02), missing=0.1),
    Scenario("carry-over", _normal(0.02), carry=0.05),
    Scenario("1 % noise", _normal(0.007), within=0.007),
    Scenario("x2 in 10 % of all iterations", _normal(0.02), every=_sometimes(2, 0.1)),
)
# The laws differ in their tails alone: the typical run is the same, the total and the slow runs are not.
TAILS = (
    Scenario("one-sided spikes", _quiet, own=_own_spikes),
    Scenario("x2 in 10 % of iterations", _normal(0.02), tail=_sometimes(2, 0.1)),
    Scenario("x2 in 5 % of iterations", _normal(0.02), tail=_sometimes(2, 0.05)),
    Scenario("x5 in 1 % of iterations", _normal(0.02), tail=_sometimes(5, 0.01)),
    Scenario(
        "x2 in 2 % of all, 5 % more of the cell's",
        _normal(0.02),
        every=_sometimes(2, 0.02),
        tail=_sometimes(2, 0.05),
    ),
    Scenario("x2 in 5 % of trials", _normal(0.02), own=_sometimes(2, 0.05)),
    Scenario("x5 in 2 % of trials", _normal(0.02), own=_sometimes(5, 0.02)),
)
BY_NAME = {scenario.name: scenario for scenario in (*SCENARIOS, *TAILS, *MODES)}
QUIET = Scenario("quiet", within=0.0)  # for tables of many cells

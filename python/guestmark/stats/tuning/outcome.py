"""The result of a race: its state, the leading configurations, the effect of each level, and the price of speed."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.metric import Better
from guestmark.core.model import Cell, LeftOut, Plan, Trial, select_runnable
from guestmark.core.tuning import Candidate, Settings
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.stats.tuning import race as racing
from guestmark.stats.tuning import screen
from guestmark.stats.tuning.race import DropReason, Interval, Race

_PRICES = ("vmm_cpu_s", "guest_cpu_s", "host_flushes", "guest_flushes")  # metrics that speed may increase
# Reasons for dropping a cell that do not concern its speed.
_UNRACED = frozenset({DropReason.BARRED, DropReason.FAILED, DropReason.LIMIT})
_MOST_INTERACTIONS = 3
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class RaceOutcome:
    """The state of a race in a run, with its cells and the trials it is based on."""

    settings: Settings
    cells: tuple[Cell, ...]
    race: Race
    trials: tuple[Trial, ...]

    @property
    def others(self) -> list[str]:
        """Cells that were neither dropped nor chosen as finalists."""
        best = self.race.finalists or tuple(self.race.alive)
        return [name for name in self.race.alive if name not in best]

    @property
    def not_worse(self) -> list[str]:
        """Finalists other than the leader."""
        best = self.race.finalists or tuple(self.race.alive)
        return [name for name in best if name != self.race.leader]

    @property
    def is_walkover(self) -> bool:
        """True if a single cell could take part, so that nothing was compared."""
        return len(self.race.alive) == 1 and all(entry.kind in _UNRACED for entry in self.race.dropped)

    @property
    def dropped_early(self) -> bool:
        """True if the race's own rule dropped cells before a verdict could be given."""
        return any(
            entry.kind is DropReason.RACED and entry.blocks < MIN_BLOCKS for entry in self.race.dropped
        )

    def list_front_runners(self) -> dict[str, float]:
        """Return the mean of each configuration to show, the finalists first.

        If there are fresh blocks, only they count: the blocks that led to a cell's choice flatter it.
        """
        objective = self.settings.objective
        means = compute_mean_by_cell(self.trials, objective)
        if self.race.finalists:
            fresh = [trial for trial in self.trials if trial.block >= self.race.confirmed_from]
            means |= compute_mean_by_cell(fresh, objective)
        shown: dict[str, float] = {}
        for name in (*self.race.finalists, *self.race.alive):
            if name in means and len(shown) < _MOST_SHOWN:
                shown[name] = means[name]
        return shown


def follow_race(
    settings: Settings, plan: Plan, left_out: Sequence[LeftOut], trials: Sequence[Trial]
) -> RaceOutcome:
    """Return the state of the race after these trials; cells that were left out take no part in it."""
    no_time = plan.context.no_time
    cells = [cell for cell in select_runnable(plan.cells, left_out) if cell.id not in no_time]
    race = racing.replay_race(settings, cells, plan.context.barred, trials, plan.race_limit_s)
    return RaceOutcome(settings, tuple(cells), race, tuple(trials))


def compute_mean_by_cell(trials: Iterable[Trial], metric: str) -> dict[str, float]:
    """Return the mean of a metric over the good trials of each cell."""
    values: dict[str, list[float]] = {}
    for trial in trials:
        value = racing.find_trial_value(trial, metric)
        if value is not None:
            values.setdefault(trial.cell_id, []).append(value)
    return {name: statistics.fmean(of_cell) for name, of_cell in values.items()}


def convert_distance_to_ratio(interval: Interval, better: Better) -> tuple[float, tuple[float, float]]:
    """Return a distance (how many times worse a cell is) as a ratio of values with its interval."""
    if better is Better.LOWER:
        return interval.ratio, (interval.low, interval.high)
    return 1 / interval.ratio, (1 / interval.high, 1 / interval.low)


def list_level_effects(outcome: RaceOutcome) -> list[tuple[str, str, float]]:
    """Return factor, level and main effect as a ratio, the best level of each factor first."""
    candidates, logs = _list_measured_candidates(outcome)
    worst_first = outcome.settings.better is Better.HIGHER
    rows = []
    for name, levels in screen.estimate_main_effects(candidates, logs).items():
        by_effect = sorted(levels.items(), key=lambda item: item[1], reverse=worst_first)
        rows += [(name, level, effect) for level, effect in by_effect]
    return rows


def list_largest_interactions(outcome: RaceOutcome) -> list[tuple[tuple[str, str], float]]:
    """Return the pairs of levels with the largest interactions, as ratios."""
    return screen.find_interactions(*_list_measured_candidates(outcome))[:_MOST_INTERACTIONS]


def find_best_by_price(outcome: RaceOutcome) -> tuple[str, dict[str, tuple[float, float]]] | None:
    """Return the first metric that speed costs, and value and price of the cells that no other beats in both.

    None if one cell is the best in both.
    """
    means = compute_mean_by_cell(outcome.trials, outcome.settings.objective)
    unmeasured = {entry.id for entry in outcome.race.dropped if entry.blocks == 0}
    for price in _PRICES:
        costs = compute_mean_by_cell(outcome.trials, price)
        both = {}
        for name, mean in means.items():
            if name in costs and name not in unmeasured:
                both[name] = (mean, costs[name])
        front = racing.find_pareto_front(both, (outcome.settings.better, Better.LOWER))
        if len(front) > 1:
            return price, {name: both[name] for name in front}
    return None


def _list_measured_candidates(outcome: RaceOutcome) -> tuple[list[Candidate], Mapping[str, float]]:
    means = compute_mean_by_cell(outcome.trials, outcome.settings.objective)
    candidates = [candidate for candidate in racing.list_candidates(outcome.cells) if candidate.id in means]
    return candidates, {name: math.log(value) for name, value in means.items() if value > 0}

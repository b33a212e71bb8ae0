"""The race: after each block, which candidates are left, which were dropped and why, and what to measure next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import numpy as np

from guestmark.core.metric import Better
from guestmark.core.model import Cell, Trial
from guestmark.core.tuning import Candidate, Settings
from guestmark.stats.compare import MIN_BLOCKS, Table, Verdict, compare_tables
from guestmark.stats.special import student_t_quantile
from guestmark.stats.tuning import screen

# Weight of all candidates' variance against a candidate's own, in blocks (moderated variances: Smyth 2004).
_PRIOR = 6.0

# Log values by block and candidate, lower is better.
Values = Mapping[int, Mapping[str, float]]
# Values of limited metrics by block, candidate and name.
Limited = Mapping[int, Mapping[str, Mapping[str, float]]]
T = TypeVar("T")


class DropReason(StrEnum):
    """Why a candidate was dropped; the reason also shows how certain that is."""

    BARRED = "barred"  # it lacks the durability, or the real disk, that was asked for
    FAILED = "failed"
    LIMIT = "over a limit"
    # By main effects alone: it was not measured.
    PREDICTED = "predicted"
    # By the race's own rule, see `_drop_losers`.
    RACED = "raced"
    # By the rule of every run, in fresh blocks.
    CONFIRMED = "confirmed"


class Stage(StrEnum):
    """The stages of a race."""

    SCREENING = "screening"
    RACING = "racing"
    CONFIRMING = "confirming"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that left the race, after how many blocks, and why."""

    id: str
    blocks: int
    why: str
    kind: DropReason


@dataclass(frozen=True, slots=True)
class Interval:
    """A candidate's distance from the leader as a ratio, with its interval; `verdict` comes from fresh blocks."""

    ratio: float
    low: float
    high: float
    verdict: Verdict | None = None


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """How long a race may take, and how long the trials of each block took, in seconds."""

    limit_s: float
    spent: Mapping[int, float]

    def has_time_for_block(self, race: Race, settings: Settings, ended: Mapping[int, frozenset[str]]) -> bool:
        """Return True if there is time for another block and the confirmation after it."""
        used, trial_s = self._sum_spent_time(race, ended)
        to_come = len(race.alive) + settings.confirm * min(settings.finalists, len(race.alive))
        return used + to_come * trial_s <= self.limit_s

    def count_affordable_finalists(
        self, race: Race, settings: Settings, ended: Mapping[int, frozenset[str]]
    ) -> int:
        """Return how many finalists can be confirmed in the time left, at least two."""
        used, trial_s = self._sum_spent_time(race, ended)
        room = math.inf if trial_s <= 0 else (self.limit_s - used) / (settings.confirm * trial_s)
        return int(max(2, min(settings.finalists, room)))

    def _sum_spent_time(self, race: Race, ended: Mapping[int, frozenset[str]]) -> tuple[float, float]:
        """Return the seconds of all trials before this block, and of one trial on average."""
        used = sum(seconds for block, seconds in self.spent.items() if block < race.block)
        trials = sum(len(names) for block, names in ended.items() if block < race.block)
        return used, used / max(trials, 1)


@dataclass(slots=True)
class Race:
    """The state of a race after its trials; the candidates in `due` are measured next, in block `block`."""

    stage: Stage = Stage.SCREENING
    block: int = 0
    due: tuple[str, ...] = ()
    alive: list[str] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    leader: str = ""
    finalists: tuple[str, ...] = ()
    confirmed_from: int = 0  # the first block of the confirmation
    fresh: int = 0  # complete blocks of the confirmation
    # Distances of the remaining candidates from the leader.
    distances: dict[str, Interval] = field(default_factory=dict)
    # The time limit ended the race before its blocks did.
    hurried: bool = False

    @property
    def is_confirmed(self) -> bool:
        """True if there are as many fresh blocks as a verdict of `run` needs."""
        return self.fresh >= MIN_BLOCKS

    @property
    def leads_alone(self) -> bool:
        """True if fresh blocks show the leader ahead of every other candidate that was not dropped."""
        for name in self.alive:
            if name == self.leader:
                continue
            distance = self.distances.get(name)
            if distance is None or distance.verdict is not Verdict.SLOWER:
                return False
        return self.is_confirmed

    def get_ratio_to_leader(self, name: str) -> float:
        """Return a candidate's distance from the leader as a ratio; 1 if it was not measured."""
        distance = self.distances.get(name)
        return 1.0 if distance is None else distance.ratio


def run_race(
    settings: Settings,
    candidates: Sequence[Candidate],
    values: Values,
    ended: Mapping[int, frozenset[str]],
    limited: Limited | None = None,
    *,
    budget: TimeBudget | None = None,
) -> Race:
    """Return the state of a race. Depends on the arguments alone, so a killed race continues where it stopped.

    `values` are log values by block and candidate. `ended` are the candidates whose trial of a block has ended, even
    by failing; `limited` are the values of metrics that have a limit. Without a `budget` there is no time limit.
    """
    race = Race()
    able = []
    for candidate in candidates:
        if candidate.barred:
            race.dropped.append(Dropped(candidate.id, 0, candidate.barred, DropReason.BARRED))
        else:
            able.append(candidate)
    race.alive = [candidate.id for candidate in able]
    if not able:
        race.stage = Stage.DONE
        return race
    first = screen.choose_fraction(able) if settings.screen else race.alive
    if len(first) < len(able):
        if not _advance_blocks(race, settings.screen_blocks, first, ended):
            return race
        seen = _select_rows_before(values, race.block)
        losers = screen.predict_losers(
            able, _compute_adjusted_means(seen, first), math.log1p(settings.margin)
        )
        race.dropped += [Dropped(name, race.block, why, DropReason.PREDICTED) for name, why in losers.items()]
        _remove_dropped(race)
    return _race_blocks(race, settings, values, ended, limited or {}, budget=budget)


def _race_blocks(
    race: Race,
    settings: Settings,
    values: Values,
    ended: Mapping[int, frozenset[str]],
    limited: Limited,
    *,
    budget: TimeBudget | None,
) -> Race:
    race.stage = Stage.RACING
    looks = 0
    for number in range(1, settings.max_blocks + 1):
        if not _advance_blocks(race, 1, race.alive, ended):
            return race
        if number < settings.min_blocks:
            continue
        looks += 1
        _drop_losers(
            race,
            settings,
            _select_rows_before(values, race.block),
            looks,
            _select_rows_before(limited, race.block),
        )
        if len(race.alive) <= 1:
            break
        bound = math.log1p(settings.margin)
        if all(math.log(interval.high) <= bound for interval in race.distances.values()):
            break
        if (
            budget is not None
            and number < settings.max_blocks
            and not budget.has_time_for_block(race, settings, ended)
        ):
            race.hurried = True
            break
    if not race.alive:
        race.stage, race.due = Stage.DONE, ()
        return race
    return _confirm_finalists(race, settings, values, ended, limited, budget=budget)


def _confirm_finalists(
    race: Race,
    settings: Settings,
    values: Values,
    ended: Mapping[int, frozenset[str]],
    limited: Limited,
    *,
    budget: TimeBudget | None,
) -> Race:
    if len(race.alive) == 1:
        _recall_nearest(race)
    order = sorted(race.alive, key=race.get_ratio_to_leader)
    most = settings.finalists
    if budget is not None and settings.confirm:
        most = budget.count_affordable_finalists(race, settings, ended)
    race.finalists = tuple(order[: max(most, 2)])
    race.confirmed_from = race.block
    if settings.confirm and len(race.finalists) > 1:
        race.stage = Stage.CONFIRMING
        finished = _advance_blocks(race, settings.confirm, race.finalists, ended)
        race.fresh = race.block - race.confirmed_from
        if not finished:
            return race
        fresh = _select_rows_from(values, race.confirmed_from)
        fresh_limited = _select_rows_from(limited, race.confirmed_from)
        measured = [name for name in race.finalists if _count_values(fresh, name)]
        # In the race a limit may have been met by the chance of two blocks.
        _drop_violators(race, settings, measured, fresh_limited)
        _drop_beaten_finalists(race, settings, fresh)
    race.stage, race.due = Stage.DONE, ()
    return race


def _recall_nearest(race: Race) -> None:
    """Recall the nearest candidate that the race's own rule dropped, to confirm a single survivor against it."""
    raced = [entry for entry in race.dropped if entry.kind is DropReason.RACED and entry.id in race.distances]
    if raced:
        nearest = min(raced, key=lambda entry: race.distances[entry.id].ratio)
        race.dropped.remove(nearest)
        race.alive.append(nearest.id)


def _drop_beaten_finalists(race: Race, settings: Settings, fresh: Values) -> None:
    """Drop finalists that fresh blocks show beyond the margin, by the rule of every run."""
    known = [name for name in race.finalists if name in race.alive and _count_values(fresh, name)]
    if not known:
        race.finalists, race.leader = (), ""
        return
    means = _compute_adjusted_means(fresh, known)
    known.sort(key=means.__getitem__)
    race.leader = known[0]
    race.distances = {race.leader: Interval(1.0, 1.0, 1.0)}
    rows = [row for _, row in sorted(fresh.items())]
    arrays = {}
    for name in known:
        logs = [row.get(name, np.nan) for row in rows]
        arrays[name] = np.exp(np.array(logs))
    # All pairs are one family, as in the answer to which cell is best: the leader was chosen by these same blocks.
    tables = {}
    for number, base in enumerate(known):
        later = {name: arrays[name] for name in known[number:]}
        tables[base] = Table(later, base, Better.LOWER, settings.margin)
    for name, found in compare_tables(tables)[race.leader].items():
        if found.ratio is None or found.ci is None:
            continue
        interval = Interval(found.ratio, *found.ci, found.verdict)
        race.distances[name] = interval
        if found.verdict is Verdict.SLOWER and found.ci[0] > 1 + settings.margin:
            why = f"{_describe_margin(interval, race.leader)} in {race.fresh} fresh blocks"
            race.dropped.append(Dropped(name, race.block, why, DropReason.CONFIRMED))
    _remove_dropped(race)
    race.finalists = tuple(name for name in race.finalists if name in race.alive)


def _advance_blocks(
    race: Race, count: int, names: Sequence[str], ended: Mapping[int, frozenset[str]]
) -> bool:
    """Advance by `count` blocks of these candidates; if one is incomplete, set what is due and return False."""
    wanted = frozenset(names)
    for _ in range(count):
        if not wanted <= ended.get(race.block, frozenset()):
            race.due = tuple(names)
            return False
        race.block += 1
    return True


def _drop_losers(
    race: Race,
    settings: Settings,
    values: Values,
    looks: int,
    limited: Limited,
) -> None:
    """Drop candidates that have no values, violate a limit, or are worse than the leader beyond the margin.

    This happens before `run` would give a verdict, so it has its own rule: a one-sided t interval with moderated
    variances, whose `error` is spread over all looks and over all candidates that are compared with a leader chosen by
    the same blocks. In simulation, under 5 % of races drop a candidate within the margin of the best
    (docs/results/statistics.md). The final winner is judged by the rule of `run` in fresh blocks.
    """
    for name in race.alive:
        if not _count_values(values, name):
            race.dropped.append(Dropped(name, race.block, "its trials fail", DropReason.FAILED))
    _remove_dropped(race)
    _drop_violators(race, settings, race.alive, limited)
    if not race.alive:
        return
    variances = _compute_moderated_variances(values, race.alive)
    means = _compute_adjusted_means(values, race.alive)
    race.leader = min(race.alive, key=means.__getitem__)
    # The error is spread over all looks there can ever be: 1/2 + 1/6 + 1/12 + … = 1.
    error = settings.error / (looks * (looks + 1)) / max(len(race.alive) - 1, 1)
    race.distances = {}
    for name in race.alive:
        interval = _measure_distance_from_leader(values, name, race.leader, variances, error)
        if interval is None:
            continue
        race.distances[name] = interval
        if math.log(interval.low) > math.log1p(settings.margin):
            race.dropped.append(
                Dropped(name, race.block, _describe_margin(interval, race.leader), DropReason.RACED)
            )
    _remove_dropped(race)


def _drop_violators(race: Race, settings: Settings, names: Sequence[str], limited: Limited) -> None:
    """Drop those of the candidates whose mean violates a limit, or that lack a limited metric."""
    for name in names:
        lacking: list[str] = []
        broken: list[str] = []
        for limit in dict.fromkeys(settings.limits):
            mean = _mean_metric(limited, name, limit.metric)
            if math.isnan(mean):
                lacking.append(limit.metric)
            if not limit.allows_value(mean):
                broken.append(str(limit))
        if lacking:
            why = f"{', '.join(lacking)} was not measured"
            race.dropped.append(Dropped(name, race.block, why, DropReason.FAILED))
        elif broken:
            why = f"violates {', '.join(broken)}"
            race.dropped.append(Dropped(name, race.block, why, DropReason.LIMIT))
    _remove_dropped(race)


def _describe_margin(interval: Interval, leader: str) -> str:
    return f"worse than {leader} by ×{interval.ratio:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _remove_dropped(race: Race) -> None:
    gone = {entry.id for entry in race.dropped}
    race.alive = [name for name in race.alive if name not in gone]


def _select_rows_before(rows: Mapping[int, T], block: int) -> dict[int, T]:
    """Return the rows before a block, so that later blocks never change a decision."""
    return {number: row for number, row in rows.items() if number < block}


def _select_rows_from(rows: Mapping[int, T], block: int) -> dict[int, T]:
    """Return the rows from a block on."""
    return {number: row for number, row in rows.items() if number >= block}


def _mean_metric(limited: Limited, name: str, metric: str) -> float:
    values = [row[name][metric] for row in limited.values() if metric in row.get(name, {})]
    return sum(values) / len(values) if values else math.nan


def _count_values(values: Values, name: str) -> int:
    return sum(name in row for row in values.values())


def _compute_adjusted_means(values: Values, names: Sequence[str]) -> dict[str, float]:
    """Return the means with block effects removed; a block effect comes from candidates that are in all blocks."""
    rows = [row for row in values.values() if not row.keys().isdisjoint(names)]
    everywhere = list(names)
    for row in rows:
        everywhere = [name for name in everywhere if name in row]
    sums: dict[str, list[float]] = {}
    reference = [0.0] * len(rows)
    if everywhere:
        for number, row in enumerate(rows):
            reference[number] = sum(row[name] for name in everywhere) / len(everywhere)
    level = sum(reference) / len(reference) if reference else 0.0
    for row, middle in zip(rows, reference, strict=True):
        for name in names:
            if name in row:
                sums.setdefault(name, []).append(row[name] - middle + level)
    # A candidate without values never leads.
    means = dict.fromkeys(names, math.inf)
    for name, adjusted in sums.items():
        means[name] = sum(adjusted) / len(adjusted)
    return means


def _compute_moderated_variances(values: Values, names: Sequence[str]) -> dict[str, float]:
    """Return the variances of candidates' values within a block, block effects removed, shrunk towards their pool."""
    means = _compute_adjusted_means(values, names)
    squares = dict.fromkeys(names, 0.0)
    degrees = dict.fromkeys(names, 0.0)
    for row in values.values():
        there = [name for name in names if name in row]
        if len(there) < 2:
            continue
        residuals = {name: row[name] - means[name] for name in there}
        middle = sum(residuals.values()) / len(there)
        for name in there:
            squares[name] += (residuals[name] - middle) ** 2 * len(there) / (len(there) - 1)
            degrees[name] += 1
    own = {name: max(degrees[name] - 1, 0.0) for name in names}
    total = sum(own.values())
    pooled = sum(squares.values()) / total if total else math.inf
    return {name: (_PRIOR * pooled + squares[name]) / (_PRIOR + own[name]) for name in names}


def _measure_distance_from_leader(
    values: Values, name: str, leader: str, variances: Mapping[str, float], error: float
) -> Interval | None:
    """Return the distance over the blocks that hold candidate and leader; None without such a block."""
    if name == leader:
        return Interval(1.0, 1.0, 1.0)
    differences = [row[name] - row[leader] for row in values.values() if name in row and leader in row]
    if not differences:
        return None
    count = len(differences)
    mean = sum(differences) / count
    half = student_t_quantile(_PRIOR + count - 1, 1 - error) * math.sqrt(
        (variances[name] + variances[leader]) / count
    )
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(min(mean + half, 50.0)))


def find_pareto_front(points: Mapping[str, Sequence[float]], better: Sequence[Better]) -> list[str]:
    """Return the points that no other point dominates, ordered by their first coordinate."""
    costs = {name: _negate_gains(values, better) for name, values in points.items()}
    kept = [name for name, own in costs.items() if not _is_dominated(own, costs.values())]
    return sorted(kept, key=lambda name: costs[name])


def _negate_gains(values: Sequence[float], better: Sequence[Better]) -> tuple[float, ...]:
    """Return coordinates of which less is better."""
    costs = []
    for value, way in zip(values, better, strict=True):
        costs.append(value if way is Better.LOWER else -value)
    return tuple(costs)


def _is_dominated(own: tuple[float, ...], points: Iterable[tuple[float, ...]]) -> bool:
    """Return True if another point is nowhere worse."""
    for theirs in points:
        if theirs != own and all(value <= other for value, other in zip(theirs, own, strict=True)):
            return True
    return False


def replay_race(
    settings: Settings,
    cells: Sequence[Cell],
    why_barred: Mapping[str, str],
    trials: Iterable[Trial],
    limit_s: float = math.inf,
) -> Race:
    """Return the state of the race after these trials, which may take `limit_s` seconds in all."""
    candidates = list_candidates(cells, why_barred)
    values: dict[int, dict[str, float]] = {}
    ended: dict[int, set[str]] = {}
    limited: dict[int, dict[str, dict[str, float]]] = {}
    spent: dict[int, float] = {}
    for trial in trials:
        spent[trial.block] = spent.get(trial.block, 0.0) + trial.duration_s
        ended.setdefault(trial.block, set()).add(trial.cell_id)
        of_limits = limited.setdefault(trial.block, {})[trial.cell_id] = {}
        for limit in settings.limits:
            value = find_trial_value(trial, limit.metric)
            if value is not None:
                of_limits[limit.metric] = value
        value = find_trial_value(trial, settings.objective)
        if value is not None and value > 0:
            sign = 1.0 if settings.better is Better.LOWER else -1.0
            values.setdefault(trial.block, {})[trial.cell_id] = sign * math.log(value)
    blocks = {block: frozenset(names) for block, names in ended.items()}
    return run_race(settings, candidates, values, blocks, limited, budget=TimeBudget(limit_s, spent))


def list_candidates(cells: Sequence[Cell], why_barred: Mapping[str, str] | None = None) -> list[Candidate]:
    """Return the cells as candidates, with the levels in which they differ."""
    factors = list_varying_factors(cells)
    barred = why_barred or {}
    candidates = []
    for cell in cells:
        levels = {name: cell.factors.get(name, "") for name in factors}
        levels["platform"] = str(cell.platform)
        candidates.append(Candidate(cell.id, levels, barred.get(cell.id, "")))
    return candidates


def list_varying_factors(cells: Sequence[Cell]) -> list[str]:
    """Return the factors that differ between the cells."""
    names: set[str] = set()
    for cell in cells:
        names.update(cell.factors)
    varying = []
    for name in sorted(names):
        levels = {cell.factors.get(name) for cell in cells}
        if len(levels) > 1:
            varying.append(name)
    return varying


def find_trial_value(trial: Trial, metric: str) -> float | None:
    """Return a metric's value in a trial; None unless the trial is ok and has it."""
    measurement = trial.find_good_measurement(metric)
    return None if measurement is None else measurement.value

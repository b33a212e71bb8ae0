"""The result of a race: who is best, who was dropped when and why, what each factor does, and at what price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from guestmark.core.findings import Durability, Proof
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Cell, Trial
from guestmark.core.tuning import Settings
from guestmark.core.units import counted
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure, words
from guestmark.page.text import line
from guestmark.stats.analysis import Analysis
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.stats.tuning import race as racing
from guestmark.stats.tuning import screen
from guestmark.stats.tuning.race import DropReason, Interval, Race, Stage

_PRICES = ("vmm_cpu_s", "guest_cpu_s", "host_flushes", "guest_flushes")  # what speed may cost


_UNRACED = frozenset({DropReason.BARRED, DropReason.FAILED, DropReason.LIMIT})  # of whom speed says nothing


def nodes(analysis: Analysis, run: StoredRun) -> list[Node]:
    """The whole result of a race; nothing for other runs."""
    settings = run.plan.context.tune
    if settings is None:
        return []
    cells, race = _race(settings, run)
    means = _means(run.trials, settings.objective)
    metric = next(metric for metric in run.plan.metrics if metric.name == settings.objective)
    found: list[Node] = [Note(line(sentence)) for sentence in sentences(settings, race, cells, run.trials)]
    found += _best(settings, race, metric, run.trials)
    found += _effects(settings, race, cells, means)
    found += _prices(settings, run.trials, metric, race)
    found += _dropped(race)
    return found


def document(run: StoredRun) -> dict[str, Any] | None:
    """The race for result documents: what is best, and who was dropped when and why; None for other runs."""
    settings = run.plan.context.tune
    if settings is None:
        return None
    _, race = _race(settings, run)
    return {
        "objective": settings.objective,
        "margin": settings.margin,
        "stage": race.stage.value,
        "best": list(race.finalists),
        "not_worse_for_sure": list(race.alive),
        "leader": race.leader,
        "distances": {
            name: {
                "times_worse": interval.ratio,
                "interval": [interval.low, interval.high],
                "verdict": interval.verdict,
            }
            for name, interval in race.distances.items()
        },
        "dropped": [
            {"cell": entry.id, "blocks": entry.blocks, "why": entry.why, "how": entry.kind.value}
            for entry in race.dropped
        ],
        "fresh_blocks": race.fresh,
        "confirmed": race.is_confirmed,
        "alone": race.leads_alone,
    }


def _race(settings: Settings, run: StoredRun) -> tuple[list[Cell], Race]:
    gone = run.plan.context.no_time
    cells = [
        cell
        for cell in run.plan.cells
        if cell.id not in gone and not any(entry.covers(cell) for entry in run.unusable)
    ]
    return cells, racing.replay_race(
        settings, cells, run.plan.context.barred, run.trials, run.plan.race_limit_s
    )


def sentences(settings: Settings, race: Race, cells: Sequence[Cell], measured: Sequence[Trial]) -> list[str]:
    """The answer, and what it took."""
    asked = [
        *([f"whose disk is {' or '.join(settings.durability)}"] if settings.durability else []),
        *(["outside memory"] if settings.on_disk else []),
        *(f"with {limit}" for limit in settings.limits),
    ]
    among = f" of those {', '.join(asked)}" if asked else ""
    took = f"{counted(len(cells), 'cell')}, {counted(len(measured), 'trial')}"
    if race.stage is not Stage.DONE:
        lead = f" In the lead: {race.leader}." if race.leader else ""
        return [
            f"The race is not over: {len(race.alive)} of {len(cells)} cells may still be the best{among} "
            f"({took}).{lead}"
        ]
    if not race.alive:
        return [f"No cell is left{among} ({took})."]
    best = race.finalists or tuple(race.alive)
    others = [name for name in race.alive if name not in best]
    goal = f"{'lowest' if settings.better is Better.LOWER else 'highest'} {settings.objective}"
    beside = [name for name in best if name != race.leader]
    if len(race.alive) == 1 and all(entry.kind in _UNRACED for entry in race.dropped):
        return [f"Only {race.alive[0]} could take part{among}, so nothing is compared ({took})."]
    claim = Claim.RACE_BEST if race.leads_alone else Claim.RACE_LEADS
    said = [f"{claim.format(among=among, cell=race.leader or best[0])} ({goal}, {took}), {_evidence(race)}."]
    if beside:
        said.append(f"Not shown to be worse by over {settings.margin:.0%}: {'; '.join(beside)}.")
    if others:
        said.append(f"Not dropped, but not among the finalists: {'; '.join(others)}.")
    if any(entry.kind is DropReason.PREDICTED for entry in race.dropped):
        said.append(
            "Cells that main effects predict to be worse were not measured; a prediction can be wrong."
        )
    if race.hurried:
        said.append(
            "The time limit ended the race before these were separated: guestmark resume RUN --time-limit TIME."
        )
    return said


def _evidence(race: Race) -> str:
    """On what the answer rests, in the words of every run."""
    if race.is_confirmed:
        done = "confirmed" if race.leads_alone else "measured again"
        return f"{done} in {race.fresh} fresh blocks"
    if race.fresh:
        return (
            f"not confirmed: {counted(race.fresh, 'fresh block')}, and fewer than {MIN_BLOCKS} decide nothing"
        )
    return "not confirmed: no other candidate is left to compare it with in fresh blocks"


def _best(settings: Settings, race: Race, metric: Metric, measured: Sequence[Trial]) -> list[Node]:
    # Fresh blocks first: what led to a cell's choice flatters it.
    fresh = [trial for trial in measured if race.finalists and trial.block >= race.confirmed_from]
    means = {**_means(measured, settings.objective), **_means(fresh, settings.objective)}
    shown = [name for name in (*race.finalists, *race.alive) if name in means]
    shown = list(dict.fromkeys(shown))[:12]
    if not shown:
        return []
    durable = {name: _disk(name, measured) for name in shown}
    unit = figures.table_unit(metric.unit, [means[name] for name in shown])
    columns = [
        Column(figures.heading(metric, unit), (Align.POINT,)),
        Column("vs the first", (Align.POINT, Align.LEFT)),
    ]
    columns += [Column("its disk")] if any(durable.values()) else []
    rows = []
    first = "best" if race.leads_alone else "in front"
    for name in shown:
        interval = race.distances.get(name)
        ratio = _against_best(interval, settings.better) if interval else ""
        if interval and interval.verdict is not None:
            ratio = f"{ratio} {interval.verdict}"
        cells = [figure(f"{means[name] / unit.size:.4g}"), figure(first if name == race.leader else ratio)]
        cells += [words(durable[name])] if any(durable.values()) else []
        rows.append(Row(RowName((name,)), tuple(cells), strong=name == race.leader))
    title = "Still in the race" if race.stage is not Stage.DONE else f"Best configurations, {_evidence(race)}"
    return [Table(title, ("cell",), tuple(columns), tuple(rows), heading=title)]


def _against_best(interval: Interval, better: Better) -> str:
    """As a ratio of values: distances are how much worse a cell is, whichever way is better."""
    if better is Better.LOWER:
        return figures.ratio(interval.ratio, (interval.low, interval.high))
    return figures.ratio(1 / interval.ratio, (1 / interval.high, 1 / interval.low))


def _disk(name: str, measured: Sequence[Trial]) -> str:
    found = [
        proof for trial in measured if trial.cell_id == name and (proof := trial.facts.of(Proof)) is not None
    ]
    return str(Durability(found[-1].proven.word)) if found else ""


def _effects(settings: Settings, race: Race, cells: Sequence[Cell], means: Mapping[str, float]) -> list[Node]:
    """Main effects over what was measured, and the largest interactions."""
    candidates = [candidate for candidate in racing.candidates_of(cells) if candidate.id in means]
    logs = {name: math.log(value) for name, value in means.items() if value > 0}
    effects = screen.estimate_main_effects(candidates, logs)
    rows = [
        Row(RowName((name, level or "(none)")), (figure(f"×{effect:.2f}"),))
        for name, levels in effects.items()
        for level, effect in sorted(
            levels.items(), key=lambda item: item[1], reverse=settings.better is Better.HIGHER
        )
    ]
    if not rows:
        return []
    title = f"Main effects on {settings.objective}, other factors held equal"
    found: list[Node] = [
        Table(title, ("factor", "level"), (Column("effect", (Align.POINT,)),), tuple(rows), heading=title)
    ]
    pairs = screen.find_interactions(candidates, logs)[:3]
    said = [f"{' with '.join(levels)} ×{effect:.2f}" for levels, effect in pairs]
    return [*found, *([Note(line(f"Beyond main effects: {'; '.join(said)}."))] if said else [])]


def _prices(settings: Settings, measured: Sequence[Trial], metric: Metric, race: Race) -> list[Node]:
    """The cells that nobody beats in both speed and price."""
    means = _means(measured, settings.objective)
    unit = figures.table_unit(metric.unit, list(means.values()))
    out = {entry.id for entry in race.dropped if entry.blocks == 0}
    found: list[Node] = []
    for price in _PRICES:
        costs = _means(measured, price)
        both = {name: (means[name], costs[name]) for name in means if name in costs and name not in out}
        front = racing.pareto_front(both, (settings.better, Better.LOWER))
        if len(front) < 2:
            continue
        rows = tuple(
            Row(
                RowName((name,)), (figure(f"{both[name][0] / unit.size:.4g}"), figure(f"{both[name][1]:.4g}"))
            )
            for name in front
        )
        title = f"Nothing is better in both {settings.objective} and {price}"
        columns = (Column(figures.heading(metric, unit), (Align.POINT,)), Column(price, (Align.POINT,)))
        found.append(Table(title, ("cell",), columns, rows, heading=title))
        break
    return found


def _dropped(race: Race) -> list[Node]:
    if not race.dropped:
        return []
    rows = tuple(
        Row(RowName((entry.id,)), (figure(str(entry.blocks)), words(entry.why))) for entry in race.dropped
    )
    title = Claim.RACE_DROPPED.value
    columns = (Column("blocks", (Align.POINT,)), Column("why"))
    found: list[Node] = [Table(title, ("cell",), columns, rows, heading=title)]
    if any(entry.kind is DropReason.RACED and entry.blocks < MIN_BLOCKS for entry in race.dropped):
        found.append(
            Note(
                line(
                    f"Before {MIN_BLOCKS} blocks the race's own rule drops cells, not a verdict. In simulation, under "
                    "5 % of races drop one within the margin of the best."
                )
            )
        )
    return found


def _means(measured: Sequence[Trial], metric: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for trial in measured:
        value = racing.trial_value(trial, metric)
        if value is not None:
            values.setdefault(trial.cell_id, []).append(value)
    return {name: fmean(some) for name, some in values.items()}

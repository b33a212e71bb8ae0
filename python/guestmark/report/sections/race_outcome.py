"""The result of a race: the best cell, when and why others were dropped, effects of factors, and prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from guestmark.core.findings import Durability, Proof
from guestmark.core.metric import Better, Metric
from guestmark.core.model import Trial
from guestmark.core.units import format_count, format_share
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import (
    Align,
    Column,
    Row,
    RowName,
    Table,
    TableBuilder,
    make_figure_cell,
    make_word_cell,
)
from guestmark.page.text import line
from guestmark.stats.analysis import Analysis
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.stats.tuning.outcome import (
    RaceOutcome,
    compute_mean_by_cell,
    convert_distance_to_ratio,
    find_best_by_price,
    follow_race,
    list_largest_interactions,
    list_level_effects,
)
from guestmark.stats.tuning.race import DropReason, Race, Stage


def make_nodes(analysis: Analysis, run: StoredRun) -> list[Node]:
    """Return the result of a race; nothing for other runs."""
    outcome = _find_outcome(run)
    if outcome is None:
        return []
    objective = outcome.settings.objective
    metric = next(metric for metric in run.plan.metrics if metric.name == objective)
    nodes: list[Node] = [Note(line(sentence)) for sentence in describe_outcome(outcome)]
    nodes += _make_front_table(outcome, metric)
    nodes += _make_level_effect_nodes(outcome)
    nodes += _make_price_table(outcome, metric)
    nodes += _make_dropped_nodes(outcome)
    return nodes


def make_document(run: StoredRun) -> dict[str, Any] | None:
    """Return the race for result documents: the best cells, and why others were dropped; None for other runs."""
    outcome = _find_outcome(run)
    if outcome is None:
        return None
    race = outcome.race
    distances = {}
    for name, interval in race.distances.items():
        ends = [interval.low, interval.high]
        distances[name] = {"times_worse": interval.ratio, "interval": ends, "verdict": interval.verdict}
    dropped = []
    for entry in race.dropped:
        dropped.append({"cell": entry.id, "blocks": entry.blocks, "why": entry.why, "how": entry.kind.value})
    return {
        "objective": outcome.settings.objective,
        "margin": outcome.settings.margin,
        "stage": race.stage.value,
        "best": list(race.finalists),
        "not_worse_for_sure": list(race.alive),
        "leader": race.leader,
        "distances": distances,
        "dropped": dropped,
        "fresh_blocks": race.fresh,
        "confirmed": race.is_confirmed,
        "alone": race.leads_alone,
    }


def _find_outcome(run: StoredRun) -> RaceOutcome | None:
    settings = run.plan.context.tune
    return None if settings is None else follow_race(settings, run.plan, run.unusable, run.trials)


def describe_outcome(outcome: RaceOutcome) -> list[str]:
    """Return the answer in sentences, and how much was measured for it."""
    race, settings = outcome.race, outcome.settings
    among = _describe_limits(outcome)
    took = f"{format_count(len(outcome.cells), 'cell')}, {format_count(len(outcome.trials), 'trial')}"
    # Until the race ends, its leader is not the answer: it may still be dropped.
    if race.stage is not Stage.DONE:
        lead = f" In the lead: {race.leader}." if race.leader else ""
        return [
            f"The race is not over: {len(race.alive)} of {len(outcome.cells)} cells may still be the best{among} "
            f"({took}).{lead}"
        ]
    if not race.alive:
        return [f"No cell is left{among} ({took})."]
    if outcome.is_walkover:
        return [f"Only {race.alive[0]} could take part{among}, so nothing is compared ({took})."]
    extreme = "lowest" if settings.better is Better.LOWER else "highest"
    goal = f"{extreme} {settings.objective}"
    best = (race.finalists or tuple(race.alive))[0]
    claim = Claim.RACE_BEST if race.leads_alone else Claim.RACE_LEADS
    text = claim.format(among=among, cell=race.leader or best)
    return [f"{text} ({goal}, {took}), {_describe_evidence(race)}.", *_list_reservations(outcome)]


def _list_reservations(outcome: RaceOutcome) -> list[str]:
    """Return sentences on what the answer of a race leaves open."""
    race, sentences = outcome.race, []
    if outcome.not_worse:
        margin = format_share(outcome.settings.margin)
        sentences.append(f"Not shown to be worse by over {margin}: {'; '.join(outcome.not_worse)}.")
    if outcome.others:
        sentences.append(f"Not dropped, but not among the finalists: {'; '.join(outcome.others)}.")
    if any(entry.kind is DropReason.PREDICTED for entry in race.dropped):
        sentences.append(
            "Cells that main effects predict to be worse were not measured; a prediction can be wrong."
        )
    if race.hurried:
        sentences.append(
            "The time limit ended the race before these were told apart; guestmark resume RUN --time-limit TIME "
            "continues it."
        )
    return sentences


def _describe_limits(outcome: RaceOutcome) -> str:
    settings = outcome.settings
    asked = [f"whose disk is {' or '.join(settings.durability)}"] if settings.durability else []
    if settings.on_disk:
        asked.append("outside memory")
    asked += [f"with {limit}" for limit in settings.limits]
    return f" of those {', '.join(asked)}" if asked else ""


def _describe_evidence(race: Race) -> str:
    """Return whether fresh blocks confirm the answer, in the terms of every run."""
    if race.is_confirmed:
        done = "confirmed" if race.leads_alone else "measured again"
        return f"{done} in {race.fresh} fresh blocks"
    if race.fresh:
        blocks = format_count(race.fresh, "fresh block")
        return f"not confirmed: {blocks}, and fewer than {MIN_BLOCKS} decide nothing"
    return "not confirmed: no other candidate is left to compare it with in fresh blocks"


def _make_front_table(outcome: RaceOutcome, metric: Metric) -> list[Node]:
    race, means = outcome.race, outcome.list_front_runners()
    if not means:
        return []
    unit = figures.choose_table_unit(metric.unit, list(means.values()))
    table = TableBuilder(("cell",), [RowName((name,)) for name in means])
    values = [make_figure_cell(f"{mean / unit.size:.4g}") for mean in means.values()]
    table.add(figures.format_column_heading(metric, unit), values, (Align.POINT,))
    distances = [make_figure_cell(_describe_distance(outcome, name)) for name in means]
    table.add("vs the first", distances, (Align.POINT, Align.LEFT))
    table.add_words("its disk", [_find_disk_word(name, outcome.trials) for name in means])
    title = f"Best configurations, {_describe_evidence(race)}"
    if race.stage is not Stage.DONE:
        title = "Still in the race"
    strong = [position for position, name in enumerate(means) if name == race.leader]
    return [table.build(title, heading=title, strong=strong)]


def _describe_distance(outcome: RaceOutcome, name: str) -> str:
    if name == outcome.race.leader:
        return "best" if outcome.race.leads_alone else "in the lead"
    interval = outcome.race.distances.get(name)
    if interval is None:
        return ""
    shown = figures.format_ratio(*convert_distance_to_ratio(interval, outcome.settings.better))
    return shown if interval.verdict is None else f"{shown} {interval.verdict}"


def _find_disk_word(name: str, trials: Sequence[Trial]) -> str:
    """Return what the cell's last power cut showed of its disk; empty without any."""
    word = ""
    for trial in trials:
        proof = trial.facts.find_fact(Proof)
        if trial.cell_id == name and proof is not None:
            word = str(Durability(proof.proven.word))
    return word


def _make_level_effect_nodes(outcome: RaceOutcome) -> list[Node]:
    """Return nodes for each level's main effect, from the measured cells, and for the largest interactions."""
    rows = []
    for factor, level, effect in list_level_effects(outcome):
        rows.append(Row(RowName((factor, level or "(none)")), (make_figure_cell(f"×{effect:.2f}"),)))
    if not rows:
        return []
    title = f"Main effects on {outcome.settings.objective}, other factors held equal"
    columns = (Column("effect", (Align.POINT,)),)
    nodes: list[Node] = [Table(title, ("factor", "level"), columns, tuple(rows), heading=title)]
    pairs = []
    for levels, effect in list_largest_interactions(outcome):
        pairs.append(f"{' with '.join(levels)} ×{effect:.2f}")
    if pairs:
        nodes.append(Note(line(f"Beyond main effects: {'; '.join(pairs)}.")))
    return nodes


def _make_price_table(outcome: RaceOutcome, metric: Metric) -> list[Table]:
    """Return the cells that no other beats in both speed and price."""
    found = find_best_by_price(outcome)
    if found is None:
        return []
    price, cells = found
    unit = figures.choose_table_unit(metric.unit, compute_mean_by_cell(outcome.trials, metric.name).values())
    table = TableBuilder(("cell",), [RowName((name,)) for name in cells])
    values = [make_figure_cell(f"{value / unit.size:.4g}") for value, _ in cells.values()]
    table.add(figures.format_column_heading(metric, unit), values, (Align.POINT,))
    table.add(price, [make_figure_cell(f"{cost:.4g}") for _, cost in cells.values()], (Align.POINT,))
    title = f"No configuration beats these in both {outcome.settings.objective} and {price}"
    return [table.build(title, heading=title)]


def _make_dropped_nodes(outcome: RaceOutcome) -> list[Node]:
    dropped = outcome.race.dropped
    if not dropped:
        return []
    rows = []
    for entry in dropped:
        cells = (make_figure_cell(str(entry.blocks)), make_word_cell(entry.why))
        rows.append(Row(RowName((entry.id,)), cells))
    title = Claim.RACE_DROPPED.value
    columns = (Column("blocks", (Align.POINT,)), Column("why"))
    nodes: list[Node] = [Table(title, ("cell",), columns, tuple(rows), heading=title)]
    if outcome.dropped_early:
        nodes.append(
            Note(
                line(
                    f"Before {MIN_BLOCKS} blocks the race drops cells by its own rule, not by a verdict. In "
                    "simulation, under "
                    "5 % of races drop one within the margin of the best."
                )
            )
        )
    return nodes

"""Runs of one plan on the machines of a lab: machine by machine, and machines of one class pooled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guestmark.core.findings import find_machine
from guestmark.core.model import Cell, RunState, Trial, TrialStatus
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Node, Note, NoteKind, Page, Part, Section
from guestmark.page.tables import (
    Align,
    Column,
    Row,
    RowName,
    Table,
    make_figure_cell,
    make_word_cell,
)
from guestmark.page.text import Tone, line
from guestmark.report.past_ratios import make_past_ratio_cell
from guestmark.stats.across_runs import PastRatio
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.machines import FEWEST, PooledRatio, detect_machine_drift, pool_machines

SCHEMA = "guestmark-fleet/1"
_NO_UNIT = figures.Unit(1.0, "")  # of a ratio


@dataclass(frozen=True, slots=True)
class CellRatio:
    """A cell's ratio on one machine, with its metric, its baseline and the verdict."""

    ratio: PastRatio
    verdict: str
    reason: str  # for the verdict; empty if none is needed
    metric: str  # as a heading
    baseline: str


@dataclass(frozen=True, slots=True)
class MachineResult:
    """Results of one machine by cell: ratios, and the drift of values from the first block to the last."""

    name: str
    kind: str
    run: StoredRun
    ratios: Mapping[str, CellRatio]
    drifts: Mapping[str, float] = field(default_factory=dict)
    shared: bool = False  # True for one of the machines that shared the run, and for all of them together

    def count_trials(self, status: TrialStatus) -> int:
        """Return the number of trials with this status."""
        return sum(trial.status is status for trial in self.run.trials)


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """All machines of a lab; `pooled` has ratios by class and cell, `unlike` how machines differ from their class."""

    fleet: str
    machines: tuple[MachineResult, ...]
    pooled: Mapping[tuple[str, str], PooledRatio] = field(default_factory=dict)
    unlike: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def compare_machines(ledger: Ledger, fleet: str, runs: Sequence[tuple[str, str, str]]) -> FleetComparison:
    """Compare the machines of a lab; `runs` holds the name, the class and the run id of each machine."""
    results: list[MachineResult] = []
    for name, kind, run_id in runs:
        results += _yield_machine_results(ledger, name, kind, ledger.load_run(run_id))
    machines = _add_drifts(results)
    classes = _group_by_class(machines)
    pooled: dict[tuple[str, str], PooledRatio] = {}
    unlike: dict[str, Mapping[str, str]] = {}
    for kind in dict.fromkeys(machine.kind for machine in machines):
        members = classes.get(kind, [])
        for cell, ratios in _group_ratios_by_cell(members).items():
            pool = pool_machines(ratios)
            if pool is not None:
                pooled[kind, cell] = pool
        for machine in members[1:]:
            decisive, _ = compare_environments(members[0].run.environment, machine.run.environment)
            if decisive:
                unlike[machine.name] = decisive
    return FleetComparison(fleet, machines, pooled, unlike)


def _group_by_class(machines: Sequence[MachineResult]) -> dict[str, list[MachineResult]]:
    """Return the machines of each class that have runs of their own.

    The interval of a shared run already treats its machines as units.
    """
    classes: dict[str, list[MachineResult]] = {}
    for machine in machines:
        if machine.kind and not machine.shared:
            classes.setdefault(machine.kind, []).append(machine)
    return classes


def _group_ratios_by_cell(machines: Sequence[MachineResult]) -> dict[str, dict[str, PastRatio]]:
    """Return the ratios by cell and machine."""
    groups: dict[str, dict[str, PastRatio]] = {}
    for machine in machines:
        for cell, found in machine.ratios.items():
            groups.setdefault(cell, {})[machine.name] = found.ratio
    return groups


def _yield_machine_results(ledger: Ledger, name: str, kind: str, run: StoredRun) -> Iterator[MachineResult]:
    """Yield a machine's result; for a class that shares the run, one for each machine and one for all together."""
    if name:
        yield MachineResult(name, kind, run, _collect_ratios(ledger, run))
        return
    trials: dict[str, list[Trial]] = {}
    for trial in run.trials:
        trials.setdefault(find_machine(trial.facts), []).append(trial)
    for machine, own in sorted(trials.items(), key=lambda item: item[0]):
        part = replace(run, trials=tuple(own))
        yield MachineResult(machine, kind, part, _collect_ratios(ledger, part), shared=True)
    yield MachineResult(f"class {kind}", kind, run, _collect_ratios(ledger, run), shared=True)


def _collect_ratios(ledger: Ledger, run: StoredRun) -> dict[str, CellRatio]:
    """Return the ratios of a run in the primary metric of each table, by cell."""
    ratios = {}
    for workload in run_history.analyse_with_history(ledger, run).workloads:
        if not workload.metrics or workload.baseline is None:
            continue
        metric = workload.metrics[0]
        heading = figures.format_column_heading(metric, _NO_UNIT)
        for result in workload.cells:
            comparison = result.comparison.get(metric.name)
            if comparison is None or comparison.ratio is None or comparison.ci is None:
                continue
            if result.cell.null_of is None:
                ratio = PastRatio(run.id, run.created_at, comparison.ratio, *comparison.ci, comparison.n)
                verdict, reason = comparison.verdict.value, comparison.reason
                ratios[result.cell.id] = CellRatio(ratio, verdict, reason, heading, workload.baseline.cell.id)
    return ratios


def _add_drifts(machines: Sequence[MachineResult]) -> tuple[MachineResult, ...]:
    """Add to each machine the drift of its values; all tests of the report share one error rate."""
    tests = sum(len(machine.run.plan.cells) for machine in machines)
    results = []
    for machine in machines:
        drifts = {}
        for cell in machine.run.plan.cells:
            drift = detect_machine_drift(_list_primary_values(machine.run, cell), tests)
            if drift is not None:
                drifts[cell.id] = drift
        results.append(replace(machine, drifts=drifts))
    return tuple(results)


def _list_primary_values(run: StoredRun, cell: Cell) -> list[float]:
    """Return the primary metric's value of each good trial, in block order."""
    values = []
    for trial in run.trials:
        if trial.cell_id == cell.id and trial.status is TrialStatus.OK and trial.measurements:
            values.append(trial.measurements[0].value)
    return values


# --- the page -----------------------------------------------------------------------------------------------


def make_page(comparison: FleetComparison) -> Page:
    """Return the comparison as a page, for every renderer."""
    nodes: list[Node] = [
        _make_machine_table(comparison),
        *_make_ratio_nodes(comparison),
        *_list_remark_nodes(comparison),
    ]
    title = ""
    if comparison.machines:
        plan = comparison.machines[0].run.plan
        title = plan.title or plan.name
    subtitle = f"by machine, {comparison.fleet}"
    section = Section(Part.WORKLOAD, title or "By machine", tuple(nodes), subtitle)
    return Page(title or comparison.fleet, comparison.fleet, (section,))


def _make_machine_table(comparison: FleetComparison) -> Table:
    blocks = Column("blocks", (Align.RIGHT,))
    counts = [Column(status.value, (Align.RIGHT,)) for status in TrialStatus]
    columns = (Column("class"), Column("state"), blocks, *counts, Column("run"))
    rows = tuple(map(_make_machine_row, comparison.machines))
    return Table("machines, and the outcomes of their trials", ("machine",), columns, rows)


def _make_machine_row(machine: MachineResult) -> Row:
    run = machine.run
    cells = [make_word_cell(machine.kind or "none"), make_word_cell(run.state.value)]
    cells.append(make_figure_cell(str(run.blocks)))
    for status in TrialStatus:
        cells.append(make_figure_cell(str(machine.count_trials(status))))
    cells.append(make_word_cell(run.id))
    return Row(RowName((machine.name,), machine.name), tuple(cells))


def _make_ratio_nodes(comparison: FleetComparison) -> list[Node]:
    ratios: dict[str, CellRatio] = {}
    for machine in comparison.machines:
        ratios.update(machine.ratios)
    if not ratios:
        return [Note(line("No machine has a ratio with an interval yet"), NoteKind.WARNING)]
    nodes: list[Node] = []
    for cell, ratio in ratios.items():
        nodes.append(_make_cell_table(comparison, cell, ratio.metric, ratio.baseline))
    return nodes


def _make_cell_table(comparison: FleetComparison, cell: str, metric: str, baseline: str) -> Table:
    rows = []
    for machine in comparison.machines:
        found = machine.ratios.get(cell)
        if found is not None:
            verdict = found.verdict
            if found.reason:
                verdict += f" ({found.reason})"
            name = RowName((machine.name,), machine.name)
            rows.append(Row(name, (make_past_ratio_cell(found.ratio), make_word_cell(verdict))))
    for (kind, pooled_cell), pool in comparison.pooled.items():
        if pooled_cell == cell:
            spread = "not shown to differ"
            if pool.spread:
                spread = f"which differ by {figures.format_percent(pool.spread)}"
            pieces = figures.format_ratio_pieces(pool.ratio, pool.ci)
            cells = (make_figure_cell(*pieces), make_word_cell(f"{pool.machines} machines, {spread}"))
            rows.append(Row(RowName((f"class {kind}",), f"class {kind}"), cells, strong=True))
    return Table(
        f"{metric} of {cell} on each machine, and pooled over a class",
        ("machine",),
        (Column(metric, (Align.POINT, Align.LEFT)), Column("")),
        tuple(rows),
        heading=f"{cell} against {baseline}",
    )


def _list_remark_nodes(comparison: FleetComparison) -> list[Node]:
    nodes = _make_left_out_notes(comparison)
    for name, differences in comparison.unlike.items():
        texts = "; ".join(f"{what} {change}" for what, change in differences.items())
        nodes.append(_make_warning(f"{name} differs from its class: {texts}"))
    for (kind, cell), pool in comparison.pooled.items():
        for name in pool.different:
            claim = Claim.MACHINE_DIFFERS.format(machine=name, kind=kind, cell=cell)
            nodes.append(_make_warning(claim, Tone.WARNING))
    for machine in comparison.machines:
        nodes += _make_machine_remarks(machine)
    if comparison.pooled:
        nodes.append(
            Note(
                line(
                    "The ratio of a class estimates the mean of all such machines (random effects, Hartung-Knapp "
                    "interval), not the ratio of any one of them"
                )
            )
        )
    if any(machine.shared for machine in comparison.machines):
        nodes.append(
            Note(
                line(
                    "If machines shared a run, its interval is Student's t interval over the means of the machines "
                    "(degrees of freedom: the number of machines minus one)"
                )
            )
        )
    nodes += [Note(line(text)) for text in _explain_unpooled(comparison)]
    return nodes


def _make_warning(text: str, tone: Tone = Tone.PLAIN) -> Note:
    return Note(line(text, tone), NoteKind.WARNING)


def _make_left_out_notes(comparison: FleetComparison) -> list[Node]:
    """Return a note for each cell that was left out, with the machines and the reason."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for machine in comparison.machines:
        for entry in machine.run.unusable:
            names.setdefault((entry.name, entry.reason, entry.hint), []).append(machine.name)
    notes: list[Node] = []
    for (left_out, reason, hint), machines in names.items():
        advice = f"; {hint}" if hint else ""
        notes.append(_make_warning(f"{', '.join(machines)}: {left_out} was left out: {reason}{advice}"))
    return notes


def _make_machine_remarks(machine: MachineResult) -> list[Node]:
    notes = []
    for cell, drift in machine.drifts.items():
        rose = "rose" if drift > 0 else "fell"
        size = figures.format_percent(abs(drift))
        notes.append(
            _make_warning(Claim.MACHINE_MOVED.format(machine=machine.name, cell=cell, rose=rose, size=size))
        )
    if reason := _find_first_failure(machine.run):
        notes.append(_make_warning(f"{machine.name}: a trial failed: {reason}"))
    if lost := machine.count_trials(TrialStatus.LOST):
        trials, pronoun = "trials were", "them"
        if lost == 1:
            trials, pronoun = "trial was", "it"
        remedy = f"guestmark fleet resume will replace {pronoun}"
        if machine.run.state is RunState.COMPLETE:
            remedy = f"later blocks replaced {pronoun}"
        notes.append(Note(line(f"{machine.name}: {lost} {trials} lost; {remedy}")))
    return [*notes]


def _find_first_failure(run: StoredRun) -> str:
    for trial in run.trials:
        if trial.status is TrialStatus.FAILED:
            return trial.reason
    return ""


def _explain_unpooled(comparison: FleetComparison) -> Iterator[str]:
    """Yield reasons why a class is not pooled although each of its machines has its own run."""
    for kind, members in _group_by_class(comparison.machines).items():
        size = len(members)
        if size < FEWEST:
            yield f"Class {kind} is not pooled: it has {size} of the {FEWEST} machines that pooling needs"
            continue
        counts: Counter[str] = Counter()
        for machine in members:
            counts.update(machine.ratios.keys())
        for cell, count in counts.items():
            if count < FEWEST:
                have = "has" if count == 1 else "have"
                yield (
                    f"Class {kind} is not pooled for {cell}: {count} of its {size} machines {have} a ratio with an "
                    f"interval, and pooling needs {FEWEST}"
                )


def make_document(comparison: FleetComparison) -> dict[str, Any]:
    """Return the comparison for programs: a stable interface, like the result document."""
    machines = []
    for machine in comparison.machines:
        unlike = comparison.unlike.get(machine.name, {})
        machines.append({**_make_machine_document(machine), "unlike": dict(unlike)})
    classes = []
    for (kind, cell), pool in comparison.pooled.items():
        classes.append({"class": kind, "cell": cell, **_make_pool_document(pool)})
    return {"schema": SCHEMA, "fleet": comparison.fleet, "machines": machines, "classes": classes}


def _make_machine_document(machine: MachineResult) -> dict[str, Any]:
    cells = {}
    for cell, found in machine.ratios.items():
        ends = [found.ratio.low, found.ratio.high]
        cells[cell] = {"ratio": found.ratio.ratio, "ci": ends, "verdict": found.verdict}
    return {
        "name": machine.name,
        "class": machine.kind,
        "run": machine.run.id,
        "state": machine.run.state.value,
        "blocks": machine.run.blocks,
        "trials": {status.value: machine.count_trials(status) for status in TrialStatus},
        "cells": cells,
        "drifts": dict(machine.drifts),
    }


def _make_pool_document(pool: PooledRatio) -> dict[str, Any]:
    return {
        "ratio": pool.ratio,
        "ci": list(pool.ci),
        "prediction": list(pool.prediction),
        "spread": pool.spread,
        "machines": pool.machines,
        "different": list(pool.different),
    }

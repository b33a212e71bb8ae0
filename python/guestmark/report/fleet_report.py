"""Runs of one plan on the machines of a lab: machine by machine, and machines of one class pooled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from guestmark.core.findings import find_machine
from guestmark.core.model import Cell, RunState, TrialStatus
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.ledger.store import Ledger
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Node, Note, NoteKind, Page, Section
from guestmark.page.nodes import Part as Kind
from guestmark.page.tables import (
    Align,
    Column,
    Row,
    RowName,
    Table,
    TableBuilder,
    figure_cell,
    word_cell,
)
from guestmark.page.text import Tone, line
from guestmark.report.past_ratios import past_ratio_cell
from guestmark.stats.across_runs import PastRatio
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.machines import FEWEST, PooledRatio, detect_machine_drift, pool_machines

SCHEMA = "guestmark-fleet/1"
_NO_UNIT = figures.Unit(1.0, "")  # of a ratio


@dataclass(frozen=True, slots=True)
class CellRatio:
    """A cell's ratio on one machine, of which metric and to which baseline, and what was concluded."""

    ratio: PastRatio
    verdict: str
    reason: str  # for the verdict; empty where none is needed
    metric: str  # as a heading
    baseline: str


@dataclass(frozen=True, slots=True)
class MachineResult:
    """What one machine found: ratios by cell, and by cell how far values moved from the first block to the last."""

    name: str
    kind: str
    run: StoredRun
    ratios: Mapping[str, CellRatio]
    drifts: Mapping[str, float] = field(default_factory=dict)
    shared: bool = False  # it has a part of the run's blocks, or is all that share them

    def count(self, status: TrialStatus) -> int:
        """Count its trials that ended so."""
        return sum(trial.status is status for trial in self.run.trials)


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """A whole lab. `pooled` is by class and cell, `unlike` by machine: how it differs from the first of its class."""

    fleet: str
    machines: tuple[MachineResult, ...]
    pooled: Mapping[tuple[str, str], PooledRatio] = field(default_factory=dict)
    unlike: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def compare_machines(ledger: Ledger, fleet: str, runs: Sequence[tuple[str, str, str]]) -> FleetComparison:
    """Compare the machines of a lab; `runs` are name and class of each machine and the id of its run."""
    results: list[MachineResult] = []
    for name, kind, run_id in runs:
        results += _machine_results(ledger, name, kind, ledger.load_run(run_id))
    machines = _add_drifts(results)
    pooled: dict[tuple[str, str], PooledRatio] = {}
    unlike: dict[str, Mapping[str, str]] = {}
    for kind in dict.fromkeys(machine.kind for machine in machines if machine.kind):
        # Machines that share a run are units of its interval already.
        members = [machine for machine in machines if machine.kind == kind and not machine.shared]
        for cell in dict.fromkeys(cell for machine in members for cell in machine.ratios):
            ratios = {
                machine.name: machine.ratios[cell].ratio for machine in members if cell in machine.ratios
            }
            pool = pool_machines(ratios)
            if pool is not None:
                pooled[kind, cell] = pool
        for machine in members[1:]:
            decisive, _ = compare_environments(members[0].run.environment, machine.run.environment)
            if decisive:
                unlike[machine.name] = decisive
    return FleetComparison(fleet, machines, pooled, unlike)


def _machine_results(ledger: Ledger, name: str, kind: str, run: StoredRun) -> Iterator[MachineResult]:
    """Yield the result of a machine; of a class that shares the run, those of each machine and of all together."""
    if name:
        yield MachineResult(name, kind, run, _measure_ratios(ledger, run))
        return
    for machine in sorted({find_machine(trial.facts) for trial in run.trials}):
        own = tuple(trial for trial in run.trials if find_machine(trial.facts) == machine)
        part = replace(run, trials=own)
        yield MachineResult(machine, kind, part, _measure_ratios(ledger, part), shared=True)
    yield MachineResult(f"class {kind}", kind, run, _measure_ratios(ledger, run), shared=True)


def _measure_ratios(ledger: Ledger, run: StoredRun) -> dict[str, CellRatio]:
    """Return the ratios of a run in the primary metric of each table, by cell."""
    ratios = {}
    for workload in run_history.analyse_with_history(ledger, run).workloads:
        if not workload.metrics or workload.baseline is None:
            continue
        metric = workload.metrics[0]
        heading = figures.column_heading(metric, _NO_UNIT)
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
    """Add to each machine how far its values drifted; all tests of the report share one error rate."""
    tests = sum(len(machine.run.plan.cells) for machine in machines)
    results = []
    for machine in machines:
        drifts = {}
        for cell in machine.run.plan.cells:
            drift = detect_machine_drift(_primary_values(machine.run, cell), tests)
            if drift is not None:
                drifts[cell.id] = drift
        results.append(replace(machine, drifts=drifts))
    return tuple(results)


def _primary_values(run: StoredRun, cell: Cell) -> list[float]:
    """Return the primary metric's value of each good trial, in block order."""
    good = [trial for trial in run.trials if trial.cell_id == cell.id and trial.status is TrialStatus.OK]
    return [trial.measurements[0].value for trial in good if trial.measurements]


# --- the page -----------------------------------------------------------------------------------------------


def make_page(comparison: FleetComparison) -> Page:
    """Return all of it, for every renderer."""
    nodes: list[Node] = [
        _machine_table(comparison),
        *_ratio_nodes(comparison),
        *_list_remark_nodes(comparison),
    ]
    plans = [machine.run.plan for machine in comparison.machines]
    title = next((plan.title or plan.name for plan in plans), "")
    subtitle = f"by machine, {comparison.fleet}"
    section = Section(Kind.WORKLOAD, title or "By machine", tuple(nodes), subtitle)
    return Page(title or comparison.fleet, comparison.fleet, (section,))


def _machine_table(comparison: FleetComparison) -> Table:
    machines = comparison.machines
    table = TableBuilder(("machine",), [RowName((machine.name,), machine.name) for machine in machines])
    table.add("class", [word_cell(machine.kind or "its own") for machine in machines])
    table.add("state", [word_cell(machine.run.state.value) for machine in machines])
    table.add("blocks", [figure_cell(str(machine.run.blocks)) for machine in machines], (Align.RIGHT,))
    for status in TrialStatus:
        counts = [figure_cell(str(machine.count(status))) for machine in machines]
        table.add(status.value, counts, (Align.RIGHT,))
    table.add("run", [word_cell(machine.run.id) for machine in machines])
    return table.build("the machines, and how their trials ended")


def _ratio_nodes(comparison: FleetComparison) -> list[Node]:
    ratios = {cell: ratio for machine in comparison.machines for cell, ratio in machine.ratios.items()}
    if not ratios:
        return [Note(line("No machine has a ratio with an interval yet"), NoteKind.WARNING)]
    return [_cell_table(comparison, cell, ratio.metric, ratio.baseline) for cell, ratio in ratios.items()]


def _cell_table(comparison: FleetComparison, cell: str, metric: str, baseline: str) -> Table:
    rows = []
    for machine in comparison.machines:
        found = machine.ratios.get(cell)
        if found is not None:
            verdict = f"{found.verdict} ({found.reason})" if found.reason else found.verdict
            name = RowName((machine.name,), machine.name)
            rows.append(Row(name, (past_ratio_cell(found.ratio), word_cell(verdict))))
    for (kind, pooled_cell), pool in comparison.pooled.items():
        if pooled_cell == cell:
            spread = "not shown to differ"
            if pool.spread:
                spread = f"which differ by {figures.format_percent(pool.spread)}"
            pieces = figures.ratio_pieces(pool.ratio, pool.ci)
            cells = (figure_cell(*pieces), word_cell(f"{pool.machines} machines, {spread}"))
            rows.append(Row(RowName((f"class {kind}",), f"class {kind}"), cells, strong=True))
    return Table(
        f"{metric} of {cell} on each machine, and pooled over a class",
        ("machine",),
        (Column(metric, (Align.POINT, Align.LEFT)), Column("")),
        tuple(rows),
        heading=f"{cell} against {baseline}",
    )


def _list_remark_nodes(comparison: FleetComparison) -> list[Node]:
    nodes = _left_out_notes(comparison)
    for name, differences in comparison.unlike.items():
        texts = "; ".join(f"{what} {change}" for what, change in differences.items())
        nodes.append(_make_warning(f"{name} differs from its class: {texts}"))
    for (kind, cell), pool in comparison.pooled.items():
        for name in pool.different:
            claim = Claim.MACHINE_DIFFERS.format(machine=name, kind=kind, cell=cell)
            nodes.append(_make_warning(claim, Tone.WARNING))
    for machine in comparison.machines:
        nodes += _machine_remarks(machine)
    if comparison.pooled:
        nodes.append(
            Note(
                line(
                    "A class's ratio is for one more such machine (random effects, Hartung and Knapp's interval), "
                    "not that of any one of them"
                )
            )
        )
    if any(machine.shared for machine in comparison.machines):
        nodes.append(
            Note(
                line(
                    "Machines that shared a run are the units of its interval: Student's of their means, with one "
                    "degree of freedom less than machines"
                )
            )
        )
    nodes += [Note(line(text)) for text in _explain_unpooled(comparison)]
    return nodes


def _make_warning(text: str, tone: Tone = Tone.PLAIN) -> Note:
    return Note(line(text, tone), NoteKind.WARNING)


def _left_out_notes(comparison: FleetComparison) -> list[Node]:
    """Return what was left out, with the machines that left it out for the same reason."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for machine in comparison.machines:
        for entry in machine.run.unusable:
            names.setdefault((entry.name, entry.reason, entry.hint), []).append(machine.name)
    notes: list[Node] = []
    for (left_out, reason, hint), machines in names.items():
        advice = f"; {hint}" if hint else ""
        notes.append(_make_warning(f"{', '.join(machines)}: {left_out} was left out: {reason}{advice}"))
    return notes


def _machine_remarks(machine: MachineResult) -> list[Node]:
    notes = []
    for cell, drift in machine.drifts.items():
        rose, size = "rose" if drift > 0 else "fell", figures.format_percent(abs(drift))
        notes.append(
            _make_warning(Claim.MACHINE_MOVED.format(machine=machine.name, cell=cell, rose=rose, size=size))
        )
    failures = (trial.reason for trial in machine.run.trials if trial.status is TrialStatus.FAILED)
    if reason := next(failures, ""):
        notes.append(_make_warning(f"{machine.name}: a trial failed: {reason}"))
    if lost := machine.count(TrialStatus.LOST):
        trials = "trials were" if lost != 1 else "trial was"
        remedy = "and will be made up for by guestmark fleet resume"
        if machine.run.state is RunState.COMPLETE:
            remedy = "and made up for in later blocks"
        notes.append(Note(line(f"{machine.name}: {lost} {trials} lost, {remedy}")))
    return [*notes]


def _explain_unpooled(comparison: FleetComparison) -> Iterator[str]:
    """Yield why ratios of a class are not pooled, where machines measured them each by itself."""
    own = [machine for machine in comparison.machines if machine.kind and not machine.shared]
    for kind, size in Counter(machine.kind for machine in own).items():
        if size < FEWEST:
            yield f"Class {kind} has {size} of the {FEWEST} machines that pooling takes"
            continue
        members = (machine for machine in own if machine.kind == kind)
        counts = Counter(cell for machine in members for cell in machine.ratios)
        for cell, count in counts.items():
            if count < FEWEST:
                have = "has" if count == 1 else "have"
                yield (
                    f"Class {kind} is not pooled in {cell}: {count} of its {size} machines {have} a ratio with an "
                    f"interval, and it takes {FEWEST}"
                )


def make_document(comparison: FleetComparison) -> dict[str, Any]:
    """Return all of it for programs; a stable interface, as the result document is."""
    return {
        "schema": SCHEMA,
        "fleet": comparison.fleet,
        "machines": [
            {
                "name": machine.name,
                "class": machine.kind,
                "run": machine.run.id,
                "state": machine.run.state.value,
                "blocks": machine.run.blocks,
                "trials": {status.value: machine.count(status) for status in TrialStatus},
                "cells": {
                    cell: {
                        "ratio": found.ratio.ratio,
                        "ci": [found.ratio.low, found.ratio.high],
                        "verdict": found.verdict,
                    }
                    for cell, found in machine.ratios.items()
                },
                "drifts": dict(machine.drifts),
                "unlike": dict(comparison.unlike.get(machine.name, {})),
            }
            for machine in comparison.machines
        ],
        "classes": [
            {
                "class": kind,
                "cell": cell,
                "ratio": pool.ratio,
                "ci": list(pool.ci),
                "prediction": list(pool.prediction),
                "spread": pool.spread,
                "machines": pool.machines,
                "different": list(pool.different),
            }
            for (kind, cell), pool in comparison.pooled.items()
        ],
    }

"""Runs of one plan on the machines of a lab: by machine, and for machines of one class together, as one says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from guestmark.core.findings import find_machine
from guestmark.core.model import Cell, RunState, TrialStatus
from guestmark.ledger import run_history
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Node, Note, NoteKind, Page, Section
from guestmark.page.nodes import Part as Kind
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure_cell, word_cell
from guestmark.page.text import Tone, line
from guestmark.stats.across_runs import PastRatio
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.machines import FEWEST, PooledRatio, detect_machine_drift, pool_machines

if TYPE_CHECKING:
    from guestmark.ledger.store import Ledger

SCHEMA = "guestmark-fleet/1"
_NO_UNIT = figures.Unit(1.0, "")  # a ratio has none


@dataclass(frozen=True, slots=True)
class MachineResult:
    """What one machine found: ratios by cell, of which metric to which cell (`compared`), and by cell how far its
    values moved from the first block to the last.
    """

    name: str
    kind: str
    run: StoredRun
    ratios: Mapping[str, PastRatio]
    drifts: Mapping[str, float]
    verdicts: Mapping[str, str]
    reasons: Mapping[str, str]  # of verdicts, as far as something need be said
    compared: Mapping[str, tuple[str, str]]
    shared: bool = False  # it has a part of the run's blocks, or is all that share them

    def count(self, status: TrialStatus) -> int:
        """How many of its trials ended so."""
        return sum(trial.status is status for trial in self.run.trials)


@dataclass(frozen=True, slots=True)
class FleetComparison:
    """A whole lab: `together` by class and cell, `unlike` by machine: in what it is not as the first of its class."""

    fleet: str
    machines: tuple[MachineResult, ...]
    together: Mapping[tuple[str, str], PooledRatio] = field(default_factory=dict)
    unlike: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def compare_machines(ledger: Ledger, fleet: str, runs: Sequence[tuple[str, str, str]]) -> FleetComparison:
    """`runs` are name and class of each machine and the id of its run."""
    loaded = [(name, kind, ledger.load_run(run_id)) for name, kind, run_id in runs]
    machines = _with_drifts(
        [found for name, kind, run in loaded for found in _machine_results(ledger, name, kind, run)]
    )
    together: dict[tuple[str, str], PooledRatio] = {}
    unlike: dict[str, Mapping[str, str]] = {}
    for kind in dict.fromkeys(machine.kind for machine in machines if machine.kind):
        alike = [machine for machine in machines if machine.kind == kind and not machine.shared]
        for cell in dict.fromkeys(cell for machine in alike for cell in machine.ratios):
            both = {machine.name: machine.ratios[cell] for machine in alike if cell in machine.ratios}
            if (made := pool_machines(both)) is not None:
                together[kind, cell] = made
        for machine in alike[1:]:
            decisive, _ = compare_environments(alike[0].run.environment, machine.run.environment)
            if decisive:
                unlike[machine.name] = decisive
    return FleetComparison(fleet, machines, together, unlike)


def _machine_results(ledger: Ledger, name: str, kind: str, run: StoredRun) -> Iterator[MachineResult]:
    """One, or each machine of a class that shares the run, and all of them together."""
    if name:
        yield _measure_machine(ledger, name, kind, run)
        return
    for machine in sorted({find_machine(trial.facts) for trial in run.trials}):
        mine = tuple(trial for trial in run.trials if find_machine(trial.facts) == machine)
        yield replace(_measure_machine(ledger, machine, kind, replace(run, trials=mine)), shared=True)
    yield replace(_measure_machine(ledger, f"class {kind}", "", run), kind=kind, shared=True)


def _measure_machine(ledger: Ledger, name: str, kind: str, run: StoredRun) -> MachineResult:
    ratios: dict[str, PastRatio] = {}
    verdicts: dict[str, str] = {}
    reasons: dict[str, str] = {}
    compared: dict[str, tuple[str, str]] = {}
    for workload in run_history.analyse_with_history(ledger, run).workloads:
        if not workload.metrics:
            continue
        metric = workload.metrics[0]
        for result in workload.cells:
            comparison = result.comparison.get(metric.name)
            if comparison is None or comparison.ratio is None or comparison.ci is None:
                continue
            if result.cell.null_of is None and workload.baseline is not None:
                low, high = comparison.ci
                known = PastRatio(run.id, run.created_at, comparison.ratio, low, high, comparison.n)
                ratios[result.cell.id] = known
                verdicts[result.cell.id] = comparison.verdict.value
                reasons[result.cell.id] = comparison.reason
                compared[result.cell.id] = (
                    figures.column_heading(metric, _NO_UNIT),
                    workload.baseline.cell.id,
                )
    return MachineResult(name, kind, run, ratios, {}, verdicts, reasons, compared)


def _with_drifts(machines: Sequence[MachineResult]) -> tuple[MachineResult, ...]:
    """The machines with how far their values moved: one test of each cell, of which the report has so many."""
    tests = sum(len(machine.run.plan.cells) for machine in machines)
    found = []
    for machine in machines:
        by = {
            cell.id: detect_machine_drift(_primary_values(machine.run, cell), tests)
            for cell in machine.run.plan.cells
        }
        found.append(
            replace(machine, drifts={cell: moved for cell, moved in by.items() if moved is not None})
        )
    return tuple(found)


def _primary_values(run: StoredRun, cell: Cell) -> list[float]:
    """The primary metric's value of each good trial, in block order."""
    good = [trial for trial in run.trials if trial.cell_id == cell.id and trial.status is TrialStatus.OK]
    return [trial.measurements[0].value for trial in good if trial.measurements]


def make_page(found: FleetComparison) -> Page:
    """All of it, for every renderer."""
    nodes: list[Node] = [_machine_table(found), *_ratio_nodes(found), *_machine_notes(found)]
    plans = [machine.run.plan for machine in found.machines]
    title = next((plan.title or plan.name for plan in plans), "")
    section = Section(Kind.WORKLOAD, title or "By machine", tuple(nodes), f"by machine, {found.fleet}")
    return Page(title or found.fleet, found.fleet, (section,))


def _machine_table(found: FleetComparison) -> Table:
    rows = []
    for machine in found.machines:
        counts = [str(machine.count(status)) for status in TrialStatus]
        rows.append(
            Row(
                RowName((machine.name,), machine.name),
                (
                    word_cell(machine.kind or "its own"),
                    word_cell(machine.run.state.value),
                    figure_cell(str(machine.run.blocks)),
                    *(figure_cell(count) for count in counts),
                    word_cell(machine.run.id),
                ),
            )
        )
    number = (Align.RIGHT,)
    columns = (
        Column("class"),
        Column("state"),
        Column("blocks", number),
        *(Column(status.value, number) for status in TrialStatus),
        Column("run"),
    )
    return Table("the machines, and how their trials ended", ("machine",), columns, tuple(rows))


def _ratio_nodes(found: FleetComparison) -> list[Node]:
    compared = {cell: by for machine in found.machines for cell, by in machine.compared.items()}
    if not compared:
        return [Note(line("No machine has a ratio with an interval yet"), NoteKind.WARNING)]
    return [_cell_table(found, cell, *by) for cell, by in compared.items()]


def _cell_table(found: FleetComparison, cell: str, metric: str, baseline: str) -> Table:
    rows = []
    for machine in found.machines:
        if (known := machine.ratios.get(cell)) is not None:
            shown = _ratio(known.ratio, (known.low, known.high))
            reason = machine.reasons[cell]
            verdict = machine.verdicts[cell] + (f" ({reason})" if reason else "")
            rows.append(
                Row(RowName((machine.name,), machine.name), (figure_cell(*shown), word_cell(verdict)))
            )
    for (kind, pooled_cell), made in found.together.items():
        if pooled_cell == cell:
            name = f"class {kind}"
            differ = (
                f"which differ by {figures.format_percent(made.spread)}"
                if made.spread
                else "not shown to differ"
            )
            told = f"{made.machines} machines, {differ}"
            shown = _ratio(made.ratio, made.ci)
            rows.append(Row(RowName((name,), name), (figure_cell(*shown), word_cell(told)), strong=True))
    return Table(
        f"{metric} of {cell} on each machine, and pooled over a class",
        ("machine",),
        (Column(metric, (Align.POINT, Align.LEFT)), Column("")),
        tuple(rows),
        heading=f"{cell} against {baseline}",
    )


def _ratio(value: float, ci: tuple[float, float]) -> tuple[str, str]:
    number, _, interval = figures.format_ratio(value, ci).partition(" ")
    return number, interval


def _left_out_notes(found: FleetComparison) -> list[Node]:
    """What was left out, and on which machines for the same reason."""
    where: dict[tuple[str, str, str], list[str]] = {}
    for machine in found.machines:
        for entry in machine.run.unusable:
            where.setdefault((entry.name, entry.reason, entry.hint), []).append(machine.name)
    return [
        Note(
            line(f"{', '.join(names)}: {name} was left out: {reason}" + (f"; {hint}" if hint else "")),
            NoteKind.WARNING,
        )
        for (name, reason, hint), names in where.items()
    ]


def _machine_notes(found: FleetComparison) -> list[Node]:
    nodes = _left_out_notes(found)
    for name, differences in found.unlike.items():
        told = "; ".join(f"{what} {said}" for what, said in differences.items())
        nodes.append(Note(line(f"{name} is not like its class: {told}"), NoteKind.WARNING))
    for (kind, cell), made in found.together.items():
        for name in made.different:
            nodes.append(
                Note(
                    line(Claim.MACHINE_DIFFERS.format(machine=name, kind=kind, cell=cell), Tone.WARNING),
                    NoteKind.WARNING,
                )
            )
    for machine in found.machines:
        for cell, by in machine.drifts.items():
            nodes.append(
                Note(
                    line(
                        Claim.MACHINE_MOVED.format(
                            machine=machine.name,
                            cell=cell,
                            rose="rose" if by > 0 else "fell",
                            size=figures.format_percent(abs(by)),
                        )
                    ),
                    NoteKind.WARNING,
                )
            )
        if why := next(
            (trial.reason for trial in machine.run.trials if trial.status is TrialStatus.FAILED), ""
        ):
            nodes.append(Note(line(f"{machine.name}: a trial failed: {why}"), NoteKind.WARNING))
        lost = machine.count(TrialStatus.LOST)
        if lost:
            plural = "s were" if lost != 1 else " was"
            after = (
                "and made up for in later blocks"
                if machine.run.state is RunState.COMPLETE
                else "and will be made up for by guestmark fleet resume"
            )
            nodes.append(Note(line(f"{machine.name}: {lost} trial{plural} lost, {after}")))
    if found.together:
        nodes.append(
            Note(
                line(
                    "A class's ratio is for one more such machine (random effects, Hartung and Knapp's interval), "
                    "not that of any one of them"
                )
            )
        )
    if any(machine.shared for machine in found.machines):
        nodes.append(
            Note(
                line(
                    "Machines that shared a run are the units of its interval: Student's of their means, with one "
                    "degree of freedom less than machines"
                )
            )
        )
    nodes += [Note(line(text)) for text in _explain_unpooled(found)]
    return nodes


def _explain_unpooled(found: FleetComparison) -> Iterator[str]:
    """Yield why ratios of a class are not taken together, where machines measured them each by itself."""
    own = [machine for machine in found.machines if machine.kind and not machine.shared]
    for kind, size in Counter(machine.kind for machine in own).items():
        if size < FEWEST:
            yield f"Class {kind} has {size} of the {FEWEST} machines that pooling takes"
            continue
        known = Counter(cell for machine in own if machine.kind == kind for cell in machine.ratios)
        for cell, count in known.items():
            if count < FEWEST:
                have = "has" if count == 1 else "have"
                yield (
                    f"Class {kind} is not pooled in {cell}: {count} of its {size} machines {have} a ratio with an "
                    f"interval, and it takes {FEWEST}"
                )


def make_document(found: FleetComparison) -> dict[str, Any]:
    """For programs; a stable interface, as the result document is."""
    return {
        "schema": SCHEMA,
        "fleet": found.fleet,
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
                        "ratio": known.ratio,
                        "ci": [known.low, known.high],
                        "verdict": machine.verdicts[cell],
                    }
                    for cell, known in machine.ratios.items()
                },
                "drifts": dict(machine.drifts),
                "unlike": dict(found.unlike.get(machine.name, {})),
            }
            for machine in found.machines
        ],
        "classes": [
            {
                "class": kind,
                "cell": cell,
                "ratio": made.ratio,
                "ci": list(made.ci),
                "prediction": list(made.prediction),
                "spread": made.spread,
                "machines": made.machines,
                "different": list(made.different),
            }
            for (kind, cell), made in found.together.items()
        ],
    }

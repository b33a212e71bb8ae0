"""The table of a proof: what a power cut would leave, and how that was found out."""

from collections.abc import Sequence

from guestmark.core.findings import Again, Proof, Proven
from guestmark.ledger.model import StoredRun
from guestmark.page.names import row_names
from guestmark.page.nodes import Node, Note
from guestmark.page.tables import Align, Column, Row, RowName, Table, figure, words
from guestmark.page.text import line
from guestmark.stats.analysis import CellResult, WorkloadResult

_TITLE = "What a power cut leaves"


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """One row for each cell, and for what is lost the first that is."""
    shown = [(result, found) for result in workload.shown if (found := proof_of(result)) is not None]
    if not shown:
        return []
    headings, names = row_names(workload, [result for result, _ in shown])
    rows = [(name, found) for name, (_, found) in zip(names, shown, strict=True)]
    notes = [Note(line(f"{result.cell.id}: {sentence(found)}")) for result, found in shown]
    return [table(headings, rows), *notes]


def table(headings: Sequence[str], found: Sequence[tuple[RowName, Proven]]) -> Table:
    """A row for each proof."""
    columns = [
        Column("durability"), *(Column(title, (Align.POINT,)) for title in ("lose", "repairs")),
        Column("controls"),
    ]  # fmt: skip
    rows = tuple(
        Row(
            name,
            (
                words(str(proven.word)),
                figure(f"{proven.losing:,} of {proven.states:,}"),
                figure(str(proven.repaired)),
                words(caught(proven)),
            ),
        )
        for name, proven in found
    )
    return Table(_TITLE, tuple(headings), tuple(columns), rows, heading=_TITLE)


def proof_of(result: CellResult) -> Proven | None:
    """The last proof among its trials."""
    found = [proof.proven for trial in result.trials if (proof := trial.facts.of(Proof)) is not None]
    return found[-1] if found else None


def controls(found: Proven) -> str:
    """Which controls were caught."""
    said = [
        f"{control.name} {'not applicable' if not control.applies else f'{control.losing} of {control.states}'}"
        for control in found.controls
    ]
    return ", ".join(said)


def caught(found: Proven) -> str:
    """Whether the controls were caught, or which were not."""
    missed = [control.name for control in found.controls if not control.caught]
    return f"missed: {', '.join(missed)}" if missed else "caught" if found.controls else "none"


def sentence(found: Proven) -> str:
    """The result in one line, or a few sentences."""
    counts = (
        f"{found.states:,} crash states ({found.coverage})"
        if found.coverage
        else f"{found.states} crash states"
    )
    checked = f"; controls: {controls(found)}" if found.controls else ""
    name = found.kept.rpartition("/")[2]
    kept = f"; guestmark powercut replay {name} looks into it" if name else ""
    if found.losing:
        return (
            f"{found.word}: {found.first_loss}; {found.losing:,} of {counts} lose some of {found.acknowledged} "
            f"acknowledged records; {found.why}{_again(found.again)}{checked}{kept}"
        )
    repairs = f", {found.repaired} need repairs ({found.first_repair})" if found.repaired else ", 0 repairs"
    acknowledged = f"{found.acknowledged} acknowledged records, 0 lost"
    return f"{found.word}: {counts}, {acknowledged}{repairs}; {found.why}{checked}{kept}"


def _again(again: Again | None) -> str:
    if again is None:
        return ""
    if not again.states:
        return f"; a second log: {again.why}"
    return f"; a second log: {again.word}, {again.losing:,} of {again.states:,} states ({again.why})"

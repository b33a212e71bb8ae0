"""The report's part on clones: sentences about twins, and the table that they are based on."""

import math
from collections.abc import Iterator, Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets, Node, Note, Paragraph
from guestmark.page.tables import Cell, Column, Row, RowName, Table, make_word_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.clones import Control, Found, Twins, Verdict, Word
from guestmark.workloads.common.facts import list_facts, pair_with_cells

_TITLE = "What the machines share"
_TONES = {
    Word.IDENTICAL: Tone.SLOWER,
    Word.WRONG: Tone.SLOWER,
    Word.DISTINCT: Tone.FASTER,
    Word.RIGHT: Tone.FASTER,
}
_WORST_FIRST = (Verdict.TWINS, Verdict.STALE, Verdict.UNPROVEN, Verdict.STRANGERS)
_VERDICTS = {Verdict.STRANGERS: Tone.FASTER, Verdict.TWINS: Tone.SLOWER, Verdict.STALE: Tone.SLOWER}


def conclude_twins(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Returns a sentence for each cell that states whether its machines are twins."""
    nodes = []
    for result, twins in pair_with_cells(workload, find_worst_twins):
        name = Span(result.cell.id, Tone.NAME)
        verdict = Span(str(twins.verdict), _VERDICTS.get(twins.verdict, Tone.UNCLEAR))
        nodes.append(Note(spans(name, ": ", verdict, f" among {_describe_machines(twins)}")))
    return nodes


def render_sources(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders a sentence for each cell, a row for each source, and the commands that show what is identical."""
    shown = pair_with_cells(workload, find_worst_twins)
    if not shown:
        return []
    sources: dict[str, None] = {}
    for _, twins in shown:
        sources |= dict.fromkeys(found.source for found in twins.found)
    columns = tuple(Column(result.cell.id) for result, _ in shown)
    rows = []
    for source in sources:
        cells = tuple(_render_word(source, twins) for _, twins in shown)
        rows.append(Row(RowName((source,)), cells))
    nodes: list[Node] = [Paragraph(summarize_twins(result.cell.id, twins)) for result, twins in shown]
    nodes.append(Table(_TITLE, ("",), columns, tuple(rows), divisible=True, heading=_TITLE))
    nodes += _render_commands(shown)
    for result, twins in shown:
        for control in twins.controls:
            said = f"{control.name}: {_describe_control(control)} ({control.said})"
            nodes.append(Note(line(f"{result.cell.id}: control, {said}")))
    return nodes


def _describe_machines(twins: Twins) -> str:
    return f"{twins.machines} {'clones of one template' if twins.template else 'fresh machines'}"


def find_worst_twins(result: CellResult) -> Twins | None:
    """Returns the findings of the cell's trial with the worst verdict, of equal ones the last."""
    found = list_facts(result.good_trials, Twins)
    return min(reversed(found), key=lambda twins: _WORST_FIRST.index(twins.verdict), default=None)


def summarize_twins(cell: str, twins: Twins) -> Inline:
    """Summarizes the findings, their scope and their limits."""
    deciding = [each for each in twins.found if each.decides]
    distinct = sum(each.word is Word.DISTINCT for each in deciding)
    parts = [
        f"{_describe_machines(twins)}; {distinct} of {len(deciding) - 1} secrets and names proven distinct"
    ]
    own, host = list[str](), list[str]()
    for finding in twins.found:
        if finding.word is Word.IDENTICAL:
            sources = host if finding.of_host else own
            sources.append(finding.source)
    if own:
        parts.append(f"identical: {', '.join(own)}")
    if host:
        parts.append(f"this host's own: {', '.join(host)}")
    caught = sum(control.caught for control in twins.controls)
    parts.append(f"controls caught: {caught} of {len(twins.controls)}")
    if twins.verdict is Verdict.STRANGERS:
        parts.append(Claim.NO_TWINS.format(share=f"{math.ceil(100 * twins.seen_from)} %"))
    return spans(Span(f"{cell}: {twins.verdict}", Tone.STRONG), f": {'; '.join(parts)}.")


def _describe_control(control: Control) -> str:
    return "caught" if control.caught else "MISSED"


def _render_word(source: str, twins: Twins) -> Cell:
    for found in twins.found:
        if found.source == source:
            text = f"{found.word} (this host's)" if found.of_host else str(found.word)
            return make_word_cell(text, _TONES.get(found.word, Tone.PLAIN), note=found.said)
    return make_word_cell("–")


def _render_commands(shown: Sequence[tuple[CellResult, Twins]]) -> Iterator[Node]:
    items: dict[str, Inline] = {}
    untried: dict[str, None] = {}
    for result, twins in shown:
        for each in twins.found:
            if each.word in (Word.IDENTICAL, Word.WRONG, Word.CHANCE):
                items[f"{result.cell.id} {each.source}"] = _describe_finding(result.cell.id, each)
            elif each.word is Word.UNTRIED:
                untried[f"{result.cell.id}: {each.source}: {each.said}"] = None
    if items:
        yield Bullets(line("Commands that show this, run in each machine:"), tuple(items.values()))
    if untried:
        yield Bullets(line("Not tried:"), tuple(map(line, untried)))


def _describe_finding(cell: str, found: Found) -> Inline:
    return line(f"{cell}: {found.source}: {found.said}: {found.command}")

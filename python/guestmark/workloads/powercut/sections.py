"""The report's part on power cuts: what a cut would leave on each disk, and how that was determined."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from guestmark.core import registry
from guestmark.core.findings import (
    Durability,
    Explanation,
    LossCause,
    Proof,
    Proven,
    SecondLog,
    Unsynced,
    Untorn,
)
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.names import name_rows
from guestmark.page.nodes import Command, Node, Note, NoteKind
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell, make_word_cell
from guestmark.page.text import Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.common.facts import list_facts, pair_with_cells

_TITLE = "What a power cut leaves"


_KEPT = {
    Durability.PROVEN: Tone.FASTER, Durability.CONSISTENT: Tone.FASTER, Durability.LOST: Tone.SLOWER,
    Durability.BROKEN: Tone.SLOWER, Durability.MEMORY: Tone.SLOWER,
}  # fmt: skip


def render_proofs(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders a row for each cell with a proof, and notes on how its verdict was determined."""
    shown = pair_with_cells(workload, find_proof)
    if not shown:
        return []
    headings, names = name_rows(workload, [result for result, _ in shown])
    rows, notes = [], []
    for name, (result, found) in zip(names, shown, strict=True):
        rows.append((name, found))
        notes.append(Note(line(f"{result.cell.id}: {summarize_proof(found)}"), NoteKind.SMALL))
    return [build_proof_table(headings, rows, _read_promises(workload)), *notes]


def conclude_proofs(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Returns what a power cut does to each cell, with the command that shows a loss."""
    shown = pair_with_cells(workload, find_proof)
    said: list[Node] = []
    for result, found in shown:
        name = Span(result.cell.id, Tone.NAME)
        word = Span(str(found.word), _choose_tone(found))
        said.append(Note(spans(name, ": ", word, f", {_describe_verdict(found)}")))
    # All verdicts come first, then the reasons, so that verdicts can be compared at a glance.
    for describe in (describe_reasons, describe_explanation):
        for result, found in shown:
            if why := describe(found):
                said.append(Note(line(f"{result.cell.id}: {why}")))
    for result, found in shown:
        for remark in list_limits(found):
            said.append(Note(line(f"{result.cell.id}: {remark}")))
    for _, found in shown:
        if found.losing and found.kept:
            said.append(Command("Inspect the loss", f"guestmark powercut replay {_describe_log(found)}"))
            break
    return said


def _choose_tone(found: Proven) -> Tone:
    return _KEPT.get(found.word, Tone.UNCLEAR)


def _describe_log(found: Proven) -> str:
    return found.kept.rpartition("/")[2]


def _describe_verdict(found: Proven) -> str:
    """Returns how many crash states lose acknowledged records; for other verdicts, the reason."""
    records = describe_acknowledged(found)
    if found.word.is_about_consistency:
        return _describe_consistency(found)
    if found.word in {Durability.PROVEN, Durability.SYNCED_PART_PROVEN}:
        return f"none of {found.states:,} crash states loses any of {records}{describe_unsynced(found)}"
    if not found.losing:
        return f"{found.why}{describe_unsynced(found)}"
    dropped = ""
    if found.asked and found.flushes < found.asked:
        dropped = f"; of {found.asked} requested flushes, this host saw {found.flushes or 'none'}"
    lose = "loses" if found.losing == 1 else "lose"
    again = _describe_second_log(found.again)
    return f"{found.losing:,} of {found.states:,} crash states {lose} some of {records}{again}{dropped}"


def _describe_second_log(again: SecondLog | None) -> str:
    if again is None or not again.states:
        return ""
    return f"; {again.losing:,} of {again.states:,} in a second log"


def _describe_consistency(found: Proven) -> str:
    """Describes the result for a program that acknowledges nothing."""
    if found.losing:
        again = _describe_second_log(found.again)
        return f"the check fails on {found.losing:,} of {found.states:,} crash states{again}"
    return f"the check passes on all {found.states:,} crash states; {found.why}"


_REASONS_NAMED = 4
_CAUSES_NAMED = 2


def describe_reasons(found: Proven) -> str:
    """Returns the check's messages, most frequent first: `91 states: HEAD lost; 5 states: fsck`; empty if none."""
    said = [f"{format_count(each.states, 'state')}: {each.said}" for each in found.reasons[:_REASONS_NAMED]]
    more = sum(each.states for each in found.reasons[_REASONS_NAMED:])
    if more:
        said.append(format_count(more, "more state"))
    return "; ".join(said)


def describe_explanation(found: Proven) -> str:
    """Returns why records were lost, and whether added syncs cure that; empty if unknown."""
    why = found.explanation
    if why is None:
        return ""
    if why.without:
        settings = ", ".join(why.without)
        if why.losing:
            return f"{why.losing:,} of {why.states:,} crash states lose a row without {settings}, too"
        return (
            f"with {settings}, a commit does not wait for its sync; without it, none of {why.states:,} crash states "
            "loses a row"
        )
    said = f"this alone causes '{why.said}': {_describe_cause(why)}"
    if not why.files:
        said = f"no files were found that alone cause '{why.said}'"
    for cause in list_further_causes(why)[:_CAUSES_NAMED]:
        said += f". With that cured, this alone causes it: {_describe_cause(cause)}"
    if not why.states:
        if found.untorn is not None and found.losing and not found.untorn.losing:
            said += f". {describe_torn(found.untorn)}"
        return said
    return f"{said}. {describe_cure(why)}"


def _describe_cause(cause: Explanation | LossCause) -> str:
    """Returns which files differed, and which calls had left them unsynced."""
    said = ", ".join(cause.files[:_FILES_NAMED])
    if len(cause.files) > _FILES_NAMED:
        said += f" and {format_count(len(cause.files) - _FILES_NAMED, 'more file')}"
    if cause.calls:
        said += f": {'; '.join(cause.calls[:_FILES_NAMED])}"
    return said


def list_further_causes(why: Explanation) -> list[LossCause]:
    """Returns the causes that were found with syncs added, each once, without those that no call explains."""
    known, found = {tuple(why.calls)}, list[LossCause]()
    for cause in why.further:
        if cause.files and tuple(cause.calls) not in known:
            known.add(tuple(cause.calls))
            found.append(cause)
    return found


def describe_cure(why: Explanation) -> str:
    """Returns which syncs were added, and what is still lost with them."""
    syncs = f"With a sync added {_describe_places(why)}"
    if not why.losing:
        return f"{syncs}, none of {why.states:,} fails"
    still = f"{syncs}, {why.losing:,} of {why.states:,} crash states still fail"
    # A check may fail for reasons other than the files of its disk, such as the lines that it gets.
    explained = why.files or any(cause.files for cause in why.further)
    if why.untorn is None or not explained:
        return still
    if not why.untorn.losing:
        still += f". {describe_torn(why.untorn)}"
        return f"{still}, so that no sync cures it" if why.every else still
    if why.each and why.untorn.flushed:
        return (
            f"{still}, {why.untorn.flushed:,} of them although they hold all that the program had written "
            "when it acknowledged a record: it acknowledges before it writes, which no sync cures"
        )
    return f"{still}: no sync after any of its calls cures it" if why.every else still


def describe_torn(untorn: Untorn | None) -> str:
    """Returns a sentence that attributes all losses to torn writes."""
    assert untorn is not None
    return f"A write is torn in each of them: where writes are whole, none of {untorn.states:,} fails"


def _describe_places(why: Explanation) -> str:
    """Returns where syncs were added: `after rename refs/heads/master`."""
    places = []
    if why.every:
        places.append("after every call that changes the disk")
    if why.added:
        places.append(f"after {', '.join(why.added[:_FILES_NAMED])}")
        if len(why.added) > _FILES_NAMED:
            places[-1] += f" and {format_count(len(why.added) - _FILES_NAMED, 'more call')}"
    if why.each:
        places.append("before each acknowledgement")
    return " and ".join(places)


def list_limits(found: Proven) -> list[str]:
    """Returns what limits a proof, a sentence for each limit."""
    said = []
    if found.stopped and found.coverage is not None and found.word is not Durability.UNKNOWN:
        said.append(f"{found.states:,} crash states were judged, until {found.stopped}: {found.coverage}")
    if found.syncs_cut_short:
        said.append(
            f"only the beginning was judged: the program was stopped after {format_count(found.acknowledged, 'sync')}, "
            "and what it does later may be lost"
        )
    if found.unjudged and found.losing:
        said.append(f"{format_count(found.unjudged, 'crash state')} could not be judged")
    if found.early_states:
        said.append(describe_early_returns(found))
    if found.torn_superblocks:
        said.append(describe_torn_superblocks(found))
    if found.blind:
        said.append(
            "the check also passes for a line that was never acknowledged, so it does not search for each line"
        )
    if found.alone:
        said.append(
            f"states were judged one at a time, because checks would disturb each other: {found.alone}"
        )
    return said


def describe_early_returns(found: Proven) -> str:
    """Returns in how many losing states the acknowledgement came before the flush that it had to wait for."""
    call = "a sync had returned" if found.syncs else "a record had been acknowledged"
    several = format_count(found.early_states, "losing state")
    return (
        f"in {several} {call} {format_count(found.early_requests, 'request')} before its data were safe: "
        "the fault lies below the program, in its filesystem, its hypervisor or its disk"
    )


def describe_torn_superblocks(found: Proven) -> str:
    """Returns in how many states a cut within the filesystem's own superblock has cost records."""
    several = format_count(found.torn_superblocks, "more state")
    lose = "loses" if found.torn_superblocks == 1 else "lose"
    return (
        f"{several} {lose} something because the filesystem's own superblock is torn, which no sync prevents: a disk "
        "that writes 4,096 bytes atomically cannot leave such a state"
    )


def describe_acknowledged(found: Proven) -> str:
    """Returns the number of acknowledgements that states were searched for: records, or the program's syncs."""
    return format_count(found.acknowledged, "sync" if found.syncs else "acknowledged record")


_FILES_NAMED = 3


def describe_unsynced(found: Proven) -> str:
    """Returns, as the end of a sentence, what the program left on the disk without a sync; empty if nothing."""
    said = f"; never synced: {_list_uncovered(found.unsynced)}" if found.unsynced else ""
    if found.rebuilt:
        said += f"; not synced, because its database recreates it: {_list_uncovered(found.rebuilt)}"
    return said


def _list_uncovered(files: Sequence[Unsynced]) -> str:
    said = ", ".join(_describe_uncovered(file) for file in files[:_FILES_NAMED])
    more = len(files) - _FILES_NAMED
    if more > 0:
        said += f" and {format_count(more, 'more file')}"
    return said


def _describe_uncovered(file: Unsynced) -> str:
    name = PurePosixPath(file.path).name
    if not file.bytes:
        return f"the name {name}"
    unit = figures.choose_unit("B", [file.bytes])
    amount = file.bytes / unit.size
    decimals = 0 if amount >= 100 or unit.size == 1 else 1
    return f"{figures.format_number(amount, decimals)} {unit.name} of {name}"


@dataclass(frozen=True, slots=True)
class ProgramPromise:
    """A program's documented promise, and the number of faults that an earlier study found; None if not covered."""

    words: str
    published: int | None


def _read_promises(workload: WorkloadResult) -> ProgramPromise | None:
    kind = registry.workload_kind("powercut")
    if not workload.cells:
        return None
    params = kind.stored_params_of(workload.cells[0].cell.workload)
    if params is None or not params.promise:
        return None
    return ProgramPromise(params.promise, params.published)


def build_proof_table(
    headings: Sequence[str], found: Sequence[tuple[RowName, Proven]], promised: ProgramPromise | None = None
) -> Table:
    """Builds a table with a row for each proof; `promised` adds the program's promise."""
    columns = [
        Column("durability"), Column("lose", (Align.POINT,)), Column("repairs", (Align.POINT,)), Column("controls"),
    ]  # fmt: skip
    if promised is not None:
        columns += [Column("promised"), Column("faults in 2014")]
    rows = []
    for name, proven in found:
        cells = (
            make_word_cell(str(proven.word), _choose_tone(proven)),
            make_figure_cell(f"{proven.losing:,} of {proven.states:,}"),
            make_figure_cell(str(proven.repaired)),
            make_word_cell(summarize_controls(proven)),
            *_render_promise(promised),
        )
        rows.append(Row(name, cells))
    return Table(_TITLE, tuple(headings), tuple(columns), tuple(rows), heading=_TITLE)


def _render_promise(promised: ProgramPromise | None) -> tuple[Cell, ...]:
    if promised is None:
        return ()
    published = "–" if promised.published is None else str(promised.published)
    return make_word_cell(promised.words), make_word_cell(published)


def find_proof(result: CellResult) -> Proven | None:
    """Returns the last proof among a cell's trials."""
    proofs = list_facts(result.trials, Proof)
    return proofs[-1].proven if proofs else None


def describe_controls(found: Proven) -> str:
    """Returns the result of each control."""
    said = []
    for control in found.controls:
        outcome = "not applicable"
        if control.applies:
            outcome = f"{control.losing} of {control.states}"
        said.append(f"{control.name} {outcome}")
    return ", ".join(said)


def summarize_controls(found: Proven) -> str:
    """Returns whether the controls were caught, or else which were missed."""
    missed = [control.name for control in found.controls if not control.is_caught]
    if missed:
        return f"missed: {', '.join(missed)}"
    return "caught" if found.controls else "none"


def summarize_proof(found: Proven) -> str:
    """Returns the result of a proof in one line: verdict, states, losses, controls and the log."""
    counts = f"{found.states} crash states"
    if found.coverage:
        counts = f"{found.states:,} crash states ({found.coverage})"
    checked = ""
    if found.controls:
        checked = f"; controls: {describe_controls(found)}"
    if found.checks is not None and found.checks < found.states:
        checked += (
            f"; the check was run {found.checks:,} times, once for states in which it sees the same files"
        )
    kept = ""
    if found.kept:
        kept = f"; to inspect it: guestmark powercut replay {_describe_log(found)}"
    if found.word.is_about_consistency:
        first = f"{found.first_loss}; " if found.first_loss else ""
        return f"{found.word}: {first}{counts}, {_describe_consistency(found)}{checked}{kept}"
    if found.losing:
        lost = describe_acknowledged(found)
        return (
            f"{found.word}: {found.first_loss}; {found.losing:,} of {counts} lose some of {lost}; "
            f"{found.why}{describe_unsynced(found)}{_describe_confirmation(found.again)}{checked}{kept}"
        )
    repairs = ", 0 repairs"
    if found.repaired:
        repairs = f", {found.repaired} need repairs ({found.first_repair})"
    kept_all = f"{describe_acknowledged(found)}, 0 lost"
    return (
        f"{found.word}: {counts}, {kept_all}{repairs}; {found.why}{describe_unsynced(found)}{checked}{kept}"
    )


def _describe_confirmation(again: SecondLog | None) -> str:
    if again is None:
        return ""
    if not again.states:
        return f"; a second log: {again.why}"
    return f"; a second log: {again.word}, {again.losing:,} of {again.states:,} states ({again.why})"

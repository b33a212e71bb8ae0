"""The sections of a report, each made once; a page is made here and drawn by `report.render`."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from guestmark.core import registry
from guestmark.core.actions import actions
from guestmark.core.model import CellStatus
from guestmark.ledger.model import Origin, Standing, StoredRun
from guestmark.page.nodes import Command, Definitions, Node, Note, NoteKind, Page, Part, Section
from guestmark.page.text import Span, Tone, line, spans
from guestmark.stats.analysis import Analysis, WorkloadResult


def page(
    run: StoredRun,
    analysis: Analysis,
    *,
    published: bool = True,
    environment: bool = True,
    details: bool = True,
) -> Page:
    """Everything about a run: the results of each workload, published figures, conclusion, environment, small print.

    Terminals leave out the published figures, the environment, what to do about notes, and how the runs differ where
    that says no more than the typical run does, unless they are asked for.
    """
    from guestmark.report.sections import answers, gates, more_time, tuning, validity
    from guestmark.report.sections import published as publications
    from guestmark.report.sections.conclusion import conclusion
    from guestmark.report.sections.environment import section as surroundings
    from guestmark.report.sections.footer import footer

    raced = tuning.nodes(analysis, run)
    measured = () if raced else tuple(filter(compared, analysis.workloads))
    whole = analysis
    if measured != analysis.workloads:
        disturbed = analysis.flagged_blocks if measured else ()
        analysis = replace(analysis, workloads=measured, flagged_blocks=disturbed)
    sections = [
        _workload(workload, run, published=published, details=details)
        for workload in (() if raced else whole.workloads)
    ]
    if run.origin is not None:
        sections.insert(0, imported(run, run.origin, whole=True))
    if raced:
        shown = (node for node in raced if not isinstance(node, Note))
        sections.append(Section(Part.WORKLOAD, "The race", tuple(shown)))
    if published and (nodes := publications.not_measured(analysis)):
        sections.append(Section(Part.PUBLISHED, "Published figures", tuple(nodes), titled=False))
    kept = gates.nodes(gates.judged(analysis), analysis, run)
    answered = [] if raced else answers.nodes(whole)  # also of workloads that are not compared
    uncompared: list[Node] = [node for node in raced if isinstance(node, Note)]
    uncompared += [node for workload in whole.workloads for node in concluded(workload, run)]
    if said := [*conclusion(analysis), *uncompared, *answered, *kept, *more_time.nodes(analysis, run)]:
        sections.append(Section(Part.CONCLUSION, "Conclusion", tuple(said), titled=False))
    if limits := validity.lines(analysis, whole=environment):
        sections.append(Section(Part.VALIDITY, "What limits these figures", tuple(limits), titled=False))
    if environment and (found := surroundings(run)) is not None:
        sections.append(Section(Part.ENVIRONMENT, "Measured on", (found,)))
    sections.append(
        Section(
            Part.FOOTER,
            "About this run",
            tuple(footer(replace(whole, flagged_blocks=analysis.flagged_blocks), run)),
            titled=False,
        )
    )
    only = whole.workloads[0].title if len(whole.workloads) == 1 else run.plan.name
    return Page(run.plan.title or only, run.id, tuple(sections))


def live(workload: WorkloadResult) -> Section:
    """A workload's result without details, for the screen of a run that is going on."""
    from guestmark.page.names import everywhere, key
    from guestmark.report.sections import results

    table: list[Node] = [results.table(workload), *results.units(workload)] if workload.metrics else []
    nodes = (*table, *troubles(workload))
    return Section(Part.WORKLOAD, workload.title, nodes, everywhere(workload), key(workload))


def _workload(workload: WorkloadResult, run: StoredRun, *, published: bool, details: bool) -> Section:
    from guestmark.page.names import everywhere, key
    from guestmark.report.sections import (
        effects,
        estimands,
        explanations,
        results,
        trials,
    )
    from guestmark.report.sections import published as publications
    from guestmark.report.sections.durability import proofs

    nodes: list[Node]
    if not compared(workload):
        nodes = [*of_kind(workload, run), *troubles(workload), *trials.sections(workload, run)]
        return Section(Part.WORKLOAD, workload.title, tuple(nodes), everywhere(workload), key(workload))
    nodes = [*results.sections(workload, run), *proofs(workload)]
    nodes += estimands.tables(workload, details=details)
    nodes += effects.tables(workload) if details else []
    nodes += of_kind(workload, run)
    if published:
        nodes += publications.sections(workload, run)
    nodes += troubles(workload)
    for sections in (results.further, trials.sections, explanations.counted):
        nodes += sections(workload, run)
    return Section(Part.WORKLOAD, workload.title, tuple(nodes), everywhere(workload), key(workload))


Sections = Callable[[WorkloadResult, StoredRun], Sequence[Node]]


def compared(workload: WorkloadResult) -> bool:
    """Whether cells are compared by their values; not where all of their kinds only find something out."""
    kinds = registry.workload_kinds()
    names = {result.cell.workload.name for result in workload.cells}
    return not names or any(name not in kinds or kinds[name].compared for name in names)


def of_kind(workload: WorkloadResult, run: StoredRun) -> list[Node]:
    """What the kinds of the workloads in this table add; each kind's sections once.

    A kind that is gone since the run was stored adds nothing.
    """
    kinds = registry.workload_kinds()
    names = dict.fromkeys(result.cell.workload.name for result in workload.cells)
    further: dict[Sections, None] = {}
    for name in names:
        if name in kinds:
            further |= dict.fromkeys(kinds[name].sections())
    return [node for sections in further for node in sections(workload, run)]


def concluded(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """What a workload comes to that is not compared."""
    kind = registry.workload_kinds().get(workload.workload.name)
    conclude: Sections | None = None if kind is None else kind.conclusion()
    if compared(workload) or conclude is None:
        return ()
    return conclude(workload, run)


def imported(run: StoredRun, origin: Origin, *, whole: bool) -> Section:
    """Its source; with `whole` also its commands, as whom, where, and with which variables they run."""
    nodes: list[Node] = [
        Note(
            line(f"This run {origin.describe()}; figures and names are unverified"),
            NoteKind.WARNING,
        )
    ]
    if origin.standing is not Standing.OWN:
        nodes.append(Command("If it is yours", f"guestmark ledger sign {run.id}"))
    if whole and (rows := actions(run.plan)):
        nodes.append(Definitions("What it runs", tuple(rows)))
    if whole and origin.sha256:
        nodes.append(Definitions("The bundle", (("SHA-256", origin.sha256),)))
    return Section(Part.WORKLOAD, "Imported", tuple(nodes), titled=False)


_WRONG = {CellStatus.UNUSABLE, CellStatus.FAILED, CellStatus.PARTIAL}


def troubles(workload: WorkloadResult) -> list[Node]:
    """A line for each cell that failed, wholly or in part, or could not be tried, and for a missing baseline."""
    nodes: list[Node] = []
    for result in workload.cells:
        if result.status in _WRONG:
            partial = result.status is CellStatus.PARTIAL
            nodes.append(
                Note(
                    spans(
                        Span(f"{result.cell.id}: ", Tone.STRONG),
                        Span(result.status.value, Tone.WARNING if partial else Tone.ERROR),
                        f" – {result.reason}",
                    ),
                    NoteKind.WARNING if partial else NoteKind.ERROR,
                )
            )
    baseline, metric = workload.baseline, workload.metrics[:1]
    if baseline and metric and metric[0].name not in baseline.summary and len(workload.shown_cells) > 1:
        nodes.append(
            Note(
                spans(f"No comparison is possible: the baseline {baseline.cell.id} was not measured"),
                NoteKind.ERROR,
            )
        )
    return nodes

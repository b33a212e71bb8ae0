"""The sections of a report, each made once; a page is made here and drawn by `report.render`."""

from dataclasses import replace

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Node, Page, Part, Section
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
    from guestmark.report.sections.by_workload import compared
    from guestmark.report.sections.conclusion import conclusion
    from guestmark.report.sections.environment import section as surroundings
    from guestmark.report.sections.footer import footer
    from guestmark.report.sections.imported import imported

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
        sections.insert(0, imported(run, run.origin, whole=environment))
    if raced:
        sections.append(Section(Part.WORKLOAD, run.plan.title or run.plan.name, tuple(raced)))
    if published and (nodes := publications.not_measured(analysis)):
        sections.append(Section(Part.PUBLISHED, "Published figures", tuple(nodes), titled=False))
    kept = gates.nodes(gates.judged(analysis), analysis, run)
    answered = [] if raced else answers.nodes(whole)  # also of workloads that are not compared
    if said := [*conclusion(analysis), *answered, *kept, *more_time.nodes(analysis, run)]:
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
    from guestmark.report.sections import results, troubles

    table: list[Node] = [results.table(workload), *results.units(workload)] if workload.metrics else []
    nodes = (*table, *troubles.lines(workload))
    return Section(Part.WORKLOAD, workload.title, nodes, everywhere(workload), key(workload))


def _workload(workload: WorkloadResult, run: StoredRun, *, published: bool, details: bool) -> Section:
    from guestmark.page.names import everywhere, key
    from guestmark.report.sections import (
        effects,
        estimands,
        explanations,
        metrics,
        proofs,
        results,
        trials,
        troubles,
    )
    from guestmark.report.sections import published as publications
    from guestmark.report.sections.by_workload import compared, of_kind

    nodes: list[Node]
    if not compared(workload):
        nodes = [*of_kind(workload, run), *troubles.lines(workload), *trials.sections(workload, run)]
        return Section(Part.WORKLOAD, workload.title, tuple(nodes), everywhere(workload), key(workload))
    nodes = [*results.sections(workload, run), *proofs.sections(workload)]
    nodes += estimands.tables(workload, details=details)
    nodes += effects.tables(workload) if details else []
    nodes += of_kind(workload, run)
    if published:
        nodes += publications.sections(workload, run)
    nodes += troubles.lines(workload)
    for sections in (metrics.sections, trials.sections, explanations.counted):
        nodes += sections(workload, run)
    return Section(Part.WORKLOAD, workload.title, tuple(nodes), everywhere(workload), key(workload))

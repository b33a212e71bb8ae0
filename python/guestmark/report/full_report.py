"""The full report of a run: a page of all sections in their order, which every renderer draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from guestmark.ledger.model import StoredRun
from guestmark.page.names import describe_common_levels, make_name_key
from guestmark.page.nodes import Node, Note, Page, Part, Section
from guestmark.report.sections import (
    durability,
    environment,
    estimands,
    event_counts,
    factor_effects,
    footer,
    gate_outcomes,
    more_time,
    published,
    question_answers,
    race_outcome,
    results,
    trial_spread,
    validity,
)
from guestmark.report.sections.conclusion import make_conclusion
from guestmark.report.sections.workloads import (
    conclude_uncompared_workload,
    is_compared,
    list_failures,
    make_kind_nodes,
    make_origin_section,
)
from guestmark.stats.analysis import Analysis, WorkloadResult
from guestmark.stats.questions import answer_plan_questions


def make_page(
    run: StoredRun,
    analysis: Analysis,
    *,
    with_published: bool = True,
    with_environment: bool = True,
    details: bool = True,
) -> Page:
    """Return everything about a run: results, published figures, conclusion, environment, small print.

    Without `with_published` the published figures are left out; without `with_environment` the environment, and advice
    in notes; without `details` the effects of factors, and tables that add nothing to the typical run's verdict.
    """
    race_nodes = race_outcome.make_nodes(analysis, run)
    sections = []
    if run.origin is not None:
        sections.append(make_origin_section(run, run.origin, whole=True))
    if race_nodes:
        shown = tuple(node for node in race_nodes if not isinstance(node, Note))
        sections.append(Section(Part.WORKLOAD, "The race", shown))
    else:
        for workload in analysis.workloads:
            section = _make_workload_section(workload, run, with_published=with_published, details=details)
            sections.append(section)
    judged = _select_compared(analysis, raced=bool(race_nodes))
    if with_published and (nodes := published.list_unmeasured(judged)):
        sections.append(Section(Part.PUBLISHED, "Published figures", tuple(nodes), titled=False))
    conclusion = _make_conclusions(analysis, judged, run, race_nodes)
    if conclusion:
        sections.append(Section(Part.CONCLUSION, "Conclusion", tuple(conclusion), titled=False))
    if limits := validity.make_notes(judged, whole=with_environment):
        sections.append(Section(Part.VALIDITY, "What limits these figures", tuple(limits), titled=False))
    if with_environment and (host := environment.make_definitions(run)) is not None:
        sections.append(Section(Part.ENVIRONMENT, "Measured on", (host,)))
    # The small print covers every trial, including those of workloads that are not compared.
    small_print = footer.make_footer_nodes(replace(analysis, flagged_blocks=judged.flagged_blocks), run)
    sections.append(Section(Part.FOOTER, "About this run", tuple(small_print), titled=False))
    only = analysis.workloads[0].title if len(analysis.workloads) == 1 else run.plan.name
    return Page(run.plan.title or only, run.id, tuple(sections))


def make_live_section(workload: WorkloadResult) -> Section:
    """Return a workload's result without details, for the screen of a run in progress."""
    nodes = list_failures(workload)
    if workload.metrics:
        nodes = [results.make_table(workload), *results.explain_units(workload), *nodes]
    return Section(
        Part.WORKLOAD, workload.title, tuple(nodes), describe_common_levels(workload), make_name_key(workload)
    )


def _make_section(workload: WorkloadResult, nodes: Sequence[Node]) -> Section:
    common, key = describe_common_levels(workload), make_name_key(workload)
    return Section(Part.WORKLOAD, workload.title, tuple(nodes), common, key)


def _select_compared(analysis: Analysis, *, raced: bool) -> Analysis:
    """Return the analysis without workloads whose cells are not compared; without any workload for a race."""
    compared = () if raced else tuple(filter(is_compared, analysis.workloads))
    if compared == analysis.workloads:
        return analysis
    # A disturbed block withdraws no verdict if nothing is compared.
    flagged = analysis.flagged_blocks if compared else ()
    return replace(analysis, workloads=compared, flagged_blocks=flagged)


def _make_conclusions(
    analysis: Analysis, judged: Analysis, run: StoredRun, race_nodes: Sequence[Node]
) -> list[Node]:
    # The sentences of a race are its conclusion; its tables are in a section of their own.
    nodes = [*make_conclusion(judged)]
    nodes += [node for node in race_nodes if isinstance(node, Note)]
    for workload in analysis.workloads:
        nodes += conclude_uncompared_workload(workload, run)
    if not race_nodes:
        # Questions may also be about workloads that are not compared.
        nodes += question_answers.make_nodes(answer_plan_questions(analysis))
    nodes += gate_outcomes.make_nodes(gate_outcomes.judge_own_gates(judged), judged, run)
    nodes += more_time.make_nodes(judged, run)
    return nodes


def _make_workload_section(
    workload: WorkloadResult, run: StoredRun, *, with_published: bool, details: bool
) -> Section:
    nodes: list[Node] = []
    if is_compared(workload):
        nodes += results.make_nodes(workload, run)
        nodes += durability.make_proof_nodes(workload)
        nodes += estimands.make_tables(workload, details=details)
        if details:
            nodes += factor_effects.make_tables(workload)
    nodes += make_kind_nodes(workload, run)
    if is_compared(workload) and with_published:
        nodes += published.make_tables(workload, run)
    nodes += list_failures(workload)
    more: tuple[Callable[[WorkloadResult, StoredRun], Sequence[Node]], ...] = (trial_spread.make_nodes,)
    if is_compared(workload):
        more = (results.make_further_tables, trial_spread.make_nodes, event_counts.make_nodes)
    for make_nodes in more:
        nodes += make_nodes(workload, run)
    return Section(
        Part.WORKLOAD, workload.title, tuple(nodes), describe_common_levels(workload), make_name_key(workload)
    )

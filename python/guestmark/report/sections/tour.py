"""The screen at the end of a tour: which platforms work here, what to run next, what virtualization costs here.

Three rounds on fresh machines show magnitudes: figures have two digits, intervals are shown when they matter, and what
the rounds do not settle is called unclear.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from guestmark.core.metric import Metric
from guestmark.core.model import CellStatus, RunState
from guestmark.core.platform_spec import parse_platform
from guestmark.core.units import format_count
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Command, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Cell, Column, Row, RowName, Table, make_word_cell
from guestmark.page.text import Span, Tone, join_plain_text, line, spans
from guestmark.report.commands import format_resume_command
from guestmark.report.sections import validity
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse_run
from guestmark.stats.cost import Cost, compute_cell_cost, list_clear_costs, rank_workloads_by_cost

_TITLE = "What virtualization costs here"
_MOST_PLANS = 1  # that are named
# An interval that reaches beyond this, or its inverse, is not shown.
_LEAST_RATIO = 0.01
# Workloads that only guests have: the host neither boots nor receives files.
_IN_GUESTS = {"boot", "upload"}
# The plan that examines each workload of the tour in detail, by key, and what it shows.
DEEPER = {
    "cpu": ("cpu", "computing, in detail"),
    "syscalls": ("syscalls", "each system call, and why"),
    "memory": ("sysbench", "memory, threads and more"),
    "disk": ("filesystems", "disks and filesystems"),
    "boot": ("startup", "a guest's start, by phase"),
    "upload": ("upload", "ways to copy files in"),
}


@dataclass(frozen=True, slots=True)
class PlatformFinding:
    """What `guestmark doctor` found out about one platform."""

    platform: str
    usable: bool
    reason: str = ""
    hint: str = ""
    ready_s: float | None = None


def make_page(run: StoredRun, findings: Sequence[PlatformFinding], analysis: Analysis | None = None) -> Page:
    """Return one screen of 80 × 24, with the answer last; `findings` holds the platforms in the order to show them."""
    found = analysis or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    costs: list[Node] = [
        _make_cost_table(found, _list_usable_platforms(findings)),
        *_list_failures(found),
        *_list_extremes(found),
        *_list_limits(found),
    ]
    costs.append(Note(line(_describe_rounds(run, found))))
    commands = [Command(purpose, command) for command, purpose in suggest_commands(run, found, findings)]
    return Page(
        _TITLE,
        run.id,
        (
            Section(Part.CONCLUSION, "What can be used here", _make_platform_notes(findings), titled=False),
            Section(Part.CONCLUSION, "What to run next", tuple(commands), titled=False),
            Section(Part.CONCLUSION, _TITLE, tuple(costs)),
        ),
    )


def _list_limits(analysis: Analysis) -> list[Note]:
    """Return what limits the figures most; `guestmark show` has the rest."""
    found = validity.find_main_limit(analysis)
    if found is None:
        return []
    limit, more = found
    label, *rest = limit.text
    reason = join_plain_text(rest).partition(". ")[0].partition(" (")[0]
    return [Note(spans(label, f"{reason}{more}"), limit.kind)]


def _make_cost_table(analysis: Analysis, platforms: Sequence[str]) -> Table:
    rows = []
    for workload in analysis.workloads:
        results = {str(result.cell.platform): result for result in workload.shown_cells}
        cells = tuple(_make_cost_cell(results.get(platform), workload) for platform in platforms)
        rows.append(Row(RowName((workload.title,), workload.title), cells))
    return Table(_TITLE, ("",), tuple(map(Column, platforms)), tuple(rows))


def _make_cost_cell(result: CellResult | None, workload: WorkloadResult) -> Cell:
    if result is None:
        return make_word_cell("–", Tone.SOFT)
    if not workload.metrics or workload.metrics[0].name not in result.summary:
        word = "failed" if result.status is CellStatus.FAILED else "not yet"
        return make_word_cell(word, Tone.ERROR)
    metric = workload.metrics[0]
    cost = compute_cell_cost(result, workload)
    if cost is None:
        return make_word_cell(_format_value(result.summary[metric.name].typical, metric), Tone.STRONG)
    tone = Tone.PLAIN
    if not cost.is_clear:
        tone = Tone.UNCLEAR
    elif cost.is_high:
        tone = Tone.SLOWER
    elif cost.is_gain:
        tone = Tone.FASTER
    return make_word_cell(describe_cost(cost), tone)


def describe_cost(cost: Cost) -> str:
    """Return `about the same`, `11 times slower`, `2 to 5 times slower` or `unclear (×0.7 to ×2.1)`."""
    word = "slower" if cost.ratio > 1 else "faster"
    factor = f"{figures.format_two_digits(max(cost.ratio, 1 / cost.ratio))} times {word}"
    if cost.interval is None:
        return "about the same ?" if cost.is_about_same else f"{factor} ?"
    low, high = cost.interval
    if not cost.is_clear:
        if low < _LEAST_RATIO or high > 1 / _LEAST_RATIO:
            return "unclear"
        # Shorter than the others, so that three platforms and the names of rows fit 80 columns.
        return f"unclear (×{figures.format_two_digits(low)} to ×{figures.format_two_digits(high)})"
    if cost.is_about_same:
        return "about the same"
    if cost.is_wide:
        near, far = (low, high) if cost.ratio > 1 else (1 / high, 1 / low)
        return f"{figures.format_two_digits(near)} to {figures.format_two_digits(far)} times {word}"
    return factor


def _format_value(value: float, metric: Metric) -> str:
    unit = metric.unit
    if unit == "ns":
        value, unit = value * 1e-9, "s"
    fitting = figures.choose_unit(unit, [value])
    return f"{figures.format_two_digits(value / fitting.size)} {fitting.name}".strip()


def _list_failures(analysis: Analysis) -> list[Note]:
    notes = []
    for workload in analysis.workloads:
        for result in workload.shown_cells:
            if result.status in {CellStatus.FAILED, CellStatus.PARTIAL}:
                text = f"{workload.title}, {result.cell.platform}: {result.reason}"
                notes.append(Note(line(text, Tone.ERROR), NoteKind.ERROR))
    return notes


def _list_extremes(analysis: Analysis) -> list[Paragraph]:
    """Return a sentence for each guest: which workloads cost least and most in it, among those with a clear cost."""
    sentences = []
    for platform, costs in list_clear_costs(analysis).items():
        if len(costs) < 2:
            continue
        (least, cheapest), (most, dearest) = costs[0], costs[-1]
        text = f": least {cheapest} ({describe_cost(least)}), most {dearest} ({describe_cost(most)})"
        sentences.append(Paragraph(spans(Span(platform, Tone.STRONG), text)))
    return sentences


def _list_usable_platforms(findings: Sequence[PlatformFinding]) -> list[str]:
    return [finding.platform for finding in findings if finding.usable]


def _make_platform_notes(findings: Sequence[PlatformFinding]) -> tuple[Node, ...]:
    """Return what works, and what does not with the beginning of its reason; `guestmark doctor` has all of it."""
    works = ", ".join(_list_usable_platforms(findings))
    nodes: list[Node] = [Note(spans(Span("works here: ", Tone.FASTER), works))]
    for finding in findings:
        if not finding.usable:
            # One line for each platform; text after a colon or bracket is for readers who want details.
            reason = re.split(r"[:;(]", finding.reason, maxsplit=1)[0].strip()
            name = Span(f"{finding.platform} does not: ", Tone.SLOWER)
            nodes.append(Note(spans(name, f"{reason} (more: guestmark doctor)")))
    return tuple(nodes)


def suggest_commands(
    run: StoredRun, analysis: Analysis, findings: Sequence[PlatformFinding]
) -> list[tuple[str, str]]:
    """Return commands worth running now, the most useful first, and what each is for."""
    usable = _list_usable_platforms(findings)
    guests = [platform for platform in usable if parse_platform(platform).is_guest]
    everywhere = ",".join(usable)
    commands = [(f"guestmark exec --on {everywhere} -- COMMAND", "a command of your own")]
    for key in _list_suggested_workloads(analysis)[:_MOST_PLANS]:
        plan, purpose = DEEPER[key]
        where = ",".join(guests) if key in _IN_GUESTS else everywhere
        commands.append((f"guestmark run {plan} --on {where}", purpose))
    if run.state is RunState.INTERRUPTED:
        commands.insert(0, (format_resume_command(run), "the rest of this tour"))
    commands.append((f"guestmark show {run.id}", "all figures of this tour"))
    return commands


def _list_suggested_workloads(analysis: Analysis) -> list[str]:
    """Return the keys of the two workloads that cost most in guests, then of how files get into guests."""
    return [key for key in [*rank_workloads_by_cost(analysis)[:2], "upload"] if key in DEEPER]


def _describe_rounds(run: StoredRun, analysis: Analysis) -> str:
    rounds = f"{format_count(analysis.blocks, 'round')} on fresh machines"
    ended = ", interrupted" if run.state is RunState.INTERRUPTED else ""
    if analysis.blocks < 2:
        return f"{rounds}{ended}: a first impression (?), no more. Run {run.id}."
    return f"{rounds}{ended}: magnitudes (95 % intervals). Run {run.id}."

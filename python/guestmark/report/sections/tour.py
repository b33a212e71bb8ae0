"""The one screen at the end of a tour: what can be used here, what to run next, what virtualization costs here.

Three rounds on fresh machines show magnitudes: figures have two digits, intervals are shown when they matter, and what
the rounds do not settle is called unclear.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.metric import Better, Metric
from guestmark.core.model import CellStatus, RunState
from guestmark.core.platform_spec import parse_platform
from guestmark.core.units import counted
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.nodes import Command, Node, Note, NoteKind, Page, Paragraph, Part, Section
from guestmark.page.tables import Cell, Column, Row, RowName, Table, words
from guestmark.page.text import Span, Tone, line, spans
from guestmark.report.commands import resume_command
from guestmark.report.sections import validity
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult, analyse_run
from guestmark.stats.compare import Comparison

_NEXT = 1  # plans that are named
SAME = 1.1  # ratios closer to 1 than this are shown as "about the same"
WIDE = 1.6  # the ratio of an interval's ends above which both are shown
# Which plan goes deeper into each workload of the tour, by key, and what it shows.
DEEPER = {
    "cpu": ("cpu", "computing, precisely"),
    "syscalls": ("syscalls", "each system call, and why"),
    "memory": ("sysbench", "memory, threads and more"),
    "disk": ("filesystems", "disks and filesystems"),
    "boot": ("startup", "a guest's start, by phase"),
    "upload": ("upload", "ways to get files in"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What the doctor found about one platform."""

    platform: str
    usable: bool
    reason: str = ""
    hint: str = ""
    ready_s: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """How many times worse than on the host: above 1 slower, below faster; `interval` at 95 %, None for one round."""

    ratio: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, comparison: Comparison, metric: Metric) -> "Cost | None":
        """From a comparison of times or rates; None when there is no ratio."""
        ratio, ci = comparison.ratio, comparison.ci
        if ratio is None or ratio <= 0:
            return None
        if metric.better is Better.HIGHER:
            ratio, ci = 1 / ratio, None if ci is None or ci[0] <= 0 else (1 / ci[1], 1 / ci[0])
        return cls(ratio, ci)

    @property
    def clear(self) -> bool:
        """Whether the rounds agree that there is a cost, or that there is next to none."""
        if self.interval is None:
            return False
        low, high = self.interval
        return low > 1 or high < 1 or self._narrow

    @property
    def _narrow(self) -> bool:
        return self.interval is not None and 1 / WIDE**0.5 < self.interval[0] < self.interval[1] < WIDE**0.5

    def said(self) -> str:
        """In a few words: `about the same`, `11 times slower`, `2 to 5 times slower`, `unclear (0.7 to 2.1)`."""
        if self.interval is None:
            return f"{self._times(self.ratio)} ?" if not self._same else "about the same ?"
        low, high = self.interval
        if not self.clear:
            return f"unclear ({_short(low)} to {_short(high)} times)"
        if self._same:
            return "about the same"
        if high / low > WIDE:
            ends = (low, high) if self.ratio > 1 else (1 / high, 1 / low)
            return f"{_short(ends[0])} to {_short(ends[1])} times {self._word}"
        return self._times(self.ratio)

    @property
    def _same(self) -> bool:
        return 1 / SAME < self.ratio < SAME

    @property
    def _word(self) -> str:
        return "slower" if self.ratio > 1 else "faster"

    def _times(self, ratio: float) -> str:
        return f"{_short(max(ratio, 1 / ratio))} times {self._word}"


def page(run: StoredRun, findings: Sequence[Finding], analysis: Analysis | None = None) -> Page:
    """One screen of 80 × 24, with the answer last. `findings` are of the platforms in the order they are listed."""
    found = analysis or analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    used = [finding.platform for finding in findings if finding.usable]
    costs: list[Node] = [_costs(found, used), *_troubles(found), *_in_words(found), *_limit(found)]
    costs.append(Note(line(_caution(run, found))))
    commands = [Command(what, command) for command, what in next_commands(run, found, findings)]
    return Page(
        "What virtualization costs here",
        run.id,
        (
            Section(Part.CONCLUSION, "What can be used here", _usable(findings), titled=False),
            Section(Part.CONCLUSION, "What to run next", tuple(commands), titled=False),
            Section(Part.CONCLUSION, "What virtualization costs here", tuple(costs)),
        ),
    )


def _limit(found: Analysis) -> list[Note]:
    """What limits the figures most; the rest is among all figures of the run."""
    limits = [note for note in validity.lines(found, whole=False) if note.kind is not NoteKind.SMALL]
    if not limits:
        return []
    label, *rest = limits[0].text
    said = "".join(span.text for span in rest).partition(". ")[0].partition(" (")[0]
    more = f" (and {len(limits) - 1} more)" if len(limits) > 1 else ""
    return [Note(spans(label, f"{said}{more}"), limits[0].kind)]


def _costs(found: Analysis, used: Sequence[str]) -> Table:
    rows = []
    for workload in found.workloads:
        cells = {str(result.cell.platform): result for result in workload.shown_cells}
        name = RowName((workload.title,), workload.title)
        rows.append(Row(name, tuple(_cell(cells.get(platform), workload) for platform in used)))
    columns = tuple(Column(platform) for platform in used)
    return Table("What virtualization costs here", ("",), columns, tuple(rows))


def _cell(result: CellResult | None, workload: WorkloadResult) -> Cell:
    if result is None:
        return words("–", Tone.SOFT)
    if not workload.metrics or workload.metrics[0].name not in result.summary:
        return words("failed" if result.status is CellStatus.FAILED else "not yet", Tone.ERROR)
    metric = workload.metrics[0]
    cost = _cost(result, workload)
    if cost is None:
        return words(_value(result.summary[metric.name].typical, metric), Tone.STRONG)
    tone = Tone.UNCLEAR if not cost.clear else Tone.FASTER if cost.ratio < SAME else Tone.PLAIN
    return words(cost.said(), Tone.SLOWER if cost.clear and cost.ratio > 3 else tone)


def _cost(result: CellResult, workload: WorkloadResult) -> Cost | None:
    """Against the host; None for the host and for what it cannot do."""
    against_host = workload.baseline is not None and workload.baseline.cell.platform.is_this_host
    metric = workload.metrics[0] if workload.metrics else None
    if metric is None or not against_host or metric.name not in result.comparison:
        return None
    return Cost.of(result.comparison[metric.name], metric)


def _value(value: float, metric: Metric) -> str:
    base = metric.unit
    if base == "ns":
        value, base = value * 1e-9, "s"
    unit = figures.fitting_unit(base, [value])
    return f"{_short(value / unit.size)} {unit.name}".strip()


def _short(value: float) -> str:
    """Two significant digits; no decimals from ten up."""
    if value >= 9.95:
        digits = 2 if value < 995 else 3
        places = digits - len(str(int(value)))
        return figures.number(round(value, places), 0)
    return f"{value:.2g}" if value >= 1 else f"{value:.1g}" if value >= 0.1 else f"{value:.2f}"


def _troubles(found: Analysis) -> list[Note]:
    return [
        Note(
            spans(Span(f"{workload.title}, {result.cell.platform}: {result.reason}", Tone.ERROR)),
            NoteKind.ERROR,
        )
        for workload in found.workloads
        for result in workload.shown_cells
        if result.status in {CellStatus.FAILED, CellStatus.PARTIAL}
    ]


def _in_words(found: Analysis) -> list[Paragraph]:
    """A sentence for each guest: where it costs least and most, of what is clear."""
    costs: dict[str, list[tuple[Cost, str]]] = {}
    for workload in found.workloads:
        for result in workload.shown_cells:
            cost = _cost(result, workload)
            if cost is not None and cost.clear:
                costs.setdefault(str(result.cell.platform), []).append((cost, workload.title))
    lines = []
    for platform, known in costs.items():
        least, most = min(known, key=lambda pair: pair[0].ratio), max(known, key=lambda pair: pair[0].ratio)
        if least is most:
            continue
        said = f": least {least[1]} ({least[0].said()}), most {most[1]} ({most[0].said()})"
        lines.append(Paragraph(spans(Span(platform, Tone.STRONG), said)))
    return lines


def _usable(findings: Sequence[Finding]) -> tuple[Node, ...]:
    """What works, and what does not with the beginning of its reason; `guestmark doctor` has all of it."""
    works = [finding.platform for finding in findings if finding.usable]
    nodes: list[Node] = [Note(spans(Span("works here: ", Tone.FASTER), ", ".join(works)))]
    for finding in findings:
        if not finding.usable:
            reason = re.split(r"[:;(]", finding.reason, maxsplit=1)[0].strip()
            name = Span(f"{finding.platform} does not: ", Tone.SLOWER)
            nodes.append(Note(spans(name, f"{reason} (guestmark doctor says more)")))
    return tuple(nodes)


def next_commands(run: StoredRun, found: Analysis, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Commands worth running now, the most useful first, and what each is for."""
    used = ",".join(finding.platform for finding in findings if finding.usable)
    guests = ",".join(
        finding.platform
        for finding in findings
        if finding.usable and parse_platform(finding.platform).is_guest
    )
    commands = [(f"guestmark exec --on {used} -- COMMAND", "a command of your own")]
    for key in _worth_a_look(found)[:_NEXT]:
        plan, what = DEEPER[key]
        where = guests if key in {"boot", "upload"} else used
        commands.append((f"guestmark run {plan} --on {where}", what))
    if run.state is RunState.INTERRUPTED:
        commands.insert(0, (resume_command(run), "the rest of this tour"))
    commands.append((f"guestmark show {run.id}", "all figures of this tour"))
    return commands


def _worth_a_look(found: Analysis) -> list[str]:
    """Keys of the two workloads in which guests differ most from the host, then how files get into guests."""
    worst: Mapping[str, float] = {
        workload.workload.key: max(
            (cost.ratio for result in workload.shown_cells if (cost := _cost(result, workload))), default=0.0
        )
        for workload in found.workloads
    }
    ranked = sorted((key for key in worst if worst[key] > 0), key=lambda key: -worst[key])
    return [key for key in [*ranked[:2], "upload"] if key in DEEPER]


def _caution(run: StoredRun, found: Analysis) -> str:
    rounds = f"{counted(found.blocks, 'round')} on fresh machines"
    ended = ", interrupted" if run.state is RunState.INTERRUPTED else ""
    if found.blocks < 2:
        return f"{rounds}{ended}: a first impression (?), no more. Run {run.id}."
    return f"{rounds}{ended}: magnitudes (95 % intervals). Run {run.id}."

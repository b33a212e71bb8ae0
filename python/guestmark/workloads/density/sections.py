"""The report's part on fleets: the cost of one more machine, counted in several ways, and how throughput scales."""

from __future__ import annotations

import html
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from guestmark.core.metric import Metric
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.page.charts import Picture
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets, Chart, Node
from guestmark.page.tables import Align, Cell, Column, Row, RowName, Table, make_figure_cell
from guestmark.page.text import Inline, Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.stats.scalability import Fit, Law, fit_with_intervals
from guestmark.workloads import density
from guestmark.workloads.common.facts import list_facts
from guestmark.workloads.density import GUESTS, Fleet

# A law with a larger error than this at any point does not describe the points.
_MISFIT = 0.1
_COUNTED = (density.MEMORY, density.PSS, density.RSS, density.AVAILABLE)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 60, 40
_COLOURS = ("#4269d0", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#97bbf5", "#efb118")


@dataclass(frozen=True, slots=True)
class _Group:
    """Cells of one platform that differ only in the number of machines, with the law of their throughput."""

    name: str
    results: tuple[CellResult, ...]
    fit: Fit | None

    @property
    def largest_fleet(self) -> CellResult:
        """The result with the most machines, whose slope is the most precise."""
        return self.results[-1]

    def list_measured_throughput(self) -> list[tuple[float, float]]:
        """Returns pairs of a number of machines and their median throughput together."""
        found: dict[float, list[float]] = {}
        for number, rate in itertools.chain.from_iterable(list_throughput_points(self.results)):
            found.setdefault(number, []).append(rate)
        return [(number, statistics.median(rates)) for number, rates in sorted(found.items())]


def render_density(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """Renders memory per machine, throughput with its law and chart, and sentences; nothing without fleets."""
    groups = list(_group_results(workload))
    if not groups:
        return []
    nodes: list[Node] = [_build_memory_table(groups)]
    fitted = [group for group in groups if group.fit is not None]
    if fitted:
        nodes += [_build_throughput_table(fitted), _build_chart(fitted)]
    return [
        *nodes,
        Bullets(line("What one more machine costs:", Tone.STRONG), tuple(_describe_groups(groups))),
    ]


def list_throughput_points(results: Sequence[CellResult]) -> list[list[tuple[float, float]]]:
    """Returns for each block pairs of a number of machines and their throughput: one alone, and every fleet."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for result in results:
        for trial in result.good_trials:
            fleet = trial.facts.find_fact(Fleet)
            if fleet is not None and fleet.rates and fleet.solo > 0:
                points = blocks.setdefault(trial.block, [])
                grown = [(float(number), rate) for number, rate in fleet.grown]
                points += [(1.0, fleet.solo), *grown, (float(len(fleet.rates)), sum(fleet.rates))]
    return list(blocks.values())


def _group_results(workload: WorkloadResult) -> Iterator[_Group]:
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[CellResult]] = {}
    for result in workload.shown_cells:
        if list_facts(result.good_trials, Fleet):
            others = tuple(
                (name, level) for name, level in result.cell.factors.items() if name != GUESTS.name
            )
            alike.setdefault((str(result.cell.platform), others), []).append(result)
    # Names contain only factors that distinguish groups.
    varying = set()
    combinations = [others for _, others in alike]
    for name, level in itertools.chain.from_iterable(combinations):
        if any((name, level) not in others for others in combinations):
            varying.add(name)
    for (platform, others), results in alike.items():
        ordered = tuple(sorted(results, key=lambda result: result.cell.levels[GUESTS]))
        blocks = list_throughput_points(ordered)
        words = [platform]
        for name, level in others:
            if name in varying and _has_several_levels(name, alike):
                words.append(f"{name}={level}")
        fit = fit_with_intervals(blocks) if blocks else None
        yield _Group(" ".join(words), ordered, fit)


def _has_several_levels(name: str, alike: Mapping[tuple[str, tuple[tuple[str, str], ...]], object]) -> bool:
    """Returns whether any platform has several levels of the factor; otherwise naming it adds nothing."""
    levels: dict[str, set[str]] = {}
    for platform, others in alike:
        for known, level in others:
            if known == name:
                levels.setdefault(platform, set()).add(level)
    return any(len(some) > 1 for some in levels.values())


# --- memory -----------------------------------------------------------------------------------------------------


def _build_memory_table(groups: Sequence[_Group]) -> Table:
    columns = [Column("declared")]
    for heading in ("control group", "PSS", "RSS", "MemAvailable lost"):
        columns.append(Column(f"{heading}, MiB", (Align.POINT, Align.LEFT, Align.POINT)))
    columns.append(Column("idle, % of a processor", (Align.POINT,)))
    columns.append(Column("wake-ups/s", (Align.POINT,)))
    rows = []
    for group in groups:
        cells = [make_figure_cell(_describe_declared_memory(group))]
        for metric in _COUNTED:
            if metric is density.MEMORY and not _has_groups(group):
                cells.append(make_figure_cell("none"))
            else:
                cells.append(_render_size(group.largest_fleet, metric))
        cells.append(_render_number(group.largest_fleet, density.IDLE, 100.0))
        cells.append(_render_number(group.largest_fleet, density.WAKEUPS, 1.0))
        rows.append(Row(RowName((group.name,), id=group.largest_fleet.cell.id), tuple(cells)))
    return Table(
        "Memory that one more machine takes, counted in four ways",
        ("",),
        tuple(columns),
        tuple(rows),
        divisible=True,
        legend=(
            line(
                "Slopes over the number of machines, each with its working set touched. Control group: everything that "
                "is charged to it, including kernel memory and files that it was the first to read; PSS: shared pages "
                "divided; RSS: shared pages counted in each; MemAvailable: of the whole host, including other programs."
            ),
        ),
        heading="One more machine:",
    )


def _describe_declared_memory(group: _Group) -> str:
    cell = group.largest_fleet.cell
    if not cell.platform.takes_factor("memory"):
        return cell.factors.get("memory", "–")
    # The default of guests and sandboxes.
    return cell.factors.get("memory") or "1G"


def _has_groups(group: _Group) -> bool:
    for fleet in list_facts(group.largest_fleet.good_trials, Fleet):
        if any(held.groups is None for held in fleet.held):
            return False
    return True


def _render_size(result: CellResult, metric: Metric) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return make_figure_cell("–")
    return make_figure_cell(
        *figures.format_estimate_pieces(
            summary.typical, summary.typical_ci, figures.Unit(float(1 << 20), "MiB")
        )
    )


def _render_number(result: CellResult, metric: Metric, times: float) -> Cell:
    summary = result.summary.get(metric.name)
    if summary is None:
        return make_figure_cell("–")
    value = summary.typical * times
    return make_figure_cell(figures.format_number(value, min(2, figures.count_decimals(None, value))))


# --- throughput -------------------------------------------------------------------------------------------------


def _build_throughput_table(groups: Sequence[_Group]) -> Table:
    numbers = _list_fleet_sizes(groups)
    columns = [
        *(Column(f"{number:.0f} (fit)", (Align.POINT, Align.RIGHT)) for number in numbers),
        Column("contention", (Align.POINT, Align.LEFT)),
        Column("coherence", (Align.POINT, Align.LEFT)),
        Column("largest misfit", (Align.RIGHT,)),
    ]
    rows = []
    for group in groups:
        assert group.fit is not None
        law, measured = group.fit.law, dict(group.list_measured_throughput())
        cells = []
        for number in numbers:
            if number in measured:
                fitted = f"({_format_rate(law.predict_throughput(number))})"
                cells.append(make_figure_cell(_format_rate(measured[number]), fitted))
            else:
                cells.append(make_figure_cell("–"))
        cells += [
            make_figure_cell(f"{law.contention:.3f}", _describe_interval(group.fit.contention)),
            make_figure_cell(f"{law.coherence:.4f}", _describe_interval(group.fit.coherence)),
            make_figure_cell(figures.format_percent(law.error)),
        ]
        rows.append(Row(RowName((group.name,), id=group.largest_fleet.cell.id), tuple(cells)))
    return Table(
        "Runs per second of all machines together, by number of machines, and the law fitted to them",
        ("",),
        tuple(columns),
        tuple(rows),
        divisible=True,
        legend=(
            line(
                "Universal Scalability Law (Gunther): N/(1 + contention·(N-1) + coherence·N·(N-1)) times the rate of "
                f"one alone, by least squares of relative errors; {Claim.SCALES}."
            ),
        ),
        heading="Runs per second of all machines together, by number of machines:",
    )


def _list_fleet_sizes(groups: Sequence[_Group]) -> list[float]:
    """Returns the numbers of machines at which throughput was measured, in ascending order."""
    sizes: set[float] = set()
    for group in groups:
        sizes.update(number for number, _ in group.list_measured_throughput())
    return sorted(sizes)


def _format_rate(value: float) -> str:
    return figures.format_number(value, figures.count_decimals(None, value))


def _describe_interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.3g}, {interval[1]:.3g}]"


def _build_chart(groups: Sequence[_Group]) -> Chart:
    peaks = []
    for group in groups:
        if group.fit is not None:
            most = group.largest_fleet.cell.levels[GUESTS]
            peaks.append(f"{group.name}: {_describe_peak(group.fit, most)}")
    return Chart(
        "Throughput of all machines by their number",
        "Dots are medians over blocks and lines the fitted laws, in multiples of the fitted rate of one machine alone.",
        f"Throughput of all machines together: {'; '.join(peaks)}.",
        Picture("density", lambda: _draw_chart(groups)),
    )


def _draw_chart(groups: Sequence[_Group]) -> str:
    """Draws the number of machines against throughput, in multiples of one machine's."""
    most = _list_fleet_sizes(groups)[-1]
    lines = [(group, group.fit.law) for group in groups if group.fit is not None]
    highest = 1.0
    for group, law in lines:
        rates = [rate for _, rate in group.list_measured_throughput()]
        rates += [law.predict_throughput(1.0), law.predict_throughput(most)]
        highest = max(highest, *(rate / law.rate for rate in rates))
    tallest = highest * 1.1
    # The names of the groups are to the right of the chart.
    right = _WIDTH - 150

    def place_x(number: float) -> float:
        return _LEFT + (number - 1) / (most - 1) * (right - _LEFT)

    def place_y(share: float) -> float:
        return _HEIGHT - _BOTTOM - share / tallest * (_HEIGHT - _BOTTOM - 10)

    step = max(1, math.ceil(most / 8))
    parts = [
        f'<line x1="{_LEFT}" y1="{place_y(0):.1f}" x2="{right}" y2="{place_y(0):.1f}" stroke="currentColor"/>',
        f'<line x1="{_LEFT}" y1="{place_y(0):.1f}" x2="{_LEFT}" y2="{place_y(tallest):.1f}" stroke="currentColor"/>',
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 4}" text-anchor="middle" fill="currentColor">machines</text>',
        f'<text x="14" y="{place_y(tallest / 2):.0f}" text-anchor="middle" fill="currentColor" '
        f'transform="rotate(-90 14 {place_y(tallest / 2):.0f})">throughput, one alone = 1</text>',
    ]
    # One machine is the reference, so the axis names it whatever the step is.
    for number in sorted({1, *range(step, math.floor(most) + 1, step)}):
        parts.append(
            f'<text x="{place_x(number):.1f}" y="{place_y(0) + 16:.1f}" text-anchor="middle" '
            f'fill="currentColor">{number}</text>'
        )
    for tick in range(math.floor(tallest) + 1):
        parts.append(
            f'<text x="{_LEFT - 6}" y="{place_y(tick) + 4:.1f}" text-anchor="end" fill="currentColor">{tick}</text>'
        )
    for position, (group, law) in enumerate(lines):
        colour = _COLOURS[position % len(_COLOURS)]
        curve = _list_curve_points(law, most)
        path = " ".join(f"{place_x(number):.1f},{place_y(share):.1f}" for number, share in curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for number, rate in group.list_measured_throughput():
            parts.append(
                f'<circle cx="{place_x(number):.1f}" cy="{place_y(rate / law.rate):.1f}" r="3.5" fill="{colour}"/>'
            )
        row = 20 + 16 * position
        # Text has the page's own colour, which may be light on dark.
        parts.append(
            f'<circle cx="{right + 16}" cy="{row - 4}" r="3.5" fill="{colour}"/>'
            f'<text x="{right + 24}" y="{row}" fill="currentColor">{html.escape(group.name[:20])}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12" '
        f'font-family="sans-serif" role="img">{"".join(parts)}</svg>'
    )


def _list_curve_points(law: Law, most: float) -> list[tuple[float, float]]:
    """Returns numbers of machines up to `most`, and the throughput that the law predicts for each."""
    points = []
    for step in range(61):
        number = 1 + (most - 1) * step / 60
        points.append((number, law.predict_throughput(number) / law.rate))
    return points


# --- sentences --------------------------------------------------------------------------------------------------


def _describe_groups(groups: Sequence[_Group]) -> Iterator[Inline]:
    for group in groups:
        yield spans(Span(f"{group.name}: ", Tone.STRONG), _describe_memory(group), _describe_speed(group))


def _describe_memory(group: _Group) -> str:
    sizes = {metric: group.largest_fleet.summary.get(metric.name) for metric in _COUNTED}
    # A slope with an error larger than itself is useless, such as that of MemAvailable on a busy host.
    memory = sizes[density.MEMORY]
    if memory is None:
        return "its memory use is unknown. "
    said, own = "by its control group", {density.MEMORY}
    if not _has_groups(group):
        said, own = "by PSS, as it has no control group", {density.MEMORY, density.PSS}
    others = []
    for metric, summary in sizes.items():
        if summary is None or metric in own:
            continue
        ends = summary.typical_ci
        if ends is None or ends[1] - ends[0] < summary.typical:
            others.append(summary.typical / (1 << 20))
    size = memory.typical / (1 << 20)
    low, high = min([size, *others]), max([size, *others])
    disagreeing = ""
    if low > 0 and high / low > 1.2:
        ends_of_others = " to ".join(dict.fromkeys(_format_rate(end) for end in (min(others), max(others))))
        disagreeing = f", {ends_of_others} by the other counts"
    return f"one more takes {_format_rate(size)} MiB {said}{disagreeing}. "


def _describe_speed(group: _Group) -> str:
    if group.fit is None:
        return ""
    law, most = group.fit.law, group.largest_fleet.cell.levels[GUESTS]
    kept = group.largest_fleet.summary.get(density.KEPT.name)
    said = ""
    if kept:
        said = f"With {most} of them, each runs at {figures.format_percent(kept.typical)} of its speed alone"
    if law.error > _MISFIT:
        return (
            f"{said}; the scalability law is off by {figures.format_percent(law.error)} and predicts nothing."
        )
    return f"{said}; by the law, {_describe_peak(group.fit, most)}."


def _describe_peak(found: Fit, most: int) -> str:
    """Describes the peak of the total throughput, or the throughput of `most` machines if the peak is beyond them."""
    law = found.law
    if law.knee > most:
        share = law.predict_throughput(most) / law.rate
        more = ""
        if found.knee is not None and found.knee[0] > most:
            more = Claim.MORE_WOULD_DO_MORE
        return f"{most} of them together reach {share:.1f} times the throughput of one{more}"
    ends = found.knee
    between = "" if ends is None else f" [{ends[0]:.1f}, {_describe_limit(ends[1], most)}]"
    return f"throughput is highest with {max(1.0, law.knee):.1f}{between} of them: {law.ceiling:.1f} times that of one"


def _describe_limit(number: float, most: int) -> str:
    return f"over {most}" if number > most else f"{number:.1f}"

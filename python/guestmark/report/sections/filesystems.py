"""Is it the disk or the filesystem on it? What cells say that differ in nothing but the filesystem."""

from collections.abc import Iterator, Sequence

from guestmark.page import figures
from guestmark.page.nodes import Bullets
from guestmark.page.text import Inline, Tone, line
from guestmark.report.sections.nested import Ratio, ratio
from guestmark.report.sections.published import figure_for
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult

_FACTOR, _METRIC = "filesystem", "throughput"
_CEILING = "ceiling"  # the key of a plan's workload that says what the host itself can do
_MB = 1e6


def filesystems(analysis: Analysis) -> list[Bullets]:
    """The conclusions that the run's cells allow; empty when no guest was measured with several filesystems."""
    ceiling = _ceiling(analysis)
    lines = [
        text
        for workload in analysis.workloads
        for there in _on_each_platform(workload)
        for text in _sentences(workload, there, ceiling, analysis)
    ]
    return [Bullets(line("Is it the disk or the filesystem?", Tone.STRONG), tuple(lines))] if lines else []


def _on_each_platform(workload: WorkloadResult) -> Iterator[list[CellResult]]:
    """The guests' cells of one platform that differ in the filesystem alone, the fastest first."""
    groups: dict[object, list[CellResult]] = {}
    for result in workload.shown:
        factors = result.cell.factors
        if _FACTOR in factors and _METRIC in result.summary and result.cell.platform.is_guest:
            others = tuple(sorted((name, level) for name, level in factors.items() if name != _FACTOR))
            key = (str(result.cell.workload.key), str(result.cell.platform), others)
            groups.setdefault(key, []).append(result)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda result: -result.summary[_METRIC].mean)


def _sentences(
    workload: WorkloadResult, there: Sequence[CellResult], ceiling: CellResult | None, analysis: Analysis
) -> Iterator[Inline]:
    fastest, slowest = there[0], there[-1]
    where = f"{fastest.cell.workload.label or workload.title} on {fastest.cell.platform}"
    apart = ratio(fastest, slowest, _METRIC)
    if apart is None:
        return
    yield line(
        f"{where}: the same disk moves {_rate(fastest)} with {_name(fastest)} and {_rate(slowest)} with "
        f"{_name(slowest)}, {apart}. {_blamed(apart)}"
    )
    for quick, slow, then in _published(there, analysis):
        found = ratio(quick, slow, _METRIC)
        if found is not None:
            yield line(
                f"{where}: {_name(quick)} is {found} as fast as {_name(slow)} (published ×{then:.2g}): "
                f"{_holds(found, then)}"
            )
    if ceiling is not None:
        path = ceiling.summary[_METRIC].mean / fastest.summary[_METRIC].mean
        yield line(
            f"{where}: the host alone moves {_rate(ceiling)}, ×{path:.2g} what {_name(fastest)} does. That much the "
            "emulator, virtio and the guest's kernel cost together, with any filesystem."
        )


def _published(
    there: Sequence[CellResult], analysis: Analysis
) -> Iterator[tuple[CellResult, CellResult, float]]:
    """Pairs of cells, the one that was faster in the publication first, with the published ratio."""
    said = set()
    for published in analysis.plan.published:
        if published.metric != _METRIC:
            continue
        known = [(result, figure) for result in there if (figure := figure_for(result, published))]
        for index, (first, mine) in enumerate(known):
            for second, theirs in known[index + 1 :]:
                quick, slow = (first, second) if mine.value >= theirs.value else (second, first)
                then = max(mine.value, theirs.value) / min(mine.value, theirs.value)
                if then > 1 and (quick.cell.id, slow.cell.id) not in said:
                    said.add((quick.cell.id, slow.cell.id))
                    yield quick, slow, then


def _blamed(apart: Ratio) -> str:
    if apart.ci is None or apart.ci[0] <= 1:
        return "Whether the filesystem makes a difference cannot be told from so few blocks."
    return "All else is equal, virtio too: the filesystem makes that difference."


def _holds(found: Ratio, then: float) -> str:
    if found.ci is None:
        return "one block cannot tell whether that holds."
    low, high = found.ci
    if low > 1:
        more = "" if low <= then <= high else ", though by another factor"
        return f"the published conclusion holds{more}."
    if high < 1:
        return "it does not hold here."
    if high < then:
        return "so large a difference is excluded here."
    return "these blocks cannot tell whether that holds."


def _ceiling(analysis: Analysis) -> CellResult | None:
    for result in analysis.cells:
        if result.cell.workload.key == _CEILING and _METRIC in result.summary and result.cell.null_of is None:
            return result
    return None


def _name(result: CellResult) -> str:
    return result.cell.factors[_FACTOR]


def _rate(result: CellResult) -> str:
    value = result.summary[_METRIC].mean / _MB
    return f"{figures.number(value, figures.decimals(None, value))} MB/s"

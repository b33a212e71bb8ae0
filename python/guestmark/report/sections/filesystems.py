"""Is it the disk or the filesystem on it? What cells say that differ in nothing but the filesystem."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets
from guestmark.page.text import Inline, Tone, line
from guestmark.report.sections.published import figure_for
from guestmark.setting.filesystem import FILESYSTEM, Filesystem
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Verdict
from guestmark.stats.pairwise import Pair, compare_pairs

_FACTOR, _METRIC = FILESYSTEM.name, "throughput"
_SHARED = frozenset(each for each in Filesystem if each.is_directory)
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
    for result in workload.shown_cells:
        factors = result.cell.factors
        on_disk = _FACTOR in factors and factors[_FACTOR] not in _SHARED
        if on_disk and _METRIC in result.summary and result.cell.platform.is_guest:
            others = tuple(sorted((name, level) for name, level in factors.items() if name != _FACTOR))
            key = (str(result.cell.workload.key), str(result.cell.platform), others)
            groups.setdefault(key, []).append(result)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda result: -result.summary[_METRIC].typical)


def _sentences(
    workload: WorkloadResult, there: Sequence[CellResult], ceiling: CellResult | None, analysis: Analysis
) -> Iterator[Inline]:
    fastest, slowest = there[0], there[-1]
    where = f"{fastest.cell.workload.label or workload.title} on {fastest.cell.platform}"
    metric = next(metric for metric in workload.metrics if metric.name == _METRIC)
    ids = [result.cell.id for result in there]
    found = compare_pairs(list(permutations(ids, 2)), metric, analysis)
    apart = _of(fastest, slowest, found)
    if apart is None:
        return
    yield line(
        f"{where}: the same disk moves {_rate(fastest)} with {_name(fastest)} and {_rate(slowest)} with "
        f"{_name(slowest)}, {_said(apart)}. {_blamed(apart, analysis.plan.policy.margin)}"
    )
    for quick, slow, then in _published(there, analysis):
        pair = _of(quick, slow, found)
        if pair is not None:
            yield line(
                f"{where}: {_name(quick)} is {_said(pair)} as fast as {_name(slow)} (published ×{then:.2g}): "
                f"{_holds(pair, then)}"
            )
    if ceiling is not None:
        path = ceiling.summary[_METRIC].typical / fastest.summary[_METRIC].typical
        yield line(
            f"{where}: the host alone moves {_rate(ceiling)}, ×{path:.2g} what {_name(fastest)} does. The emulator, "
            "virtio and the guest's kernel together cost that much, with any filesystem."
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


def _of(first: CellResult, second: CellResult, found: Mapping[Pair, Comparison]) -> Comparison | None:
    return found.get((first.cell.id, second.cell.id))


def _said(found: Comparison) -> str:
    return figures.ratio(found.ratio or 1.0, found.ci)


def _blamed(apart: Comparison, margin: float) -> str:
    if apart.verdict is Verdict.FASTER:
        return Claim.FILESYSTEM_DIFFERS
    if apart.typical_is_equal:
        return Claim.FILESYSTEM_ALIKE.format(margin=figures.percent(margin))
    return "Whether the filesystem makes a difference is open."


def _holds(found: Comparison, then: float) -> str:
    if found.verdict is Verdict.FASTER:
        more = ", though by another factor" if found.excludes_ratio(then) else ""
        return f"{Claim.PUBLISHED_HOLDS}{more}."
    if found.verdict is Verdict.SLOWER or (found.typical_is_equal and found.excludes_ratio(then)):
        return Claim.PUBLISHED_FAILS
    if found.excludes_ratio(then):
        return Claim.PUBLISHED_EXCLUDED
    return "whether that holds is open."


def _ceiling(analysis: Analysis) -> CellResult | None:
    for result in analysis.cells:
        if result.cell.workload.key == _CEILING and _METRIC in result.summary and result.cell.null_of is None:
            return result
    return None


def _name(result: CellResult) -> str:
    return result.cell.factors[_FACTOR]


def _rate(result: CellResult) -> str:
    value = result.summary[_METRIC].typical / _MB
    return f"{figures.number(value, figures.decimals(None, value))} MB/s"

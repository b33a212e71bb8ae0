"""Conclusions on whether disk or filesystem makes a difference, from cells that differ in the filesystem alone."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets
from guestmark.page.text import Inline, Tone, line
from guestmark.setting.filesystem import FILESYSTEM, Filesystem
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Comparison, Verdict
from guestmark.stats.pairwise import Pair, compare_pairs
from guestmark.stats.published import FasterClaim, find_figure, judge_faster_claim

_METRIC = "throughput"
_SHARED = frozenset(filesystem for filesystem in Filesystem if filesystem.is_directory)
# The key of the workload that measures the disk on the host, without a guest.
_CEILING = "ceiling"
_MB = 1e6
_CLAIM_WORDS = {
    FasterClaim.HOLDS: f"{Claim.PUBLISHED_HOLDS}.",
    FasterClaim.OTHER_FACTOR: f"{Claim.PUBLISHED_HOLDS}, though by another factor.",
    FasterClaim.FAILS: Claim.PUBLISHED_FAILS.value,
    FasterClaim.TOO_LARGE: Claim.PUBLISHED_EXCLUDED.value,
    FasterClaim.OPEN: "whether that holds is open.",
}


def list_filesystem_conclusions(analysis: Analysis) -> list[Bullets]:
    """Return the conclusions that the run's cells allow; empty if no guest was measured with several filesystems."""
    ceiling = _find_ceiling(analysis)
    lines: list[Inline] = []
    for workload in analysis.workloads:
        for results in _group_by_platform(workload):
            lines += _yield_group_conclusions(workload, results, ceiling, analysis)
    return [Bullets(line("Is it the disk or the filesystem?", Tone.STRONG), tuple(lines))] if lines else []


def _group_by_platform(workload: WorkloadResult) -> Iterator[list[CellResult]]:
    """Yield the guests' cells of one platform that differ in the filesystem alone, the fastest first."""
    groups: dict[object, list[CellResult]] = {}
    for result in workload.shown_cells:
        factors = result.cell.factors
        on_disk = FILESYSTEM.name in factors and factors[FILESYSTEM.name] not in _SHARED
        if on_disk and _METRIC in result.summary and result.cell.platform.is_guest:
            others = tuple(sorted(item for item in factors.items() if item[0] != FILESYSTEM.name))
            key = (str(result.cell.workload.key), str(result.cell.platform), others)
            groups.setdefault(key, []).append(result)
    for group in groups.values():
        if len(group) > 1:
            yield sorted(group, key=lambda result: -result.summary[_METRIC].typical)


def _yield_group_conclusions(
    workload: WorkloadResult, results: Sequence[CellResult], ceiling: CellResult | None, analysis: Analysis
) -> Iterator[Inline]:
    fastest, slowest = results[0], results[-1]
    where = f"{fastest.cell.workload.label or workload.title} on {fastest.cell.platform}"
    metric = next(metric for metric in workload.metrics if metric.name == _METRIC)
    ids = [result.cell.id for result in results]
    compared = compare_pairs(list(permutations(ids, 2)), metric, analysis)
    extremes = _find_comparison(fastest, slowest, compared)
    if extremes is None:
        return
    yield line(
        f"{where}: the same disk moves {_format_rate(fastest)} with {_name_filesystem(fastest)} and "
        f"{_format_rate(slowest)} with {_name_filesystem(slowest)}, {_format_ratio(extremes)}. "
        f"{_describe_filesystem_share(extremes, analysis.plan.policy.margin)}"
    )
    for faster, slower, then in _yield_published_pairs(results, analysis):
        comparison = _find_comparison(faster, slower, compared)
        if comparison is not None:
            outcome = _CLAIM_WORDS[judge_faster_claim(comparison, then)]
            yield line(
                f"{where}: {_name_filesystem(faster)} is {_format_ratio(comparison)} as fast as "
                f"{_name_filesystem(slower)} (published ×{then:.2g}): {outcome}"
            )
    # What the host writes says nothing about what guests read.
    if ceiling is not None and ceiling.cell.workload.name == fastest.cell.workload.name:
        factor = ceiling.summary[_METRIC].typical / fastest.summary[_METRIC].typical
        cost = ""
        if factor > 1:
            cost = " All that is between the guest's program and the host's disk costs that much."
        yield line(
            f"{where}: the host alone moves {_format_rate(ceiling)}, ×{factor:.2g} what {_name_filesystem(fastest)} "
            f"does.{cost}"
        )


def _yield_published_pairs(
    results: Sequence[CellResult], analysis: Analysis
) -> Iterator[tuple[CellResult, CellResult, float]]:
    """Yield pairs of cells, the one that was faster in the publication first, with the published ratio."""
    seen = set()
    for published in analysis.plan.published:
        if published.metric != _METRIC:
            continue
        figures_of = [(result, find_figure(result.cell, published)) for result in results]
        known = [(result, figure.value) for result, figure in figures_of if figure is not None]
        for (first, mine), (second, theirs) in combinations(known, 2):
            faster, slower = (first, second) if mine >= theirs else (second, first)
            then = max(mine, theirs) / min(mine, theirs)
            if then > 1 and (faster.cell.id, slower.cell.id) not in seen:
                seen.add((faster.cell.id, slower.cell.id))
                yield faster, slower, then


def _find_comparison(
    first: CellResult, second: CellResult, compared: Mapping[Pair, Comparison]
) -> Comparison | None:
    return compared.get((first.cell.id, second.cell.id))


def _format_ratio(comparison: Comparison) -> str:
    return figures.format_ratio(comparison.ratio or 1.0, comparison.ci)


def _describe_filesystem_share(extremes: Comparison, margin: float) -> str:
    if extremes.verdict is Verdict.FASTER:
        return Claim.FILESYSTEM_DIFFERS
    if extremes.typical_is_equal:
        return Claim.FILESYSTEM_ALIKE.format(margin=figures.format_percent(margin))
    return "Whether the filesystem makes a difference is open."


def _find_ceiling(analysis: Analysis) -> CellResult | None:
    for result in analysis.cells:
        if result.cell.workload.key == _CEILING and _METRIC in result.summary and result.cell.null_of is None:
            return result
    return None


def _name_filesystem(result: CellResult) -> str:
    return result.cell.factors[FILESYSTEM.name]


def _format_rate(result: CellResult) -> str:
    return f"{figures.format_three_digits(result.summary[_METRIC].typical / _MB)} MB/s"

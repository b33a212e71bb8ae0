"""Conclusions from a comparison of backends, in the terms of the result published in 2013 (libguestfs 1.23.16).

They say which backend is faster bare and nested, where start-up time goes, and what an upload consists of.
"""

from collections.abc import Mapping, Sequence

from guestmark.core.findings import Durability
from guestmark.core.metric import Metric
from guestmark.core.metric_spec import WALL
from guestmark.core.platform_spec import parse_platform
from guestmark.core.workload_kind import Topic, find_topic, workload_kind
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets
from guestmark.page.text import Inline, Tone, line
from guestmark.report.sections.nested import format_block_ratio
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.durability import find_durability
from guestmark.stats.nested import compute_block_ratio
from guestmark.stats.pairwise import find_shown_leader
from guestmark.stats.published import find_figure
from guestmark.workloads import boot

_BEFORE_KERNEL = (boot.VMM, boot.FIRMWARE)
# A kernel unpacks itself before its first line: both phases are its own.
_KERNEL = (boot.ENTRY, boot.KERNEL)
_APPLIANCE = (*_KERNEL, boot.MODULES, boot.ROOT, boot.AGENT)
_ON_DISK = frozenset({Durability.PROVEN, Durability.SYNCED_PART_PROVEN, Durability.REACHED})


def list_backend_conclusions(analysis: Analysis) -> list[Bullets]:
    """Return the conclusions that the run's cells allow; empty if it compares no backends with each other."""
    lines: list[Inline] = []
    for workload in analysis.workloads:
        if find_topic(workload.workload) is Topic.CALLS:
            lines += _compare_with_uml(workload, analysis)
    for workload in analysis.workloads:
        if find_topic(workload.workload) is Topic.START:
            lines += _describe_start_up(workload)
    lines += _list_upload_conclusions(analysis)
    return [Bullets(line("What this says about the backends", Tone.STRONG), tuple(lines))] if lines else []


# --- who is faster, bare and nested -------------------------------------------------------------------------


def _compare_with_uml(workload: WorkloadResult, analysis: Analysis) -> list[Inline]:
    lines: list[Inline] = []
    if not workload.metrics:
        return lines
    metric = workload.metrics[0]
    for nested in (False, True):
        results = []
        for result in workload.shown_cells:
            if result.cell.platform.is_nested is nested and metric.name in result.summary:
                results.append(result)
        uml = _find_uml(results)
        if uml is None:
            continue
        others = [result for result in results if result is not uml and result.cell.platform.is_guest]
        ratios = _describe_uml_ratios(uml, others, metric, analysis)
        if ratios:
            where = _describe_nesting(nested)
            leader = find_shown_leader((uml, *others), metric, analysis)
            fastest = ""
            if leader is not None:
                fastest = Claim.FASTEST.format(where=where, platform=leader.cell.platform)
            takes = f"{uml.cell.platform} takes {'; '.join(ratios)}"
            lines.append(line(f"{workload.title}, {where}: {takes}.{fastest}"))
    return lines


def _find_uml(results: Sequence[CellResult]) -> CellResult | None:
    for result in results:
        if result.cell.platform.inner.kind == "uml":
            return result
    return None


def _describe_uml_ratios(
    uml: CellResult, others: Sequence[CellResult], metric: Metric, analysis: Analysis
) -> list[str]:
    ratios = []
    for other in others:
        ratio = compute_block_ratio(uml, other, metric.name)
        if ratio is not None:
            published = _describe_published(uml, other, analysis)
            ratios.append(f"{format_block_ratio(ratio)} the time of {other.cell.platform}{published}")
    return ratios


def _describe_published(uml: CellResult, other: CellResult, analysis: Analysis) -> str:
    for published in analysis.plan.published:
        over, under = find_figure(uml.cell, published), find_figure(other.cell, published)
        if over and under and over is not under:
            return f" (published ×{over.value / under.value:.2g})"
    return ""


# --- where start-up goes ------------------------------------------------------------------------------------


def _describe_start_up(workload: WorkloadResult) -> list[Inline]:
    lines = []
    for result in workload.shown_cells:
        ready = result.summary.get(boot.READY.name)
        if ready is None or not ready.typical > 0 or boot.KERNEL.name not in result.summary:
            continue
        # Foreign firmware does not say when it is done.
        early = result.summary.keys() & {phase.name for phase in _BEFORE_KERNEL}
        if result.cell.platform.foreign_architecture and not early:
            continue
        before, inside = _sum_phases(result, _BEFORE_KERNEL), _sum_phases(result, _APPLIANCE)
        # The phases of a peer come from a separate, traced start, unlike `ready`, so shares are of their own sum.
        whole = before + inside
        first, second = figures.format_percent(before / whole), figures.format_percent(inside / whole)
        kernel = figures.format_percent(_sum_phases(result, _KERNEL) / whole)
        lines.append(
            line(
                f"Start-up of {result.cell.platform}: of {_format_seconds(ready.typical)}, hypervisor and firmware "
                f"take {first} and the appliance {second} (its kernel alone {kernel})."
            )
        )
    return lines


def _sum_phases(result: CellResult, phases: Sequence[Metric]) -> float:
    return sum(result.summary[phase.name].typical for phase in phases if phase.name in result.summary)


# --- channel against disk -----------------------------------------------------------------------------------


def _list_upload_conclusions(analysis: Analysis) -> list[Inline]:
    """Return the times of channel and disk in an upload on each platform where both were measured separately."""
    variants = _group_upload_variants(analysis)
    complete = {name: parts for name, parts in variants.items() if {"channel", "disk"} <= parts.keys()}
    lines = []
    for name, parts in complete.items():
        channel, disk, full = parts["channel"], parts["disk"], parts.get("full")
        ratio = compute_block_ratio(channel, disk, WALL.name)
        if ratio is None:
            continue
        whole = f" (the whole upload {_format_wall(full)})" if full else ""
        lines.append(
            line(
                f"Upload on {name}: the channel takes {_format_wall(channel)}, the disk {_format_wall(disk)}{whole}: "
                f"channel over disk {format_block_ratio(ratio)}.{_describe_flushes(disk)}"
            )
        )
    channels = {name: parts["channel"] for name, parts in complete.items()}
    return [*lines, *_compare_channels(channels, analysis)]


def _group_upload_variants(analysis: Analysis) -> dict[str, dict[str, CellResult]]:
    """Return the cells of uploads by platform and variant: full, or a part of it."""
    variants: dict[str, dict[str, CellResult]] = {}
    for result in analysis.cells:
        workload = result.cell.workload
        if find_topic(workload) is not Topic.TRANSFER or result.cell.null_of is not None:
            continue
        params = workload_kind(workload.name).stored_params_of(workload)
        if params is not None and WALL.name in result.summary:
            variants.setdefault(str(result.cell.platform), {})[params.variant] = result
    return variants


def _compare_channels(channels: Mapping[str, CellResult], analysis: Analysis) -> list[Inline]:
    """Return how much longer the other channels take than the quickest, bare and nested separately."""
    lines = []
    for nested in (False, True):
        results = [result for name, result in channels.items() if parse_platform(name).is_nested is nested]
        if len(results) < 2:
            continue
        best = min(results, key=lambda result: result.summary[WALL.name].typical)
        ratios = []
        for result in results:
            ratio = None if result is best else compute_block_ratio(result, best, WALL.name)
            if ratio is not None:
                ratios.append(f"{result.cell.platform}'s takes {format_block_ratio(ratio)} as long")
        if not ratios:
            continue
        where, leader = _describe_nesting(nested), find_shown_leader(results, WALL, analysis)
        if leader is None:
            lines.append(line(f"Channels {where}, over {best.cell.platform}'s: {'; '.join(ratios)}."))
        else:
            claim = Claim.QUICKEST.format(where=where, platform=leader.cell.platform)
            lines.append(line(f"{claim}; {'; '.join(ratios)}."))
    return lines


def _describe_flushes(disk: CellResult) -> str:
    words = find_durability(disk)
    owner = "the outer guest's" if disk.cell.platform.is_nested else "the host's"
    if not words:
        return ""
    if words == {Durability.LOST}:
        return f" Its flushes do not reach {owner} disk, so these times exclude it."
    if words == {Durability.MEMORY}:
        return " Its disk is in memory, so nothing reaches a disk."
    if words <= _ON_DISK:
        return f" Its flushes reach {owner} disk."
    if words == {Durability.CLAIMED}:
        return f" Its flushes reach {owner} disk, by its hypervisor's own count."
    return f" It is unknown whether its flushes reach {owner} disk."


# --- words --------------------------------------------------------------------------------------------------


def _describe_nesting(nested: bool) -> str:
    return "nested" if nested else "bare"


def _format_wall(result: CellResult) -> str:
    return _format_seconds(result.summary[WALL.name].typical)


def _format_seconds(value: float) -> str:
    return f"{figures.format_three_digits(value)} s"

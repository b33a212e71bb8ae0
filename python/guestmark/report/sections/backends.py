"""What a comparison of backends says, in the words of the published result: who is faster nested, where start-up goes,
and what an upload consists of (libguestfs 1.23.16, 2013)."""

from collections.abc import Sequence

from guestmark.core.findings import Durability
from guestmark.core.metric import Metric
from guestmark.core.metric_spec import WALL
from guestmark.core.platform_spec import parse_platform
from guestmark.core.workload_kind import Topic, topic_of, workload_kind
from guestmark.page import figures
from guestmark.page.claims import Claim
from guestmark.page.nodes import Bullets
from guestmark.page.text import Inline, Tone, line
from guestmark.report.sections.durability import verdicts
from guestmark.report.sections.nested import ratio
from guestmark.report.sections.published import figure_for
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.stats.compare import Verdict
from guestmark.stats.pairwise import compare_pairs
from guestmark.workloads import boot

_BEFORE_KERNEL = (boot.VMM, boot.FIRMWARE)
_KERNEL = (boot.ENTRY, boot.KERNEL)  # before its first line it unpacks itself
_APPLIANCE = (*_KERNEL, boot.MODULES, boot.ROOT, boot.AGENT)


def backends(analysis: Analysis) -> list[Bullets]:
    """The conclusions that the run's cells allow; empty when it compares no backends with each other."""
    lines: list[Inline] = []
    for workload in analysis.workloads:
        if topic_of(workload.workload) is Topic.CALLS:
            lines += _who_is_faster(workload, analysis)
    for workload in analysis.workloads:
        if topic_of(workload.workload) is Topic.START:
            lines += _where_starting_goes(workload)
    lines += _channel_against_disk(analysis)
    return [Bullets(line("What this says about the backends", Tone.STRONG), tuple(lines))] if lines else []


# --- who is faster, bare and nested -------------------------------------------------------------------------


def _who_is_faster(workload: WorkloadResult, analysis: Analysis) -> list[Inline]:
    if not workload.metrics:
        return []
    metric = workload.metrics[0].name
    lines = []
    for nested in (False, True):
        there = [
            result
            for result in workload.shown_cells
            if result.cell.platform.is_nested is nested and metric in result.summary
        ]
        uml = next((result for result in there if _kind(result) == "uml"), None)
        others = [result for result in there if result is not uml and result.cell.platform.is_guest]
        if uml is None or not others:
            continue
        said = []
        for other in others:
            found = ratio(uml, other, metric)
            if found is not None:
                then = _then(uml, other, analysis)
                said.append(f"{found} the time of {other.cell.platform}{then}")
        where = "nested" if nested else "bare"
        if said:
            best = _shown_to_lead((uml, *others), workload.metrics[0], analysis)
            fastest = ""
            if best is not None:
                fastest = Claim.FASTEST.format(where=where, platform=best.cell.platform)
            lines.append(
                line(f"{workload.title}, {where}: {uml.cell.platform} takes {'; '.join(said)}.{fastest}")
            )
    return lines


def _shown_to_lead(cells: Sequence[CellResult], metric: Metric, analysis: Analysis) -> CellResult | None:
    """The cell with the least mean, where each of the others is shown to be slower, all of them together."""
    first = min(cells, key=lambda result: result.summary[metric.name].typical)
    pairs = [(first.cell.id, result.cell.id) for result in cells if result is not first]
    found = compare_pairs(pairs, metric, analysis)
    led = all(pair in found and found[pair].verdict is Verdict.FASTER for pair in pairs)
    return first if pairs and led else None


def _then(uml: CellResult, other: CellResult, analysis: Analysis) -> str:
    for published in analysis.plan.published:
        mine, theirs = figure_for(uml, published), figure_for(other, published)
        if mine and theirs and mine is not theirs:
            return f" (published ×{mine.value / theirs.value:.2g})"
    return ""


# --- where start-up goes ------------------------------------------------------------------------------------


def _where_starting_goes(workload: WorkloadResult) -> list[Inline]:
    lines = []
    for result in workload.shown_cells:
        ready = result.summary.get(boot.READY.name)
        if ready is None or not ready.typical > 0 or boot.KERNEL.name not in result.summary:
            continue
        if result.cell.platform.foreign_architecture and not any(
            part.name in result.summary for part in _BEFORE_KERNEL
        ):
            continue  # its firmware does not say when it is done
        before, inside, kernel = (
            sum(result.summary[metric.name].typical for metric in metrics if metric.name in result.summary)
            for metrics in (_BEFORE_KERNEL, _APPLIANCE, _KERNEL)
        )
        whole = before + inside  # a peer's phases are of a start that was traced, unlike `ready`
        lines.append(
            line(
                f"Start-up of {result.cell.platform}: of {_seconds(ready.typical)}, hypervisor and firmware have "
                f"{figures.percent(before / whole)} and the appliance {figures.percent(inside / whole)}"
                f" (its kernel alone {figures.percent(kernel / whole)}).",
            )
        )
    return lines


# --- channel against disk -----------------------------------------------------------------------------------


def _channel_against_disk(analysis: Analysis) -> list[Inline]:
    parts: dict[str, dict[str, CellResult]] = {}
    for result in analysis.cells:
        workload = result.cell.workload
        if (
            topic_of(workload) is Topic.TRANSFER
            and result.cell.null_of is None
            and "wall_s" in result.summary
        ):
            params = workload_kind(workload.name).stored_params_of(workload)
            if params is not None:
                parts.setdefault(str(result.cell.platform), {})[params.variant] = result
    lines = []
    complete = {name: halves for name, halves in parts.items() if {"channel", "disk"} <= halves.keys()}
    for name, halves in complete.items():
        channel, disk = halves["channel"], halves["disk"]
        found = ratio(channel, disk, "wall_s")
        if found is None:
            continue
        whole = halves.get("full")
        of = f" (the whole upload {_mean(whole)})" if whole else ""
        lines.append(
            line(
                f"Upload on {name}: the channel takes {_mean(channel)}, the disk {_mean(disk)}{of}: "
                f"channel over disk {found}."
                f"{_durable(disk)}"
            )
        )
    channels = {name: halves["channel"] for name, halves in complete.items()}
    return [*lines, *_slow_channel(channels, analysis)]


def _slow_channel(channels: dict[str, CellResult], analysis: Analysis) -> list[Inline]:
    """How many times the quickest channel the others are, bare and nested apart."""
    lines = []
    for nested in (False, True):
        there = [result for name, result in channels.items() if parse_platform(name).is_nested is nested]
        if len(there) < 2:
            continue
        best = min(there, key=lambda result: result.summary["wall_s"].typical)
        said = [
            f"{result.cell.platform}'s takes {found} as long"
            for result in there
            if result is not best and (found := ratio(result, best, "wall_s")) is not None
        ]
        if said:
            where = "nested" if nested else "bare"
            quickest = _shown_to_lead(there, WALL, analysis)
            if quickest is None:
                lines.append(line(f"Channels {where}, over {best.cell.platform}'s: {'; '.join(said)}."))
            else:
                leads = Claim.QUICKEST.format(where=where, platform=quickest.cell.platform)
                lines.append(line(f"{leads}; {'; '.join(said)}."))
    return lines


def _durable(disk: CellResult) -> str:
    said = verdicts(disk)
    whose = "the outer guest's" if disk.cell.platform.is_nested else "the host's"
    if said == {Durability.LOST}:
        return f" Its flushes do not reach {whose} disk: these times leave that part out."
    if said == {Durability.MEMORY}:
        return " Its disk is in memory: nothing of it is on any disk."
    if said and said <= {Durability.PROVEN, Durability.PART, Durability.REACHED}:
        return f" Its flushes reach {whose} disk."
    if said == {Durability.CLAIMED}:
        return f" That its flushes reach {whose} disk is its hypervisor's claim."
    return f" Whether its flushes reach {whose} disk is not known." if said else ""


# --- words --------------------------------------------------------------------------------------------------


def _kind(result: CellResult) -> str:
    return result.cell.platform.inner.kind


def _mean(result: CellResult) -> str:
    return _seconds(result.summary["wall_s"].typical)


def _seconds(value: float) -> str:
    return f"{figures.number(value, figures.decimals(None, value))} s"

"""What a comparison of backends says, in the words of the published one: who is faster nested, where start-up goes,
and what an upload consists of (libguestfs 1.23.16, 2013)."""

from rich.text import Text

from guestmark.core.platform_spec import parse_platform
from guestmark.report import figures
from guestmark.report.nested import ratio
from guestmark.report.then import figure_for
from guestmark.stats.analysis import Analysis, CellResult, WorkloadResult
from guestmark.workloads.boot import metrics as boot_metrics

_BEFORE_KERNEL = (boot_metrics.VMM, boot_metrics.FIRMWARE)
_KERNEL = (boot_metrics.ENTRY, boot_metrics.KERNEL)  # before its first line it unpacks itself
_APPLIANCE = (*_KERNEL, boot_metrics.MODULES, boot_metrics.ROOT, boot_metrics.AGENT)
_CALLS = ("guestfs-api", "syscalls")
_FLUSHES = "flushes_reached_host"


def backends(analysis: Analysis) -> list[Text]:
    """The conclusions that the run's cells allow; empty when it compares no backends with each other."""
    lines: list[Text] = []
    for workload in analysis.workloads:
        if workload.workload.name in _CALLS:
            lines += _who_is_faster(workload, analysis)
    for workload in analysis.workloads:
        if workload.workload.name == "boot":
            lines += _where_starting_goes(workload)
    lines += _channel_against_disk(analysis)
    return [Text("What this says of the backends", style="bold"), *lines] if lines else []


# --- who is faster, bare and nested -------------------------------------------------------------------------


def _who_is_faster(workload: WorkloadResult, analysis: Analysis) -> list[Text]:
    if not workload.metrics:
        return []
    metric = workload.metrics[0].name
    lines = []
    for nested in (False, True):
        there = [
            one
            for one in workload.shown
            if parse_platform(one.cell.platform).nested is nested and metric in one.summary
        ]
        uml = next((one for one in there if _kind(one) == "uml"), None)
        others = [one for one in there if one is not uml and parse_platform(one.cell.platform).is_guest]
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
            best = min(there, key=lambda one: one.summary[metric].mean)
            lines.append(
                _line(
                    f"{workload.title}, {where}: {uml.cell.platform} takes {'; '.join(said)}.",
                    f" Fastest {where}: {best.cell.platform}.",
                )
            )
    return lines


def _then(uml: CellResult, other: CellResult, analysis: Analysis) -> str:
    for published in analysis.plan.published:
        mine, theirs = figure_for(uml, published), figure_for(other, published)
        if mine and theirs and mine is not theirs:
            return f" (published ×{mine.value / theirs.value:.2g})"
    return ""


# --- where start-up goes ------------------------------------------------------------------------------------


def _where_starting_goes(workload: WorkloadResult) -> list[Text]:
    lines = []
    for one in workload.shown:
        ready = one.summary.get(boot_metrics.READY.name)
        if ready is None or not ready.mean > 0 or boot_metrics.KERNEL.name not in one.summary:
            continue
        before, inside, kernel = (
            sum(one.summary[metric.name].mean for metric in metrics if metric.name in one.summary)
            for metrics in (_BEFORE_KERNEL, _APPLIANCE, _KERNEL)
        )
        whole = before + inside  # a peer's phases are of a start that was traced, unlike `ready`
        whose = "" if one.cell.workload.name == "boot" else f"{one.cell.workload.label} on "
        lines.append(
            _line(
                f"Start-up of {whose}{one.cell.platform}: of {_seconds(ready.mean)}, hypervisor and firmware have "
                f"{figures.percent(before / whole)} and the appliance {figures.percent(inside / whole)}",
                f" (its kernel alone {figures.percent(kernel / whole)}).",
            )
        )
    return lines


# --- channel against disk -----------------------------------------------------------------------------------


def _channel_against_disk(analysis: Analysis) -> list[Text]:
    parts: dict[str, dict[str, CellResult]] = {}
    for result in analysis.cells:
        workload = result.cell.workload
        if workload.name == "upload" and result.cell.null_of is None and "wall_s" in result.summary:
            parts.setdefault(result.cell.platform, {})[str(workload.params.get("variant", "full"))] = result
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
            _line(
                f"Upload on {name}: the channel takes {_mean(channel)}, the disk {_mean(disk)}{of}: "
                f"channel over disk {found}.",
                _durable(disk),
            )
        )
    return [*lines, *_slow_channel({name: halves["channel"] for name, halves in complete.items()})]


def _slow_channel(channels: dict[str, CellResult]) -> list[Text]:
    """How many times the quickest channel the others are, bare and nested apart."""
    lines = []
    for nested in (False, True):
        there = [one for name, one in channels.items() if parse_platform(name).nested is nested]
        if len(there) < 2:
            continue
        best = min(there, key=lambda one: one.summary["wall_s"].mean)
        said = [
            f"{one.cell.platform}'s is {found} as slow"
            for one in there
            if one is not best and (found := ratio(one, best, "wall_s")) is not None
        ]
        if said:
            where = "nested" if nested else "bare"
            lines.append(_line(f"Quickest channel {where}: {best.cell.platform}'s; {'; '.join(said)}.", ""))
    return lines


def _durable(disk: CellResult) -> str:
    said = {str(trial.attestation[_FLUSHES]) for trial in disk.trials if _FLUSHES in trial.attestation}
    whose = "the outer guest's" if parse_platform(disk.cell.platform).nested else "the host's"
    if said == {"no"}:
        return f" Its flushes do not reach {whose} disk, which is why it looks fast."
    if said == {"yes"}:
        return f" Its flushes reach {whose} disk."
    return f" Whether its flushes reach {whose} disk is not known." if said else ""


# --- words --------------------------------------------------------------------------------------------------


def _kind(result: CellResult) -> str:
    return parse_platform(result.cell.platform).inner.kind


def _mean(result: CellResult) -> str:
    return _seconds(result.summary["wall_s"].mean)


def _seconds(value: float) -> str:
    return f"{figures.number(value, figures.decimals(None, value))} s"


def _line(said: str, more: str) -> Text:
    line = Text(said, overflow="fold")
    line.append(more)
    return line

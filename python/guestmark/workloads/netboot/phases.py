"""The phases of network boots: a bar for each cell, and how its guest got an address."""

from collections.abc import Sequence

from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Bullets, Node
from guestmark.page.text import Span, Tone, line, spans
from guestmark.stats.analysis import CellResult, WorkloadResult
from guestmark.workloads.common.phase_bars import bars, seconds_of
from guestmark.workloads.netboot.facts import Lease
from guestmark.workloads.netboot.found import latest_first
from guestmark.workloads.netboot.metrics import DOWNLOAD, HANDOVER, KERNEL, SCRIPT, START

_NAMES = (*(metric.name.removesuffix("_s") for metric in START), "files", "kernel", "handover")
_LETTERS = "RLDSFKH"


def sections(workload: WorkloadResult, run: StoredRun) -> Sequence[Node]:
    """A stacked bar for each cell, and the messages of its last lease. Nothing for workloads without phases."""
    shown = [result for result in workload.shown if SCRIPT.name in result.summary]
    if not shown:
        return []
    chart = bars(
        workload,
        [(result, _phases(result)) for result in shown],
        _NAMES,
        _LETTERS,
        title="Phases of the boot",
        caption="From QEMU's start through firmware and ROM, link, DHCP and script to the last file of a round; means "
        "over the trials, whose figures stand among the further metrics.",
        summary=lambda said: f"From QEMU's start to the last file: {said}.",
    )
    leases = [(result, lease) for result in shown if (lease := _lease(result)) is not None]
    if not leases:
        return [chart]
    items = tuple(
        spans(Span(result.cell.id, Tone.NAME), f"  {said_lease(lease)}") for result, lease in leases
    )
    return [chart, Bullets(line("How addresses were given (last trial):", Tone.STRONG), items)]


def said_lease(lease: Lease) -> str:
    """`discover 0 ms, offer 1 ms, request 1 s, ack 1 s: client 1 s, server 2 ms`."""
    from guestmark.capture.units import duration

    steps = ", ".join(f"{step.kind} {duration(step.at_s)}" for step in lease.steps)
    waited = f", waiting to repeat {duration(lease.recovery_s)}" if lease.recovery_s else ""
    return f"{steps}: client {duration(lease.client_s)}, server {duration(lease.server_s)}{waited}"


def _phases(result: CellResult) -> list[float]:
    files = next((found.files for found in latest_first(result) if found.files), 0)
    download = result.summary[DOWNLOAD.name].mean if DOWNLOAD.name in result.summary else 0.0
    return [*seconds_of(result, START), files * download, *seconds_of(result, (KERNEL, HANDOVER))]


def _lease(result: CellResult) -> Lease | None:
    return next((found.lease for found in latest_first(result) if found.lease is not None), None)

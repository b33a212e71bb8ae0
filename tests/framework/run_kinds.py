"""Constructed runs: one for every kind of workload that adds something to a report, and some with problems."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from guestmark.capture.model import Endpoint, Response, SequencePoint, Shares, Trace, reduce_for_drawing
from guestmark.capture.model import Sequence as Packets
from guestmark.core.findings import Counted, Fact
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, Published, PublishedFigure, RunState, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.stats.analysis import Analysis, analyse_run
from guestmark.workloads import boot
from guestmark.workloads.boot import Boot, Initcall, Initcalls
from guestmark.workloads.netboot import Netboot
from guestmark.workloads.syscalls import Syscalls
from tests.framework import made_facts
from tests.framework.made_facts import call
from tests.framework.runs import EXEC, constructed, host_uml_tcg, memory_sweep

ENVIRONMENT: Mapping[str, Any] = {
    "processor": {"model": "Core 5", "count": 2, "microcode": "0x1", "smt": "1"},
    "memory_bytes": 4_000_000_000,
    "disks": [{"name": "sda", "bytes": 500_000_000_000, "model": "ATA Disk", "rotational": True}],
    "kernel": {"release": "6.1.0"},
    "programs": {"qemu": "QEMU emulator version 8.2"},
}


def with_facts(run: StoredRun, facts: Mapping[str, Sequence[Fact]]) -> StoredRun:
    """Return the run with these facts in each cell's trials."""
    trials = tuple(replace(trial, facts=made_facts.of(*facts.get(trial.cell_id, ()))) for trial in run.trials)
    return replace(run, trials=trials)


def with_metrics(run: StoredRun, metrics: Mapping[str, Mapping[Metric, float]]) -> StoredRun:
    """Return the run with these metrics instead of its own; values differ a little from block to block."""
    trials = tuple(
        replace(
            trial,
            measurements=tuple(
                Measurement(metric, value * (1 + 0.002 * (trial.block % 3)), (value,))
                for metric, value in metrics[trial.cell_id].items()
            ),
        )
        for trial in run.trials
    )
    first = next(iter(metrics.values()))
    return replace(run, trials=trials, plan=replace(run.plan, metrics=tuple(first)))


def plain() -> StoredRun:
    """Make a run with failures, an unusable platform, a null cell, warnings, noise, counters and different digests."""
    run = host_uml_tcg(
        failing={("uml", 3)},
        noise={("tcg", 1): {"swapped_pages": 5}},
        warnings={("uml", 1): ("clocks disagree by 2 %",)},
    )
    facts: dict[str, Sequence[Fact]] = {
        "host": [made_facts.program("a" * 64)],
        "uml": [made_facts.program("b" * 64), Counted(each={"uml_stops": 1234.4})],
        "tcg": [Counted(each={"tcg_blocks": 5000.0}), made_facts.guest(["avx2", "vmx"])],
    }
    return replace(with_facts(run, facts), environments=(ENVIRONMENT,))


def matrix() -> StoredRun:
    """Make a run of two factors against each other."""
    cells: list[tuple[Cell, float | None]] = [
        (
            Cell(
                f"tcg memory={memory} smp={smp}",
                EXEC,
                PlatformSpec.read("tcg"),
                {"memory": memory, "smp": smp},
                baseline=row == column == 0,
            ),
            1 - row / 10 + column / 4,
        )
        for row, memory in enumerate(("1G", "2G", "4G"))
        for column, smp in enumerate(("1", "2"))
    ]
    return constructed(cells)


def starts() -> StoredRun:
    """Make a run with guests' starts by phase, a peer and initcalls."""
    booted, peer = (
        WorkloadSpec("boot", {}, "boot", "boot"),
        WorkloadSpec("guestfs-run", {}, "guestfish", "gf"),
    )
    seconds = {"boot tcg": 2.0, "boot uml": 1.2, "gf tcg": 4.0}
    metrics = {
        cell: {
            metric: kernel * 5 if metric in {boot.READY, boot.TOTAL} else kernel / (3 + position)
            for position, metric in enumerate(boot.ALL)
        }
        for cell, kernel in seconds.items()
    }
    run = constructed(
        [
            (Cell("boot tcg", booted, PlatformSpec.read("tcg"), {}, True, group="starts"), 1.0),
            (Cell("boot uml", booted, PlatformSpec.read("uml"), group="starts"), 1.0),
            (Cell("gf tcg", peer, PlatformSpec.read("tcg"), group="starts"), 1.0),
        ]
    )
    slowest = [Initcall(f"call_{number}", 0.1 / number) for number in range(1, 14)]
    traced = Boot(initcalls=Initcalls(slowest=slowest, count=321, seconds=1.5))
    return with_facts(with_metrics(run, metrics), {"boot tcg": [traced]})


def calls() -> StoredRun:
    """Make a run with system calls, their exits and stops, bare and nested."""
    mix = WorkloadSpec("syscalls", {}, "system calls")
    ratios = {"uml": 2.0, "tcg": 1.0, "tcg/uml": 3.0, "tcg/kvm": 6.0}
    run = constructed(
        [
            (Cell(name, mix, PlatformSpec.read(name), {}, name == "uml"), ratio)
            for name, ratio in ratios.items()
        ]
    )

    uml = {"null": call(17_900, uml_stops=1.01), "exec": call(10_800_000, uml_stops=486.2)}
    kvm = {
        "null": call(870, kvm_exits=0.001, kvm_io_exits=0.0),
        "exec": call(130_000_000, kvm_exits=98.2, kvm_irq_exits=35.6),
    }
    return with_facts(run, {"uml": [Syscalls(calls=uml)], "tcg/kvm": [Syscalls(calls=kvm)]})


def trace() -> Trace:
    """Make a captured connection in the form that a trial keeps."""

    def endpoint(role: str, median: float) -> Endpoint:
        response = Response(40, 1.0, 0.5, median, median, median, median, 3 * median, median, median)
        histogram = [(median / 2, median, 20), (median, 3 * median, 20)]
        return Endpoint(
            "10.0.0.1", 80, role, "tcp", 1, 2.0, 100, 9000, 8000, 8000, 0, 0, 0, 0, 0, 0, response, histogram
        )

    packets = [SequencePoint(t / 10, t % 2 == 0, "data", 100 * t + 1, 100 * t) for t in range(20)]
    made = Trace(
        "x.pcapng", [], "pcapng", None, 1, 0, Shares(0.3, 0.6, 0.1), 0.01, {"packets": 100}, [],
        [endpoint("client", 0.0012), endpoint("server", 0.034)], Packets(0, 1, packets), None,
    )  # fmt: skip
    return reduce_for_drawing(made)


def boots_from_network() -> StoredRun:
    """Make a run with network boots, their shares and captured connections."""
    netboot = WorkloadSpec("netboot", {}, "network boot")
    run = constructed(
        [
            (Cell("tcg", netboot, PlatformSpec.read("tcg"), {}, True), 1.0),
            (Cell("kvm", netboot, PlatformSpec.read("kvm")), 0.5),
        ]
    )
    wall = Metric("wall_s", "s")
    shares = {Metric("client_share", ""): 0.7, Metric("server_share", ""): 0.2}
    repeated = {Metric("retransmitted_bytes", "B"): 1.5e6}
    metrics = {"tcg": {wall: 2.0, **shares, **repeated}, "kvm": {wall: 1.0, **shares, **repeated}}
    captured = [Netboot(picture=trace())]
    return with_facts(with_metrics(run, metrics), {"tcg": captured, "kvm": captured})


def disks() -> StoredRun:
    """Make a run with rates, durability, published figures, several tables, and an upload in parts."""
    rate = Metric("wall_s", "s")
    halves = {
        half: WorkloadSpec("upload", {"amount": "1M", "variant": half}, half, key=half)
        for half in ("full", "channel", "disk")
    }
    cells: list[tuple[Cell, float | None]] = [
        (Cell(f"{half} {name}", halves[half], PlatformSpec.read(name), {}, name == "uml"), ratio * times)
        for name, times in (("uml", 10.0), ("tcg", 1.0))
        for half, ratio in (("full", 3.0), ("channel", 2.0), ("disk", 1.0))
    ]
    run = constructed(cells)
    figures = (
        PublishedFigure({"workload": "full", "platform": "uml"}, 33.4, 33.4),
        PublishedFigure({"workload": "full", "platform": "tcg"}, 3.31, 33.4),
        PublishedFigure({"workload": "disk", "platform": "kvm"}, 7.77, 33.4),
    )
    published = Published("Someone, 2012", rate.name, "s", "time", figures, "bare", "on a laptop")
    run = replace(run, plan=replace(run.plan, published=(published,), title="How fast is an upload?"))
    return with_facts(run, {"disk uml": [made_facts.flushes("no")], "disk tcg": [made_facts.flushes("yes")]})


def null() -> StoredRun:
    """Make a run with a cell and its copy, which differs from it."""
    return constructed(
        [
            (Cell("host", EXEC, HOST, {}, True), 1.0),
            (Cell("uml", EXEC, PlatformSpec.read("uml")), 2.0),
            (Cell("host#2", EXEC, HOST, null_of="host"), 1.1),
        ]
    )


def refused() -> StoredRun:
    """Make a run whose verdicts are withdrawn by severe findings: only one side's processor was throttled."""
    hot = {("tcg", block): {"throttled": 3} for block in range(12)}
    return host_uml_tcg(noise=hot)


RUNS: Mapping[str, Callable[[], StoredRun]] = {
    "plain": plain,
    "refused": refused,
    "sweep": memory_sweep,
    "matrix": matrix,
    "starts": starts,
    "calls": calls,
    "netboot": boots_from_network,
    "disks": disks,
    "null": null,
    "few": lambda: host_uml_tcg(blocks=3, state=RunState.INTERRUPTED),
    "nothing": lambda: host_uml_tcg(blocks=0, state=RunState.FAILED),
    "no baseline": lambda: host_uml_tcg(failing={("host", block) for block in range(12)}),
}


@functools.cache
def run_of(name: str) -> StoredRun:
    """Return the run of that kind, which is made once."""
    return RUNS[name]()


@functools.cache
def analysed(name: str) -> Analysis:
    """Return the analysis of the run of that kind, which is made once, as it takes longer than a report."""
    run = run_of(name)
    return analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)

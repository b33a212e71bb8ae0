"""Makes runs with values drawn around known ratios, with a fixed seed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console

from guestmark.core.context import Context
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, LeftOut, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.report.full_report import make_page
from guestmark.report.render.terminal import print_page
from guestmark.stats.analysis import analyse_run

METRICS = (
    Metric("wall_s", "s"),
    Metric("guest_wall_s", "s"),
    Metric("user_s", "s"),
    Metric("system_s", "s"),
    Metric("max_rss_bytes", "B"),
)
EXEC = WorkloadSpec(
    "exec", {"argv": ["sysbench", "cpu", "run"], "env": {"TOKEN": "secret"}}, "sysbench cpu run"
)
MEMORY = WorkloadSpec("exec", {"argv": ["sysbench", "memory", "run"]}, "sysbench memory run")


def constructed(
    cells: Sequence[tuple[Cell, float | None]],
    *,
    blocks: int = 12,
    failing: Collection[tuple[str, int]] = (),
    values: Mapping[tuple[str, int], float] | None = None,
    noise: Mapping[tuple[str, int], Mapping[str, Any]] | None = None,
    warnings: Mapping[tuple[str, int], tuple[str, ...]] | None = None,
    state: RunState = RunState.COMPLETE,
) -> StoredRun:
    """Make a run of these cells, each with its true ratio to 1.234 s; None stands for an unusable platform.

    Blocks scatter by 5 %, single trials by 1 %.
    """
    generator = np.random.default_rng(1)
    plan = Plan(
        "exec",
        tuple(cell for cell, _ in cells),
        Policy(seed=42),
        METRICS,
        Context(env={"PASSWORD": "secret", "HOME": "/root"}, cwd="/tmp"),
    )
    trials = []
    for block in range(blocks):
        common = generator.normal(0, 0.05)
        for order, (cell, ratio) in enumerate(cells):
            if ratio is None:
                continue
            at = (cell.id, block)
            wall = 1.234 * ratio * float(np.exp(common + generator.normal(0, 0.01)))
            if at in failing:
                trials.append(
                    Trial(
                        cell.id,
                        block,
                        order,
                        TrialStatus.FAILED,
                        "died by signal 11",
                        duration_s=2.0,
                        console="oops",
                    )
                )
                continue
            shown = (values or {}).get(at, wall)
            figures = (shown, wall * 0.999, wall * 0.9, wall * 0.08, 12e6)
            trials.append(
                Trial(
                    cell.id,
                    block,
                    order,
                    TrialStatus.OK,
                    measurements=tuple(
                        Measurement(metric, figure, (figure,))
                        for metric, figure in zip(METRICS, figures, strict=True)
                    ),
                    started_at=1_795_296_580.0 + block,
                    duration_s=wall + 1.5,
                    phases={"ready": 0.8},
                    noise=(noise or {}).get(at, {}),
                    warnings=(warnings or {}).get(at, ()),
                    command_line=("qemu", "-M", "pc"),
                )
            )
    unusable = (LeftOut("kvm", "no guest gets ready", "use tcg"),)
    environment = {"processor": {"count": 2}}
    return StoredRun(
        "20261121-213000-k3f", plan, (environment,), 42, state, 1_795_296_600.5, tuple(trials), unusable
    )


def host_uml_tcg(**changes: Any) -> StoredRun:
    cells: list[tuple[Cell, float | None]] = [
        (Cell("host", EXEC, HOST, {}, True), 1.0),
        (Cell("uml", EXEC, PlatformSpec.read("uml")), 1.05),
        (Cell("kvm", EXEC, PlatformSpec.read("kvm")), None),
        (Cell("tcg", EXEC, PlatformSpec.read("tcg")), 24.0),
        (Cell("host#2", EXEC, HOST, null_of="host", added=True), 1.0),
    ]
    return constructed(cells, **changes)


def memory_sweep(**changes: Any) -> StoredRun:
    cells: list[tuple[Cell, float | None]] = [
        (
            Cell(
                f"tcg memory={2**n}G",
                EXEC,
                PlatformSpec.read("tcg"),
                {"memory": f"{2**n}G", "smp": "2"},
                n == 0,
            ),
            1 - n / 20,
        )
        for n in range(4)
    ]
    return constructed(cells, **changes)


def renamed(run: StoredRun, label: str) -> StoredRun:
    """Return the same run with its workload labelled `label`."""
    cells = tuple(
        Cell(c.id, WorkloadSpec("exec", {}, label), c.platform, c.factors, c.baseline, c.null_of)
        for c in run.plan.cells
    )
    return replace(run, plan=replace(run.plan, cells=cells))


def print_report(
    run: StoredRun,
    console: Console | None = None,
    *,
    published: bool = False,
    environment: bool = False,
    details: bool = False,
) -> None:
    """Print the report of a run to the console, without the parts that are not asked for; see `make_page`."""
    found = analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    print_page(
        make_page(run, found, with_published=published, with_environment=environment, details=details),
        console,
    )

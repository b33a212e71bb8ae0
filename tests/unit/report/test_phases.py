"""The bars of starts on the terminal and on a run's page, from runs whose phases are given."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from guestmark.core.findings import Fact, Facts, flatten_fact
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger.model import StoredRun
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.stats.analysis import analyse_run
from guestmark.workloads import boot
from guestmark.workloads.boot import Boot, Initcall, Initcalls
from guestmark.workloads.boot.sections import average_phases
from tests.framework.known import known
from tests.framework.runs import constructed, print_report

BOOT = WorkloadSpec("boot", {"watch": {"initcalls": False}}, "boot", "boot")
PEER = WorkloadSpec("guestfs-run", {}, "guestfish run", "guestfish")
QEMU = {"vmm_s": 0.1, "firmware_s": 0.1, "entry_s": 0.2, "kernel_s": 2.0, "modules_s": 0.2, "root_s": 0.1,
        "agent_s": 0.1, "work_s": 0.1, "poweroff_s": 0.05, "exit_s": 0.05}  # fmt: skip
UML = {"vmm_s": 0.02, "kernel_s": 1.2, "modules_s": 0.1, "root_s": 0.01, "agent_s": 0.07, "work_s": 0.05,
       "poweroff_s": 0.02, "exit_s": 0.03}  # fmt: skip
TRACED = {"vmm_s": 0.4, "firmware_s": 0.1, "entry_s": 4.0, "kernel_s": 2.0, "modules_s": 2.0, "root_s": 0.5,
          "agent_s": 6.0}  # fmt: skip


def a_run(found_out: Fact | None = None) -> StoredRun:
    cells = [
        (Cell("boot tcg", BOOT, PlatformSpec.read("tcg"), {}, True, group="starts"), 1.0),
        (Cell("boot uml", BOOT, PlatformSpec.read("uml"), group="starts"), 1.0),
        (Cell("guestfish tcg", PEER, PlatformSpec.read("tcg"), group="starts"), 1.0),
        (Cell("guestfish tcg/kvm", PEER, PlatformSpec.read("tcg/kvm"), group="starts"), 1.0),
    ]
    found = {
        "boot tcg": {"ready_s": 2.8, "total_s": 3.0, **QEMU},
        "boot uml": {"ready_s": 1.4, "total_s": 1.5, **UML},
        "guestfish tcg": {"ready_s": 13.0, "total_s": 13.2, **TRACED, "poweroff_s": 0.1, "exit_s": 0.1},
        "guestfish tcg/kvm": {"ready_s": 20.0, "total_s": 20.4, "poweroff_s": 0.2, "exit_s": 0.2},
    }
    run = constructed(cells, blocks=2)
    trials = [
        replace(
            trial,
            measurements=tuple(
                Measurement(Metric(name, "s"), value, (value,))
                for name, value in found[trial.cell_id].items()
            ),
            facts=Facts(flatten_fact(found_out)) if found_out else Facts(),
        )
        for trial in run.trials
    ]
    plan = replace(run.plan, metrics=boot.ALL)
    return replace(run, plan=plan, trials=tuple(trials))


def printed(run: StoredRun, width: int = 100) -> str:
    out = io.StringIO()
    print_report(run, Console(width=width, file=out))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 140])
def test_a_bar_for_each_start_in_its_phases_order(width: int) -> None:
    text = printed(a_run(), width)
    bars = re.findall(r"\b([VFEKMRAWPX]{3,})\s*$", text, re.MULTILINE)
    assert len(bars) == 3  # what a peer inside a guest tells has no phases of its start
    for bar in bars:
        order = [letter for number, letter in enumerate(bar) if bar[:number][-1:] != letter]
        assert order == sorted(order, key="VFEKMRAWPX".index)
        assert bar.count("K") >= bar.count("R")
    lengths = sorted(map(len, bars))
    assert lengths[-1] >= 5 * lengths[0]
    assert "V\N{NO-BREAK SPACE}vmm" in text
    assert max(map(len, text.splitlines())) <= width


def test_phases_add_up_where_some_starts_show_fewer() -> None:
    """A start whose console misses a phase has its time in the next one."""
    run = a_run()
    kernel = QEMU["kernel_s"]
    trials = []
    for trial in run.trials:
        if trial.cell_id == "boot tcg" and trial.block == 0:
            held = tuple(
                replace(each, value=each.value + kernel) if each.metric.name == "modules_s" else each
                for each in trial.measurements
                if each.metric.name != "kernel_s"
            )
            trial = replace(trial, measurements=held)  # noqa: PLW2901
        trials.append(trial)
    analysis = analyse_run(run.plan, trials, run.unusable)
    result = next(result for result in analysis.cells if result.cell.id == "boot tcg")
    assert sum(average_phases(result)) == pytest.approx(sum(QEMU.values()))


def test_phases_that_are_of_another_start_are_said() -> None:
    text = printed(a_run(), 140)
    assert "phases of guestfish tcg come from a second, traced start" in text
    assert "phases of boot" not in text


def test_the_slowest_initcalls_stand_below() -> None:
    calls = [Initcall(f"call_{number}", 0.1 / number) for number in range(1, 21)]
    text = printed(a_run(Boot(initcalls=Initcalls(slowest=calls, count=321, seconds=1.5))))
    assert "Slowest initcalls of boot tcg (321, 1.5 s in all)" in text
    assert re.search(r"^call_1 +100\.0$", text, re.MULTILINE)
    assert "call_10 " in text
    assert "call_11 " not in text


def test_the_page_draws_them_with_every_phase_named() -> None:
    page = export_run(a_run(), Format.HTML).decode()
    drawing = next(
        svg for svg in re.findall(r"<svg viewBox.*?</svg>.*?</svg>", page, re.DOTALL) if "--part-0" in svg
    )
    there = [sum(1 for seconds in phases.values() if seconds) for phases in (QEMU, UML, TRACED)]
    bars = re.findall(r"<rect[^>]*fill=\"var\(--part-\d\)\"", drawing)
    assert len(bars) == sum(there) + 2  # the traced start is switched off, too
    assert "boot tcg 3.00 s, most of it kernel" in drawing
    legend = known(re.search(r'<ul class="legend">(.*?)</ul>', page, re.DOTALL))[1]
    names = [metric.name.removesuffix("_s") for metric in boot.PHASES]
    assert re.findall(r"</span>(\w) (\w+)</li>", legend) == list(zip("VFEKMRAWPX", names, strict=True))


def test_markdown_has_the_bars_too() -> None:
    text = export_run(a_run(), Format.MARKDOWN).decode()
    rows = re.findall(r"^\| (\w+(?: \w+)+) \| ([\d.]+ s) \| `([VFEKMRAWPX]+)` \|$", text, re.MULTILINE)
    assert [name for name, _, _ in rows] == ["boot tcg", "boot uml", "guestfish run tcg"]
    assert [len(bar) for _, _, bar in rows] == [8, 4, 40]

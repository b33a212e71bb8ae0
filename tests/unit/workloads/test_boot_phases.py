"""Phases from consoles as guests really print them, and initcalls from real kernels' logs."""

import fcntl
import os
import re
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.core import registry
from guestmark.core.context import Caller
from guestmark.core.errors import MachineError, UsageError
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.figures import split_bar
from guestmark.plan.outline import Overrides
from guestmark.platforms import phases as steps
from guestmark.platforms.process import Console, SupervisedProcess
from guestmark.workloads import boot
from guestmark.workloads.boot import Initcall, Initcalls
from guestmark.workloads.boot.plan import build_plan
from guestmark.workloads.boot.sections import average_initcalls
from guestmark.workloads.boot.trial import BootTrial, compute_durations
from guestmark.workloads.guestfs import own_guest as guestfs_run
from guestmark.workloads.guestfs.guestfish import Timeline
from tests.framework import FRAMEWORK
from tests.framework.known import known

LOGS = Path(__file__).parents[1] / "boot_logs"
STARTING = [steps.HANDOVER, steps.KERNEL, steps.MODULES, steps.ROOT, steps.DOWN]


@dataclass(frozen=True)
class Heard:
    """What a process's console has heard since it was started."""

    console: Console
    started_at: float


def waiting(read_fd: int) -> int:
    """Bytes of a pipe that nobody has read yet."""
    return int.from_bytes(fcntl.ioctl(read_fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def replay(name: str, limit: int = 1 << 20, *, upto: bytes | None = None) -> Heard:
    """A console that has heard a recorded log in small pieces, and when that began."""
    content = (LOGS / name).read_bytes()
    if upto is not None:
        content = content[: content.index(upto) + len(upto)]
    read_fd, write_fd = os.pipe()
    began = time.monotonic()
    console = Console(read_fd, limit)
    for start in range(0, len(content), 48):
        os.write(write_fd, content[start : start + 48])
        while waiting(read_fd):  # each piece is heard at a time of its own, however busy the host is
            time.sleep(0.0005)
    os.close(write_fd)
    console.wait_for_end()
    return Heard(console, began)


@pytest.mark.parametrize(
    ("log", "expected"),
    [("qemu.txt", [steps.FIRMWARE, steps.HANDOVER, steps.FIRST_LINE, *STARTING[1:]]), ("uml.txt", STARTING)],
)
def test_phases_of_a_recorded_console_in_the_order_of_time(log: str, expected: list[str]) -> None:
    found = steps.collect_phases(replay(log))
    assert list(found) == expected
    times = list(found.values())
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] > times[0]


def test_a_console_that_ends_early_has_the_phases_until_then() -> None:
    found = steps.collect_phases(replay("qemu.txt", upto=b"guestmark-agent: kernel done"))
    assert list(found) == [steps.FIRMWARE, steps.HANDOVER, steps.FIRST_LINE, steps.KERNEL]


def test_the_last_line_is_found_behind_a_flood() -> None:
    read_fd, write_fd = os.pipe()
    console = Console(read_fd, limit=4096)
    os.write(write_fd, b"reboot: Power down, says a program\n")
    for _ in range(50):
        os.write(write_fd, b"x" * 1000)
    time.sleep(0.05)
    before = time.monotonic()
    os.write(write_fd, b"\nreboot: Power down\n")
    os.close(write_fd)
    console.wait_for_end()
    line = re.compile(rb"reboot: Power down")
    assert known(console.find_arrival(line, last=True)) >= before
    assert known(console.find_arrival(line)) < before
    assert console.find_arrival(re.compile(rb"never said")) is None


def test_the_end_of_a_process_is_told_apart_from_its_order() -> None:
    process = SupervisedProcess("boot-test")
    try:
        process.start(["sh", "-c", "read line < /dev/null; sleep 0.3"])
        ordered, gone = process.end_after(lambda: None, 20.0)
        assert gone is not None
        assert gone > ordered
        assert process.wait(5.0) == 0
    finally:
        process.stop()


def test_a_process_that_stays_is_reported_as_there() -> None:
    process = SupervisedProcess("boot-test")
    try:
        process.start(["sleep", "60"])
        assert process.end_after(lambda: None, 0.2)[1] is None
    finally:
        process.stop()


def test_libguestfs_trace_has_every_phase_of_its_start() -> None:
    heard = replay("libguestfs.txt")
    now = time.monotonic()
    timeline = Timeline(
        started_at=heard.started_at,
        marks={"launched": now, "closed": now + 0.5},
        qemu=(),
        ended_at=now + 0.6,
        console=heard.console,
    )
    found = guestfs_run.read_phases(timeline)
    values, missing = compute_durations(found)
    assert missing == []
    assert values[boot.POWEROFF] == pytest.approx(0.5)
    assert values[boot.EXIT] == pytest.approx(0.1)
    assert sum(values[metric] for metric in boot.PHASES) == pytest.approx(values[boot.TOTAL])
    before = [known(seconds) for seconds in guestfs_run.split_start_time(timeline)]
    assert len(before) == 2
    assert all(seconds >= 0 for seconds in before)
    assert sum(before) <= values[boot.VMM]


ALL_STEPS = {
    steps.FIRMWARE: 0.1, steps.HANDOVER: 0.2, steps.FIRST_LINE: 0.4, steps.KERNEL: 2.4, steps.MODULES: 2.7,
    steps.ROOT: 2.8, steps.READY: 3.0, steps.ORDERED: 3.5, steps.DOWN: 3.6, steps.GONE: 3.7,
}  # fmt: skip


def total_of(values: Mapping[Metric, float]) -> float:
    return sum(values[metric] for metric in boot.PHASES if metric in values)


def test_phases_add_up_to_the_total() -> None:
    values, missing = compute_durations(ALL_STEPS)
    assert missing == []
    assert values[boot.READY] == 3.0
    assert values[boot.KERNEL] == pytest.approx(2.0)
    assert values[boot.WORK] == pytest.approx(0.5)
    assert total_of(values) == pytest.approx(values[boot.TOTAL]) == 3.7


@pytest.mark.parametrize("gone", [steps.FIRMWARE, steps.FIRST_LINE, steps.ROOT, steps.DOWN])
def test_a_phase_whose_end_nobody_saw_is_in_the_next(gone: str) -> None:
    values, missing = compute_durations({name: at for name, at in ALL_STEPS.items() if name != gone})
    assert len(missing) == 1
    assert missing[0] not in values
    assert total_of(values) == pytest.approx(3.7)


def test_a_line_that_came_late_makes_no_negative_phase() -> None:
    values, _ = compute_durations({**ALL_STEPS, steps.ROOT: 3.2})  # after the agent's greeting
    assert values[boot.AGENT] == 0
    assert min(values.values()) >= 0
    assert total_of(values) == pytest.approx(3.7)


@pytest.mark.parametrize("needed", [steps.READY, steps.GONE])
def test_no_total_without_start_and_end(needed: str) -> None:
    with pytest.raises(MachineError, match=needed):
        compute_durations({name: at for name, at in ALL_STEPS.items() if name != needed})


def test_initcalls_of_a_kernel_and_of_its_modules() -> None:
    calls = dict(boot.parse_initcalls((LOGS / "initcalls-tcg.txt").read_text()))
    assert calls["con_init"] == 0
    assert calls["virtio_pci_driver_init [virtio_pci]"] == pytest.approx(0.036772)
    assert not any(
        name.startswith("probe of") for name in calls
    )  # devices' probes are in the calls that make them


def test_what_a_trial_keeps_of_its_initcalls() -> None:
    kept = boot.select_slowest_initcalls((LOGS / "initcalls-uml.txt").read_text())
    names = [call.name for call in kept.slowest]
    seconds = [call.seconds for call in kept.slowest]
    assert names[0] == "raid6_select_algo"  # the kernel times its own checksums
    assert seconds == sorted(seconds, reverse=True)
    assert kept.count >= len(names)
    assert kept.seconds >= sum(seconds)
    assert boot.select_slowest_initcalls("nothing of the kind") == Initcalls(slowest=[], count=0, seconds=0)


def test_slowest_over_trials_counts_an_unnamed_call_as_nothing() -> None:
    one = Initcalls(slowest=[Initcall("a", 0.4), Initcall("b", 0.3)], count=2, seconds=0.7)
    other = Initcalls(slowest=[Initcall("b", 0.3)], count=1, seconds=0.3)
    assert [name for name, _ in average_initcalls([one, other])] == ["b", "a"]
    assert [seconds for _, seconds in average_initcalls([one, other])] == pytest.approx([0.3, 0.2])


def test_bars_are_as_long_as_their_sum() -> None:
    seconds = [0.1, 0.1, 0.1, 5.0, 0.04]
    assert sum(split_bar(seconds, sum(seconds), 60)) == 60
    assert sum(split_bar(seconds, 2 * sum(seconds), 60)) == 30
    assert split_bar([0.0, 1.0], 1.0, 10) == [0, 10]


# --- plans ------------------------------------------------------------------------------------------------


def planned(**more: Any) -> Plan:
    given = {"initcalls": False, "guestfish": False, "caller": Caller(cwd="/", env={}), **more}
    on = given.pop("on", ("tcg", "uml"))
    return build_plan(Overrides(on=on), given.pop("command", ()), **given)


def test_the_plan_of_the_verb() -> None:
    plan = planned()
    assert [cell.id for cell in plan.cells] == ["tcg", "uml"]
    assert plan.metrics[0].name == "ready_s"
    assert steps.Watch.for_cell(plan.cells[0]) == steps.Watch(initcalls=False)


def test_libguestfs_stands_in_the_same_table_on_what_it_runs_on() -> None:
    plan = planned(guestfish=True)
    assert [cell.id for cell in plan.cells] == ["boot tcg", "boot uml", "guestfish tcg"]
    assert len({cell.group for cell in plan.cells}) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"on": ("uml",), "guestfish": True}, "tcg and kvm only"),
        ({"command": ("",)}, "cannot be run"),
        ({"on": ("vax",)}, "vax"),
    ],
)
def test_what_cannot_be_meant_is_said(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        planned(**more)


def test_the_host_is_not_booted() -> None:
    plan = planned(on=("host", "tcg"))
    with pytest.raises(UsageError, match="cannot be booted"):
        BootTrial.preflight(plan, plan.cells)


def test_iterations_that_cannot_be_are_said() -> None:
    plan = planned()
    assert BootTrial.preflight(plan, plan.cells) == []
    several = replace(plan, policy=replace(plan.policy, iterations=3))
    assert "starts only once" in BootTrial.preflight(several, several.cells)[0]


def test_only_watched_guests_are_made_to_talk() -> None:
    assert steps.Watch.for_cell(Cell("c", WorkloadSpec("exec"), PlatformSpec.read("tcg"))) is None
    params = registry.workload_kind("boot").check_params({"initcalls": True})
    watch = steps.Watch.for_cell(Cell("c", WorkloadSpec("boot", params), PlatformSpec.read("tcg")))
    assert "initcall_debug" in known(watch).build_kernel_arguments()
    assert "initcall_debug" not in steps.Watch().build_kernel_arguments()


def test_the_filter_that_forbids_ptrace_does() -> None:
    """What the faults' tests of UML rely on."""
    helper = FRAMEWORK / "without_ptrace.py"
    traced = "import ctypes; exit(ctypes.CDLL(None).ptrace(0, 0, 0, 0) != 0)"  # PTRACE_TRACEME
    plain = subprocess.run(["python3", "-c", traced], check=False, timeout=20)
    refused = subprocess.run(["python3", helper, "python3", "-c", traced], check=False, timeout=20)
    assert (plain.returncode, refused.returncode) == (0, 1)

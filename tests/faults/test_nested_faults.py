"""Layers that die, hang or disagree: the trial says which one it was, and nothing of any is left."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import registry
from guestmark.platforms.qemu.nested.outer import OUTERS
from guestmark.platforms.qemu.nested.place import OuterPlace
from guestmark.platforms.qemu.nested.platform import NestedGuest, NestedPlatform
from tests.framework.command_line import CommandLine
from tests.framework.known import a, known
from tests.framework.marks import thorough
from tests.framework.processes import cpu_seconds, kill, wait_until

LEFT = "find /run/guestmark -mindepth 1 -maxdepth 1 -type d; pgrep linux"
INNER = Cell("test", WorkloadSpec("test"), PlatformSpec.read("tcg/uml"), {"memory": "256M"})


def start() -> AbstractContextManager[NestedGuest]:
    return a(NestedPlatform, registry.get_platform("tcg/uml")).start(INNER)


def arguments(blocks: int, *command: str, limit: str = "10m") -> tuple[object, ...]:
    return (
        "exec", "--quiet", "--trial-limit", limit, "--json", "-", "--on", "tcg/uml", "--set", "memory=256M",
        "--null", "none", "--blocks", blocks, "--warmup", 0, "--iterations", 1, "--", *command,
    )  # fmt: skip


def broken(harm: Callable[[NestedGuest], object]) -> tuple[str, MachineError]:
    """The outer guest's boot id and the error, of a trial in which something is done to a layer."""
    first = ""
    try:
        with start() as guest:
            first = guest.attest().outer.guest.boot_id
            harm(guest)
            guest.agent.exec(["sleep", "60"], timeout_s=100)
    except MachineError as error:
        return first, error
    raise AssertionError("the harm was not noticed")


def panic(guest: NestedGuest) -> None:
    guest.agent.exec(["sh", "-c", "echo c > /proc/sysrq-trigger"], timeout_s=60)


def kill_inner_hypervisor(guest: NestedGuest) -> None:
    pid, place = guest.process.pid(), guest.place
    with a(OuterPlace, place).hold_agent() as outer:
        outer.exec(["kill", "-KILL", str(pid)], timeout_s=10)
    guest.agent.exec(["true"], timeout_s=10)


def assert_the_outer_one_is_well(guest: NestedGuest, first: str) -> None:
    """It is the same as before, held the dead inner guest, and keeps nothing of that one."""
    outer = guest.attest().outer
    assert (outer.guest.boot_id, outer.inner_guest) == (first, 2)
    pid, place = known(guest.process.pid()), a(OuterPlace, guest.place)
    mine = {pid, *place.list_descendants(pid)}
    with place.hold_agent() as agent:
        left = agent.exec(["sh", "-c", LEFT], timeout_s=30).stdout.decode().split()
    assert left[0] == str(guest.process.scratch)
    assert {int(pid) for pid in left[1:]} <= mine


@pytest.mark.long
def test_a_layer_that_dies_fails_its_trial_only() -> None:
    with OUTERS.share_in_block([INNER]):
        first, error = broken(kill_inner_hypervisor)
        assert str(error).startswith("inside tcg: the guest ended")

        def kill_outer_hypervisor(guest: NestedGuest) -> None:
            assert_the_outer_one_is_well(guest, first)
            os.kill(known(guest.vmm_pid), signal.SIGKILL)

        _, error = broken(kill_outer_hypervisor)
        assert "outer guest" in str(error)

        with start() as guest:
            assert guest.attest().outer.guest.boot_id != first
            # What a clock looks like that has stood still for a while.
            guest._held.pause()
            time.sleep(1.0)
            guest._held.resume()
            (remark,) = guest.remarks()
            assert "clocks of the layers disagree" in remark


@pytest.mark.long
def test_an_inner_guest_that_panics_leaves_the_outer_one_well() -> None:
    with OUTERS.share_in_block([INNER]):
        first, error = broken(panic)
        assert str(error).startswith("inside tcg: the guest ended")
        assert "panic" in str(error)
        with start() as guest:
            assert_the_outer_one_is_well(guest, first)


@pytest.mark.long
@pytest.mark.usefixtures("nested_known")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGKILL, id="killed"), thorough(signal.SIGSTOP, name="hung")]
)
def test_a_block_whose_outer_guest_goes_is_marked_and_the_next_one_measured(
    guestmark: CommandLine, marker: Path, number: signal.Signals
) -> None:
    command = ("sh", "-c", f"sleep 20 <{marker}")
    with guestmark.running(*arguments(2, *command, limit="40s")) as process:
        assert wait_until(lambda: guestmark.reads(marker), 200)
        kill(guestmark.hypervisors(), number)
        stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 1, stderr
    (cell,) = json.loads(stdout)["cells"]
    trials = sorted(cell["trials"], key=lambda trial: trial["block"])
    assert [trial["status"] for trial in trials] == ["failed", "ok"]
    assert trials[0]["phases"]["ready"] > 0
    guestmark.assert_nothing_left()


@pytest.mark.usefixtures("nested_known")
@pytest.mark.long
@pytest.mark.parametrize("phase", ["starting", "running"])
def test_a_killed_controller_leaves_no_layer(guestmark: CommandLine, marker: Path, phase: str) -> None:
    with guestmark.running(*arguments(1, "sh", "-c", f"sleep 60 <{marker}")) as process:
        if phase == "starting":
            assert wait_until(guestmark.hypervisors, 60)
            (outer, *_) = guestmark.hypervisors()
            assert wait_until(lambda: cpu_seconds(outer) > 1, 60)
        else:
            assert wait_until(lambda: guestmark.reads(marker), 200)
        assert guestmark.hypervisors()
        assert guestmark.reads(marker) == (phase == "running")
        assert process.poll() is None
    guestmark.assert_nothing_left()


@pytest.mark.long
@pytest.mark.usefixtures("nested_known")
def test_an_interrupted_run_stops_the_outer_guest_too(guestmark: CommandLine) -> None:
    with guestmark.running(*arguments(2, "sleep", "60")) as process:
        assert wait_until(guestmark.hypervisors, 60)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    guestmark.assert_nothing_left()

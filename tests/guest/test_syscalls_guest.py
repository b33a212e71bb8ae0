"""System calls in real guests: what the hypervisors count for each is what must happen for each."""

import contextlib
import time
from typing import Any

import pytest

from guestmark.agent import syscalls
from guestmark.core.errors import MachineError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.platforms import counters
from guestmark.platforms.base import Machine
from guestmark.platforms.guest import Guest
from guestmark.platforms.qmp import UnknownCommandError
from guestmark.workloads.base import create_trial
from tests.framework.command_line import CommandLine
from tests.framework.guests import start
from tests.framework.known import a, known

CALLS = ["null", "signal", "pipe", "exec"]


def measured(platform: str, machine: Machine, *calls: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The workload once: its values by metric, and what is known of each call."""
    params = {"operations": 20, "time": "20ms", "calls": list(calls)}
    cell = Cell("test", WorkloadSpec("syscalls", params), PlatformSpec.read(platform))
    workload = create_trial(Plan("test", (cell,), Policy(trial_limit_s=120.0), ()), cell)
    workload.prepare(machine)
    values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
    workload.cleanup(machine)
    assert not [warning for warning in workload.warnings if "clocks" not in warning], workload.warnings
    return values, {
        name: call["per_operation"] for name, call in workload.facts.facts().kept["syscalls"].items()
    }


def test_every_call_stops_uml_as_often_as_it_enters_the_kernel() -> None:
    with start("uml", memory="256M") as guest:
        values, each = measured("uml", guest, *CALLS)
    # A little off whole numbers: the timer stops the guest, too, and the loop's own stops are subtracted.
    assert 0.9 < each["null"]["uml_stops"] < 1.6
    assert 1.8 < each["signal"]["uml_stops"] < 3
    assert 3.5 < each["pipe"]["uml_stops"] < 6
    assert each["exec"]["uml_stops"] > 50
    assert values["stops/op"] == pytest.approx(sum(call["uml_stops"] for call in each.values()) / len(CALLS))
    assert values["host_cpu/guest_cpu"] > 0
    assert "exits/op" not in values


def test_tcg_translates_new_programs_and_flushes_its_tlb() -> None:
    with start("tcg", memory="256M") as guest:
        values, each = measured("tcg", guest, *CALLS)
        # A QEMU that does not know the statistics of KVM or TCG by these commands is asked otherwise, or tells nothing.
        ask = {"query-stats": "query-no-such-stats", "x-query-jit": "x-query-no-such-jit"}
        query = known(guest.query)
        with pytest.raises(UnknownCommandError):
            query("query-no-such-stats")
        older = counters.read_guest_counters(
            guest.vmm_pid, lambda name, *arguments: query(ask.get(name, name), *arguments)
        )
        assert older.keys() == guest.counters().keys()
    assert each["null"]["tcg_tlb_flushes"] < 0.1
    assert each["pipe"]["tcg_tlb_flushes"] > 1
    assert each["exec"]["tcg_blocks"] > 10 * each["null"]["tcg_blocks"]
    assert {"tlb_flushes/op", "blocks/op", "host_cpu/guest_cpu"} <= values.keys()
    assert not {"exits/op", "stops/op"} & values.keys()


def test_a_guest_that_ends_meanwhile_is_told_and_hangs_nothing() -> None:
    def kill() -> dict[str, float]:
        with contextlib.suppress(OSError):
            a(Guest, guest).process.stop()
        return {}

    begin = time.monotonic()
    with start("uml", memory="256M") as guest, pytest.raises(MachineError):
        syscalls.measure_syscalls(
            guest.agent, operations=20, time_s=0.02, names=["null"], timeout_s=60.0, counters=kill
        )
    assert time.monotonic() - begin < 60


@pytest.mark.long
def test_the_plan_on_kvm_inside_tcg(guestmark: CommandLine) -> None:
    result = guestmark(
        "run", "syscalls", "--on", "tcg/kvm", "--set", "memory=256M", "--blocks", 1, "--null", "none", "--quiet",
        "--json", "-", "--scale", "0.2", timeout=280,
    )  # fmt: skip
    assert result.status == 0, result.stderr
    (trial,) = result.document()["cells"][0]["trials"]
    each = {name: call["per_operation"] for name, call in trial["attestation"]["syscalls"].items()}
    # Nothing of a plain call concerns the hypervisor; a process that is stopped and gone on with does.
    assert each["null"]["kvm_exits"] < 0.5
    assert each["exec"]["kvm_exits"] > each["null"]["kvm_exits"]
    assert trial["attestation"]["agent_sha256"]

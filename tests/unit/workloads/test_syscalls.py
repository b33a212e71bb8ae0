"""The mix of system calls against the real agent on this host, its plan, and what is made of the counters."""

import dataclasses
import hashlib
import itertools
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent import syscalls
from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.frames import Transport
from guestmark.agent.syscalls import Section
from guestmark.agent.wire import NOTHING, Measured
from guestmark.agent.wire import SYSTEM_CALLS as CALLS
from guestmark.core.cause import Speaker, classify_message
from guestmark.core.errors import AttestationError, MachineError, UsageError, WorkloadError
from guestmark.core.model import Cell, Plan, Policy, WorkloadSpec
from guestmark.core.own_program import find_agent_binary
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.plan.load import load_outline
from guestmark.platforms import counters
from guestmark.platforms.base import Machine
from guestmark.platforms.host_like import HostPlatform
from guestmark.platforms.qmp import UnknownCommandError
from guestmark.workloads.base import create_trial
from guestmark.workloads.syscalls.trial import SyscallsTrial, count_per_operation

LIMIT = 60.0
PARAMS: Mapping[str, Any] = {"operations": 20, "time": "2ms", "calls": list(CALLS)}
CELL = Cell("host", WorkloadSpec("syscalls", PARAMS), HOST)
PLAN = Plan("syscalls", (CELL,), Policy(trial_limit_s=LIMIT), ())


@pytest.fixture
def agent() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


def measure(agent: Agent, *names: str, **more: Any) -> list[Section]:
    options = {"operations": 20, "time_s": 0.002, "counters": dict, "timeout_s": LIMIT, **more}
    return syscalls.measure_syscalls(agent, names=names, **options)


def test_every_call_is_measured_as_often_and_as_long_as_was_asked(agent: Agent) -> None:
    nothing, *sections = [call.measured for call in measure(agent, *CALLS)]
    assert (nothing.name, nothing.operations, nothing.elapsed_ns) == (NOTHING, 0, 0)
    assert tuple(section.name for section in sections) == CALLS
    for section in sections:
        assert section.operations >= 20, section
        assert section.elapsed_ns >= 2_000_000, section
        assert section.batches >= 1, section
        assert 0 < section.lowest_ns <= section.median_ns, section
        assert section.median_ns * section.operations < 100 * section.elapsed_ns, section
        assert section.cpu_ns > 0, section
        assert 0 <= section.loop_ns < section.clock_ns, section
    again = agent.exec(["sh", "-c", "pgrep -c guestmark-agent -P $PPID"], timeout_s=LIMIT)
    assert again.stdout.strip() == b"0"


def test_counters_are_read_around_each_timed_part_and_nowhere_else(agent: Agent) -> None:
    readings = itertools.count()
    sections = measure(agent, "null", "pipe", counters=lambda: {"readings": float(next(readings))})
    assert [dict(section.counted) for section in sections] == [{"readings": 1.0}] * 3
    assert next(readings) == 6


@pytest.mark.parametrize("arguments", [[], ["--operations", "0", "--time", "1"], ["--times", "1"]])
def test_the_program_says_how_it_is_used(arguments: list[str]) -> None:
    command = [str(find_agent_binary()), "syscalls", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 125
    assert "usage: guestmark-agent syscalls" in done.stderr


def test_an_unknown_call_is_named_and_the_agent_stays_usable(agent: Agent) -> None:
    with pytest.raises(WorkloadError, match="there is no operation nonsense"):
        measure(agent, "nonsense")
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_the_time_limit_ends_the_mix_and_all_its_processes(agent: Agent) -> None:
    pid = agent.hello().pid
    begin = time.monotonic()
    with pytest.raises(WorkloadError, match="exceeded their time limit"):
        measure(agent, "switch", operations=10_000_000, timeout_s=0.5)
    assert time.monotonic() - begin < 20
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""
    assert agent.exec(["true"], timeout_s=LIMIT).ok


def test_counters_that_fail_end_the_mix(agent: Agent) -> None:
    def failing() -> Mapping[str, float]:
        raise MachineError("the monitor is gone")

    with pytest.raises(MachineError, match="the monitor is gone"):
        measure(agent, "null", counters=failing)
    pid = agent.hello().pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


def test_the_workload_on_the_host() -> None:
    with HostPlatform().start(dataclasses.replace(CELL, workload=WorkloadSpec("probe"))) as host:
        workload = create_trial(PLAN, CELL)
        workload.prepare(host)
        values = {measurement.metric.name: measurement.value for measurement in workload.run(host)}
        workload.cleanup(host)
    each = [values[f"{name}_ns"] for name in CALLS]
    assert values["geomean_ns"] == pytest.approx(math.prod(each) ** (1 / len(each)))
    assert values.keys() == {"geomean_ns", "wall_s", *(f"{name}_ns" for name in CALLS)}
    assert (
        workload.facts.facts().kept["agent_sha256"]
        == hashlib.sha256(find_agent_binary().read_bytes()).hexdigest()
    )
    assert workload.facts.facts().kept["syscalls"]["exec"]["operations"] >= 20


def test_another_agent_is_not_measured(tmp_path: Path) -> None:
    other = tmp_path / "agent"
    shutil.copy(find_agent_binary(), other)
    with other.open("ab") as stream:
        stream.write(b"\0")
    process = subprocess.Popen([other, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    with Agent(Transport.of_process(process)) as agent, HostPlatform().start(CELL) as host:
        host.agent, ours = agent, host.agent
        with pytest.raises(AttestationError, match="not the same program"):
            create_trial(PLAN, CELL).prepare(host)
        host.agent = ours


# --- what is counted


def section(name: str, operations: int, **counted: float) -> Section:
    measured = Measured(
        name=name, operations=operations, batches=1, elapsed_ns=10, cpu_ns=10,
        median_ns=1.0, lowest_ns=1.0, loop_ns=0.0, clock_ns=0.0,
    )  # fmt: skip
    return Section(measured, counted)


def test_what_a_part_with_nothing_counts_is_subtracted() -> None:
    nothing = section(NOTHING, 0, kvm_exits=10)
    assert count_per_operation(section("pipe", 100, kvm_exits=610), nothing, "kvm_exits") == 6.0
    assert count_per_operation(section("null", 100, kvm_exits=9), nothing, "kvm_exits") == 0.0


def monitor(**answers: Any) -> Callable[..., Any]:
    """A monitor that knows these commands (`-` as `_`) and no others."""

    def query(command: str, _arguments: Any = None) -> Any:
        answer = answers.get(command.replace("-", "_"))
        if answer is None:
            raise UnknownCommandError(f"this QEMU has no command {command}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    return query


def processor(**stats: Any) -> dict[str, Any]:
    return {"provider": "kvm", "stats": [{"name": name, "value": value} for name, value in stats.items()]}


def test_kvm_counts_of_all_processors_are_summed() -> None:
    ask = monitor(
        query_stats=[
            processor(exits=5, io_exits=2, halt_poll_success_ns=9),
            processor(exits=7, histogram=[1]),
        ]
    )
    assert counters.read_kvm_counters(ask, 1) == {"kvm_exits": 12.0, "kvm_io_exits": 2.0}


def test_an_older_qemu_has_debugfs_or_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "4711-12"
    (folder / "vcpu0").mkdir(parents=True)
    for name, value in (("exits", 40), ("mmio_exits", 3), ("halt_wait_ns", 8)):
        (folder / name).write_text(f"{value}\n")
    assert counters.read_kvm_counters(monitor(), 4711, tmp_path) == {"kvm_exits": 40.0, "kvm_mmio_exits": 3.0}
    assert counters.read_kvm_counters(monitor(), 471, tmp_path) == {}
    assert counters.read_kvm_counters(monitor(), 4711, tmp_path / "none") == {}


JIT = """Translation buffer state:
gen code size       46573011/1073736704
TB count            85196

Statistics:
TB flush count      1
TB invalidate count 14348
TLB full flushes    3
TLB partial flushes 4541
TLB elided flushes  17859
"""


def test_tcg_counts_are_read_by_whichever_command_there_is() -> None:
    expected = {
        "tcg_code_bytes": 46573011.0, "tcg_blocks": 85196.0, "tcg_flushes": 1.0,
        "tcg_invalidations": 14348.0, "tcg_tlb_flushes": 4544.0,
    }  # fmt: skip
    assert counters.read_tcg_counters(monitor(x_query_jit={"human-readable-text": JIT})) == expected
    assert counters.read_tcg_counters(monitor(human_monitor_command=JIT.replace("\n", "\r\n"))) == expected
    refused = MachineError(
        "the command x-query-jit of QEMU's monitor failed",
        cause=classify_message(Speaker.QEMU, "JIT information is only available with accel=tcg").cause,
    )
    assert counters.read_tcg_counters(monitor(x_query_jit=refused)) == {}
    with pytest.raises(MachineError, match="did not answer"):
        counters.read_tcg_counters(
            monitor(x_query_jit=MachineError("QEMU's monitor did not answer x-query-jit within 10 s"))
        )


def test_processor_time_is_that_of_the_whole_tree() -> None:
    busy = "import time, sys\nwhile time.process_time() < 0.15: pass\nprint(flush=True)\nsys.stdin.read()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    with subprocess.Popen(["python3", "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        spent = counters.read_processor_s(process.pid)
        process.communicate(b"")
    assert spent is not None
    assert 0.15 <= spent < 5
    assert counters.read_processor_s(process.pid) is None
    assert counters.read_processor_s(None) is None


def test_without_counts_there_is_a_remark_not_a_zero() -> None:
    class Silent:
        """A KVM guest whose QEMU and kernel tell nothing."""

        vmm_pid = os.getpid()

        def __init__(self, agent: Agent) -> None:
            self.agent = agent

        def counters(self) -> Mapping[str, float]:
            return counters.read_kvm_counters(monitor(), None, Path("/nonexistent"))

    cell = dataclasses.replace(
        CELL,
        id="kvm",
        platform=PlatformSpec.read("kvm"),
        workload=WorkloadSpec("syscalls", {**PARAMS, "calls": ["null"]}),
    )
    with HostPlatform().start(CELL) as host:
        workload = SyscallsTrial(PLAN, cell)
        machine: Machine = Silent(host.agent)  # type: ignore[assignment]
        workload.prepare(machine)
        names = {measurement.metric.name for measurement in workload.run(machine)}
    assert names == {"geomean_ns", "null_ns", "host_cpu/guest_cpu", "wall_s"}
    assert workload.warnings == [
        "exits/op is unknown: this hypervisor does not report it, and the kernel's statistics cannot be read"
    ]


# --- plans

TOML = """name = "calls"
title = "calls"
platforms = ["host"]
[workloads.syscalls]
"""


def params_of(text: str) -> Mapping[str, Any]:
    return load_outline(TOML + text, "calls.toml").shape.entries[0].workload.params


def test_parameters_have_defaults_and_scale() -> None:
    assert params_of("") == {"operations": 50, "time": "50ms", "calls": list(CALLS)}
    text = 'params.operations = 100\nparams.time = "1s"\nparams.calls = ["pipe", "null"]'
    plan = TOML.replace("[w", 'scale = ["operations", "time"]\n[w') + text
    scaled = load_outline(plan, "calls.toml", scale=0.1).shape.entries[0].workload.params
    assert scaled == {"operations": 10, "time": "0.1s", "calls": ["null", "pipe"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('params.calls = ["nul"]', "unknown call 'nul'"),
        ("params.calls = []", "no call is named"),
        ("params.operations = 0", "greater than or equal to 1"),
        ('params.time = "0s"', "not between"),
        ('params.time = "soon"', "not a duration"),
        ("params.loops = 3", "params.loops"),
    ],
)
def test_wrong_parameters_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        params_of(text)
    assert message in caught.value.hint

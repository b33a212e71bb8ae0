"""sysbench and fio where they cannot succeed, and where nothing may be left: in real guests and on the host's loop."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import AttestationError, MachineError, WorkloadError
from guestmark.core.metric import Measurement
from guestmark.disks import loop
from guestmark.engine import preflight
from guestmark.platforms.base import Machine
from guestmark.workloads.base import Workload
from guestmark.workloads.sysbench.trial import SysbenchTrial
from tests.framework import IMPORTABLE
from tests.framework.cells import cell_of
from tests.framework.command_line import CommandLine
from tests.framework.guests import started
from tests.framework.known import a
from tests.framework.marks import long
from tests.framework.processes import wait_until

as_root_with_loop = pytest.mark.skipif(
    bool(loop.explain_no_loop()), reason=loop.explain_no_loop() or "there are loop devices"
)


def named(measurements: Iterable[Measurement]) -> dict[str, float]:
    return {measurement.metric.name: measurement.value for measurement in measurements}


def test_one_guest_runs_out_of_memory_and_says_so() -> None:
    cell = cell_of(
        "uml", "sysbench", {"memory": "128M"}, test="memory", memory_block_size="1G", memory_total_size="4G"
    )
    with started(cell) as (machine, workload):
        workload.prepare(machine)
        with pytest.raises(
            WorkloadError, match=r"ran out of memory|[Cc]annot allocate|[Ff]ailed to allocate"
        ):
            workload.run(machine)


def test_files_that_do_not_fit_are_said_before_they_are_made() -> None:
    cell = cell_of("uml", "sysbench", {"size": "64M"}, test="fileio", file_total_size="62M", time=1)
    with started(cell) as (machine, workload), pytest.raises(WorkloadError, match="do not fit on the disk"):
        workload.prepare(machine)


@pytest.mark.parametrize(
    "mode", ["randread", long("write")]
)  # laid out beforehand, and written by the job itself
def test_a_job_file_that_fills_the_disk_is_the_reason(mode: str) -> None:
    cell = cell_of("uml", "fio", {"size": "32M"}, job=f"[a]\nrw={mode}\nsize=64M\n")

    def prepared_and_run(machine: Machine, workload: Workload[Any]) -> None:
        workload.prepare(machine)
        workload.run(machine)

    with started(cell) as (machine, workload), pytest.raises(WorkloadError, match="do not fit on the disk"):
        prepared_and_run(machine, workload)


def test_a_job_file_is_run_in_a_guest_and_on_the_host(tmp_path: Path) -> None:
    job = "[a]\nrw=randrw\nsize=${SIZE}\nbs=16k\nnumjobs=${THREADS}\ndirect=1\nfilename_format=data.$jobnum\n"
    for platform in ("host", "uml"):
        factors = {"location": str(tmp_path), "threads": "2"}
        cell = cell_of(platform, "fio", factors, job=job, values={"SIZE": "2M"})
        with started(cell) as (machine, workload):
            workload.prepare(machine)
            found = named(workload.run(machine))
            assert found["throughput"] == pytest.approx(found["operations_per_s"] * 16384, rel=0.01)
            assert found["read_throughput"] + found["write_throughput"] == pytest.approx(found["throughput"])
            assert not workload.warnings
    assert not list(tmp_path.glob("*/*"))


def test_another_sysbench_in_the_guest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH that means another file there than on the host: /tmp of a guest is not the host's."""
    other = tmp_path / "sysbench"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    cell = cell_of("uml", "sysbench", test="cpu", events=1)
    with started(cell) as (machine, workload):
        machine.agent.mkdir(str(tmp_path), parents=True)
        machine.agent.write_file(str(other), b"#!/bin/sh\n: other\n", mode=0o755)
        a(SysbenchTrial, workload)._env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        with pytest.raises(AttestationError, match="not the same program"):
            workload.prepare(machine)


def test_an_output_that_is_not_sysbenchs_shows_its_line(tmp_path: Path) -> None:
    fake = tmp_path / "sysbench"
    fake.write_text("#!/bin/sh\nprintf 'sysbench 1.1.0-abc\\n\\nThroughput:\\n'\n")
    fake.chmod(0o755)
    with started(cell_of("host", "sysbench", test="cpu", events=1)) as (machine, workload):
        a(SysbenchTrial, workload)._env["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
        workload.prepare(machine)
        with pytest.raises(WorkloadError, match=r"line 1 of sysbench's output .*'sysbench 1\.1\.0-abc'"):
            workload.run(machine)


@pytest.mark.parametrize("mode", ["seqwr", "seqrewr", "seqrd", "rndrd", "rndwr", "rndrw"])
def test_every_kind_of_requests_is_measured_and_removed(mode: str, tmp_path: Path) -> None:
    cell = cell_of(
        "host",
        "sysbench",
        {"location": str(tmp_path), "file_test_mode": mode},
        test="fileio", file_num=4, file_total_size="4M", events=200,
    )  # fmt: skip
    with started(cell) as (machine, workload):
        workload.prepare(machine)
        for _ in range(2):
            found = named(workload.run(machine))
        directory = Path(machine.disks[0].directory)
        assert ("read_throughput" in found) == (mode in {"seqrd", "rndrd", "rndrw"})
        assert ("write_throughput" in found) == (mode not in {"seqrd", "rndrd"})
        assert found["throughput"] > 0
        assert len(list(directory.glob("test_file.*"))) == (0 if mode == "seqwr" else 4)
        workload.cleanup(machine)
        assert not list(directory.iterdir())
    assert not list(tmp_path.glob("*/*"))


@as_root_with_loop
def test_an_image_on_the_host_has_the_options_that_were_asked_for(tmp_path: Path) -> None:
    factors = {"location": str(tmp_path), "size": "64M", "cache": "none", "mount": "data=journal,barrier=0"}
    cell = cell_of(
        "host", "sysbench", factors,
        test="fileio", host_disk="loop", file_num=4, file_total_size="4M", events=200, file_extra_flags="direct",
    )  # fmt: skip
    with started(cell) as (machine, workload):
        workload.prepare(machine)
        found = named(workload.run(machine))
        assert found["guest_flushes"] == 0
        assert workload.facts.facts().kept["flushes_reached_host"] == "no"
        device = machine.disks[0].device
        assert device.startswith("/dev/loop")
        assert "data=journal" in workload.facts.facts().kept["target_mount"]
        assert device not in Path("/proc/self/mounts").read_text()  # only the agent's namespace has it
        assert Path(f"/sys/block/{device[5:]}/loop/backing_file").exists()
    assert not Path(f"/sys/block/{device[5:]}/loop/backing_file").exists()
    assert not list(tmp_path.glob("*/*"))


@as_root_with_loop
def test_mount_options_that_the_host_refuses_are_told_in_its_words(tmp_path: Path) -> None:
    factors = {"location": str(tmp_path), "size": "64M", "mount": "data=nonsense"}
    cell = cell_of(
        "host",
        "sysbench",
        factors,
        test="fileio",
        host_disk="loop",
        file_total_size="4M",
        file_num=4,
        events=1,
    )
    with started(cell) as (machine, workload), pytest.raises(MachineError, match=r"mount.*data=nonsense"):
        workload.prepare(machine)


def test_who_may_not_mount_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    cell = cell_of("host", "sysbench", {"size": "64M"}, test="fileio", host_disk="loop", events=1)
    assert "only root can mount an image" in preflight.find_impossible_cells([cell])[0].reason
    with pytest.raises(MachineError, match="only root can mount an image") as error, started(cell):
        pass
    assert "host_disk=directory" in error.value.hint


KILLED = """
import sys, time
from tests.framework import IMPORTABLE
from tests.framework.cells import cell_of
from tests.framework.guests import started
cell = cell_of("host", "sysbench", {"location": sys.argv[1], "size": "64M"}, test="fileio", host_disk="loop",
               file_num=4, file_total_size="4M", events=1)
with started(cell) as (machine, workload):
    workload.prepare(machine)
    print(machine.disks[0].device, flush=True)
    time.sleep(60)
"""


@as_root_with_loop
def test_a_killed_controller_leaves_no_mount_no_loop_device_and_no_image(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": IMPORTABLE},
        stdout=subprocess.PIPE,
        text=True,
    ) as controller:
        assert controller.stdout is not None
        device = controller.stdout.readline().strip()
        assert device.startswith("/dev/loop")
        backing = Path(f"/sys/block/{device[5:]}/loop/backing_file")
        assert str(tmp_path) in backing.read_text()
        controller.send_signal(signal.SIGKILL)
        controller.wait(10)

    def left() -> bool:
        with contextlib.suppress(OSError):  # another test may have the same device by now
            return str(tmp_path) in backing.read_text()
        return False

    assert wait_until(lambda: not list(tmp_path.iterdir()) and not left())


def test_a_missing_program_is_said_before_anything_starts(guestmark: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(
        'schema = "guestmark-plan/1"\nname = "mine"\ntitle = "?"\nplatforms = ["host"]\n'
        '[workloads.cpu]\nkind = "sysbench"\nparams.test = "cpu"\n'
        '[workloads.io]\nkind = "fio"\nparams.job = "[a]\\nrw=read\\nsize=1M\\n"\n'
    )
    result = guestmark("run", plan, "--blocks", "1", env={"PATH": str(tmp_path)})
    assert result.status == 3
    assert not result.stdout
    for complaint in ("sysbench is not installed (install the package sysbench)", "fio is not installed"):
        assert complaint in result.stderr
    assert "block 1" not in result.stderr
    assert "Traceback" not in result.stderr

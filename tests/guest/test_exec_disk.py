"""A command runs on the disk that its row names, whatever starts the machine, and one that does not is reported."""

import json
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import guestmark
from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.core.findings import Durability, Flushes, Traffic, WorkingDirectory
from guestmark.core.model import Cell, Trial, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks import loop
from guestmark.stats.durability import describe_row_durability
from tests.framework.command_line import CommandLine
from tests.framework.guests import started
from tests.framework.marks import long

WRITES = "head -c 1048576 /dev/urandom > file && sync file"
SIZES = {"xfs": "320M", "btrfs": "128M"}
SHARES = ("9p", "virtiofs", "hostfs")
PLACES = [
    ("tcg", "ext4"), ("uml", "ext4"), ("uml", "hostfs"), ("host", "ext4"),
    *(long("tcg", name) for name in ("xfs", "btrfs", "9p", "virtiofs")),
    long("tcg/kvm", "ext4"),
]  # fmt: skip


def on(platform: str, filesystem: str, *argv: str) -> Cell:
    factors = {"filesystem": filesystem, "location": "/var/tmp"}
    if filesystem not in SHARES:
        factors["size"] = SIZES.get(filesystem, "64M")
    disks = [{"role": "target", "host": "loop"}] if platform == "host" else None
    params = {"argv": list(argv), **({"disks": disks} if disks else {})}
    return Cell("test", WorkloadSpec("exec", params), PlatformSpec.read(platform), factors)


@pytest.mark.parametrize(("platform", "filesystem"), PLACES)
def test_a_command_runs_on_its_disk(platform: str, filesystem: str) -> None:
    if platform == "host" and loop.explain_no_loop():
        pytest.skip(loop.explain_no_loop())
    with started(on(platform, filesystem, "sh", "-c", WRITES)) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        (disk,) = machine.disks
        written = machine.agent.read_file(f"{disk.directory}/work/file")
        mounts = machine.agent.read_file("/proc/self/mounts").decode()
        found = workload.facts.facts().find_fact(WorkingDirectory)
    assert len(written) == 1 << 20
    assert f"{disk.device} {disk.directory} {filesystem} " in mounts
    assert found is not None
    assert (found.filesystem, found.source, found.mounted_at) == (filesystem, disk.device, disk.directory)


@pytest.mark.parametrize(
    ("platform", "levels", "command", "word"),
    [
        ("tcg", {}, WRITES, Durability.CLAIMED),
        ("tcg", {"cache": "unsafe"}, WRITES, Durability.LOST),
        ("tcg", {}, "true", Durability.NOTHING),
        ("uml", {}, WRITES, Durability.LOST),  # its disk's process makes no fsync
        ("host", {}, WRITES, Durability.REACHED),
    ],
)
def test_a_row_says_what_became_of_its_flushes_without_a_proof(
    platform: str, levels: dict[str, str], command: str, word: Durability
) -> None:
    if platform == "host" and loop.explain_no_loop():
        pytest.skip(loop.explain_no_loop())
    cell = on(platform, "ext2", "sh", "-c", command)
    with started(replace(cell, factors={**cell.factors, **levels})) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        found = workload.facts.facts().find_fact(Flushes)
    assert found is not None
    assert found.durability_word is word, found.why


@pytest.mark.long
def test_the_path_of_the_disk_stands_in_a_command() -> None:
    command = "cp /bin/true {disk}/copy && pwd && stat -f -c %T {disk}"
    with started(on("tcg", "ext2", "sh", "-c", command)) as (machine, workload):
        workload.prepare(machine)
        workload.run(machine)
        (disk,) = machine.disks
        assert machine.agent.stat(f"{disk.directory}/work/copy").size == os.stat("/bin/true").st_size


def test_a_bare_disk_is_written_through_its_device() -> None:
    with started(on("tcg", "none", "dd", "if=/dev/zero", "of={disk}", "bs=1M", "count=2")) as (
        machine,
        workload,
    ):
        workload.prepare(machine)
        workload.run(machine)
        assert machine.disks[0].device == "/dev/vda"


def trials(command: str, ledger: Path, platform: str = "tcg", **settings: str) -> list[Trial]:
    result = guestmark.exec(
        shlex.split(command),
        on=(platform,),
        settings=settings,
        blocks=1,
        warmup=0,
        iterations=1,
        ledger=ledger,
    )
    return list(result.stored.trials)


@pytest.mark.parametrize("filesystem", [long(name) for name in ("ext4", "xfs", "9p")])
def test_a_disk_that_was_not_written_is_noticed(filesystem: str, tmp_path: Path) -> None:
    settings = {} if filesystem == "9p" else {"size": SIZES.get(filesystem, "64M")}
    idle = trials("true", tmp_path / "idle.sqlite", filesystem=filesystem, location="/var/tmp", **settings)
    busy = trials(
        "sh -c 'echo a > f'", tmp_path / "busy.sqlite", filesystem=filesystem, location="/var/tmp", **settings
    )
    assert [found.wrote for trial in idle if (found := trial.facts.find_fact(Traffic))] == [False] * len(idle)
    assert [found.wrote for trial in busy if (found := trial.facts.find_fact(Traffic))] == [True] * len(busy)


def test_a_directory_that_was_only_read_is_not_said_to_be_unused(guestmark: CommandLine) -> None:
    done = guestmark("run", "filesystems", "--on", "host", "--scale", "0.01", "--blocks", "1", "--json", "-")
    findings = {each["name"] for each in json.loads(done.stdout)["validity"]}
    assert done.status == 0
    assert "storage in memory" in findings
    assert "disk not used" not in findings


@pytest.mark.long
def test_nothing_is_said_of_a_disk_that_was_not_written(tmp_path: Path) -> None:
    result = guestmark.exec(
        "true",
        on=("tcg",),
        settings={"filesystem": "ext4", "size": "64M"},
        blocks=1,
        ledger=tmp_path / "l.sqlite",
    )
    finding = {each.name: each for each in result.analysis.workloads[0].findings}["disk not used"]
    assert "wrote nothing to the disk of tcg" in finding.message
    assert {describe_row_durability(cell) for cell in result.analysis.cells} == {""}


@pytest.mark.parametrize("platform", ["ssh:lab1/tcg", "ssh:lab1/uml"])
def test_what_has_no_disk_is_refused_before_it_is_tried(platform: str, tmp_path: Path) -> None:
    with pytest.raises(PlatformUnusableError, match="cannot be given a disk") as error:
        trials("true", tmp_path / "l.sqlite", platform, filesystem="ext4")
    assert "resolve" not in str(error.value)
    with pytest.raises(UsageError, match="no directory"):
        trials("true", tmp_path / "l.sqlite", filesystem="none")


@pytest.mark.parametrize("filesystem", [long("xfs"), "btrfs"])
def test_two_disks_of_one_template_are_used_at_once(
    guestmark: CommandLine, tmp_path: Path, filesystem: str
) -> None:
    """Copies of a template have one UUID, and xfs refused the second: two runs at once failed by chance."""
    there = [tmp_path / name for name in ("first", "second")]

    def use_disk(number: int) -> str:
        own, other = there[number], there[1 - number]
        script = f"touch {own}; i=0; while [ $i -lt 200 ] && ! [ -e {other} ]; do sleep 0.1; i=$((i+1)); done; sleep 1"
        done = guestmark(
            "powercut", "--on", "host", "--set", f"filesystem={filesystem}", "--states", "2", "--json", "-", "--",
            "sh", "-c", f"echo x > file; sync file; {script}", timeout=120,
        )  # fmt: skip
        assert done.status in {0, 1}, done.stderr
        (cell,) = json.loads(done.stdout)["cells"]
        return str(cell["status"])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(use_disk, range(2))) == ["ok", "ok"]

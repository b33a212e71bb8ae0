"""Disk workloads that cannot succeed: full disks, killed hypervisors, sources that shrink, guestfish that fails."""

import contextlib
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError, UsageError, WorkloadError
from guestmark.core.model import Plan, Policy
from guestmark.engine import preflight
from guestmark.platforms import libguestfs
from guestmark.setting.filesystem import Filesystem
from guestmark.workloads import base
from guestmark.workloads.disk.upload import read_pieces
from guestmark.workloads.guestfs import guestfish
from guestmark.workloads.guestfs.guestfish import Mark
from tests.framework.cells import cell_of
from tests.framework.command_line import CommandLine
from tests.framework.disk_files import small_mount
from tests.framework.guests import started
from tests.framework.known import known
from tests.framework.marks import long
from tests.framework.processes import others, wait_until


def test_a_disk_that_is_too_small_is_said_before_anything_is_written() -> None:
    cell = cell_of("uml", "fill", {"size": "64M", "filesystem": "ext2"}, amount="100M")
    with started(cell) as (machine, workload), pytest.raises(WorkloadError, match="do not fit") as caught:
        workload.prepare(machine)
    assert "size=" in caught.value.hint


@pytest.mark.parametrize("kind", ["dd", *(long(kind) for kind in ("fill", "tar"))])
def test_a_disk_that_fills_up_is_the_reason(kind: str) -> None:
    # ext2 says how many blocks are free, and needs some of them for its block lists
    cell = cell_of(
        "uml",
        kind,
        {"size": "16M", "filesystem": "ext2", "mkfs": "-b 1024 -m 0"},
        amount="12M",
        content="random",
    )
    with started(cell) as (machine, workload):
        workload.prepare(machine)
        disk = machine.disks[0]
        free = machine.agent.statfs(disk.directory)
        left = free.free * free.block_size - (12 << 20)
        if left > 0:
            machine.agent.fill(f"{disk.directory}/ballast", left - left % 4096, timeout_s=60)
        with pytest.raises(WorkloadError) as caught:
            workload.run(machine)
    assert "full" in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_hypervisor_killed_in_the_middle_of_writing(platform: str) -> None:
    cell = cell_of(platform, "fill", {"size": "2G", "filesystem": "ext2", "mount": "sync"}, amount="1500M")
    directory, reached = [], []

    def written(image: Path) -> int:
        return image.stat().st_blocks * 512

    def measure() -> None:
        with started(cell) as (machine, workload):
            workload.prepare(machine)
            directory.append(machine.disks[0].image.path.parent)
            image, before = machine.disks[0].image.path, written(machine.disks[0].image.path)

            def kill_in_the_middle() -> None:
                reached.append(wait_until(lambda: written(image) > before + (8 << 20), 60))
                os.kill(known(machine.vmm_pid), signal.SIGKILL)

            threading.Thread(target=kill_in_the_middle, daemon=True).start()
            workload.run(machine)

    with pytest.raises(MachineError, match="guest ended"):
        measure()
    assert reached == [True]
    assert not directory[0].exists()


def test_a_source_that_is_too_short_is_refused_before_the_first_trial(tmp_path: Path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"x" * 5000)
    cell = cell_of("uml", "upload", {}, amount="8M", file=str(short))
    with pytest.raises(UsageError, match="5000 bytes"):
        base.find_trial_class("upload").preflight(Plan("test", (cell,), Policy(), ()), [cell])


def test_a_source_that_shrinks_is_noticed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    sent = read_pieces(source, 3_000_000)
    next(sent)
    os.truncate(source, 1_500_000)
    with pytest.raises(WorkloadError, match="shorter"):
        list(sent)


def test_a_filesystem_the_host_cannot_make_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filesystem.XFS, "maker", "mkfs.no-such-program")
    cell = cell_of("uml", "fill", {"filesystem": "xfs"}, amount="8M")
    (reason,) = preflight.find_impossible_cells([cell])
    assert "mkfs.no-such-program is not installed" in reason.reason


needs_guestfish = pytest.mark.skipif(shutil.which("guestfish") is None, reason="guestfish is not installed")


def guestfish_processes() -> list[list[bytes]]:
    """Command lines of guestfish and of the QEMU it starts, of this test's own."""
    found = []
    for folder, command in others():
        with contextlib.suppress(OSError):
            if b"GUESTMARK_TEST_FISH=1" in (folder / "environ").read_bytes() and b"supervise" not in command:
                found.append(command)
    return found


@pytest.mark.long
@needs_guestfish
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (["run", Mark("launched")], "add_drive"),
        (["add-drive /no/such/image", "run", Mark("launched")], "No such file"),
        (
            ["add-drive /dev/null format:raw", "run", Mark("launched"), "mount /dev/sda /", Mark("x")],
            "mount",
        ),
    ],
    ids=["no-drive", "no-image", "no-filesystem"],
)
def test_what_guestfish_says_is_the_reason(script: list[str | Mark], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        guestfish.run("tcg", script, 150)


@pytest.mark.long
@needs_guestfish
def test_guestfish_that_takes_too_long_is_ended_with_its_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    libguestfs.prepare("tcg")
    monkeypatch.setenv("GUESTMARK_TEST_FISH", "1")
    begin = time.monotonic()
    with pytest.raises(WorkloadError, match="did not reach 'launched'"):
        guestfish.run("tcg", ["add-drive /dev/null format:raw", "run", Mark("launched")], 1.5)
    assert time.monotonic() - begin < 30
    monkeypatch.delenv("GUESTMARK_TEST_FISH")
    assert wait_until(lambda: not guestfish_processes(), 10), guestfish_processes()


PLAN = """
schema = "guestmark-plan/1"
name = "one"
title = "One disk?"
platforms = ["uml"]
factors = {{ size = "64M", filesystem = "ext2" }}
workloads.fill.params = {{ amount = "{amount}", content = "one" }}
repetition = {{ blocks = 1, warmup = 0, iterations = 1, null = "none" }}
"""


@pytest.mark.usefixtures("guests_known")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("ending", ["interrupted", "failed"])
def test_images_stay_behind_only_when_asked(
    guestmark: CommandLine, tmp_path: Path, ending: str, keep: bool
) -> None:
    (tmp_path / "one.toml").write_text(PLAN.format(amount="16M" if ending == "interrupted" else "128M"))
    place = tmp_path / "images"
    place.mkdir()
    process = guestmark.start("run", "one.toml", "--set", f"location={place}", *(["--keep"] if keep else []))
    if ending == "interrupted":
        assert wait_until(lambda: list(place.rglob("*.raw")), 60)
        process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == (130 if ending == "interrupted" else 3), said
    left = list(place.rglob("*.raw"))
    assert len(left) == keep
    assert (f"kept for you to inspect and remove: {place}" in said.decode()) == keep
    if keep:
        assert f"{left[0].parent}\n" in said.decode()
    else:
        assert wait_until(lambda: not any(place.iterdir()))


@pytest.mark.usefixtures("guests_known")
def test_a_trial_that_works_leaves_nothing_to_keep(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(PLAN.format(amount="16M"))
    place = tmp_path / "images"
    place.mkdir()
    result = guestmark("run", "one.toml", "--set", f"location={place}", "--keep", timeout=120)
    assert result.status == 0
    assert "kept for you" not in result.stderr
    assert not any(place.iterdir())


def test_a_location_that_is_too_small_is_said_before_anything_starts(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "one.toml").write_text(PLAN.format(amount="48M"))
    with small_mount(tmp_path / "small", "tmpfs", "size=32M") as where:
        result = guestmark("run", "one.toml", "--set", f"location={where}")
        assert result.status == 2
        assert "is too small: the plan's images take up to 0.1 GB" in result.stderr
        assert "--set location=DIRECTORY" in result.stderr
        assert not any(where.iterdir())
    assert "no runs" in guestmark("runs").stdout + guestmark("runs").stderr


@pytest.mark.usefixtures("guests_known")
def test_a_mount_option_the_kernel_rejects_fails_its_cell_alone(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "one.toml").write_text(PLAN.format(amount="16M"))
    result = guestmark(
        "run", "one.toml", "--set", "mount=defaults,data=nonsense", "--quiet", "--json", "-", timeout=120
    )
    assert result.status == 1
    good, bad = result.document()["cells"]
    assert (good["status"], bad["status"]) == ("ok", "failed")
    assert "data=nonsense /dev/ubda: Invalid argument" in bad["reason"]
    assert "kernel log:" in bad["reason"]

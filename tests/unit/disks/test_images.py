"""Images by the real programs: fresh, allocated as asked, gone afterwards."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent.client import Agent
from guestmark.appliance.paths import remove_least_used
from guestmark.core.errors import AttestationError, MachineError, PlatformUnusableError, WorkloadError
from guestmark.disks import daemon, sparse
from guestmark.disks.attached import attach_on_host
from guestmark.disks.image import make_images
from guestmark.disks.scratch import Store, get_scratch_store
from guestmark.platforms.host_like import Host
from guestmark.setting.disk import DiskSpec, Role
from guestmark.workloads.guestfs import guestfish
from guestmark.workloads.guestfs.upload import GuestfishTrial
from tests.framework.cells import cell_of, plan_of
from tests.framework.disk_files import small_mount

MB = 1 << 20


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def target(**fields: Any) -> DiskSpec:
    return DiskSpec.from_levels(Role.TARGET, fields.pop("size", 64 * MB), **fields)


def info(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        daemon.run_program("qemu-img", "info", "-U", "--output=json", str(path))
    )
    return told


@pytest.mark.parametrize("filesystem", ["ext2", "ext3", "ext4", "none"])
@pytest.mark.parametrize("format_", ["raw", "qcow2"])
def test_images_are_what_was_asked_for_and_go(filesystem: str, format_: str) -> None:
    with make_images([target(filesystem=filesystem, format=format_)]) as (image,):
        image.check_filesystem()
        found = info(image.path)
        assert (found["format"], found["virtual-size"]) == (format_, 64 * MB)
        assert image.count_allocated_bytes() < 16 * MB
    assert not image.path.exists()
    with make_images([target(filesystem=filesystem, format=format_)]) as (again,):
        assert again.from_template
        assert not image.from_template


@pytest.mark.parametrize("filesystem", ["xfs", "btrfs"])
def test_other_filesystems(filesystem: str) -> None:
    with make_images([target(filesystem=filesystem, size=512 * MB)]) as (image,):
        image.check_filesystem()


def test_templates_that_other_runs_remove_meanwhile_are_no_fault(tmp_path: Path) -> None:
    """Files come and go in the cache while this run looks at what is there."""
    going, done = tmp_path / "going", threading.Event()

    def others() -> None:
        while not done.is_set():
            going.touch()
            going.unlink()

    other = threading.Thread(target=others)
    other.start()
    try:
        for _ in range(2000):
            remove_least_used(tmp_path.iterdir(), 16)
    finally:
        done.set()
        other.join()


def test_every_trial_has_a_fresh_image() -> None:
    with make_images([target(filesystem="ext4")]) as (first,):
        before = first.path.read_bytes()
        with first.path.open("r+b") as file:
            file.write(b"x" * MB)
    with make_images([target(filesystem="ext4")]) as (second,):
        assert second.path.read_bytes() == before


@pytest.mark.parametrize(
    ("format_", "preallocation", "allocated", "mapped"),
    [
        ("raw", "off", False, None),
        ("raw", "falloc", True, None),
        ("raw", "full", True, None),
        ("qcow2", "off", False, False),
        ("qcow2", "metadata", False, True),
        ("qcow2", "falloc", True, True),
        ("qcow2", "full", True, True),
    ],
)
@pytest.mark.parametrize("filesystem", ["ext4", "none"])
def test_preallocation_holds_in_the_finished_image(
    format_: str, preallocation: str, allocated: bool, mapped: bool | None, filesystem: str
) -> None:
    spec = target(format=format_, preallocation=preallocation, filesystem=filesystem)
    for _ in range(2):  # made, then copied
        with make_images([spec]) as (made,):
            image = made.finish_allocation()
            assert (image.count_allocated_bytes() >= 64 * MB) is allocated
            image.check_filesystem()
            if mapped is not None:
                extents = json.loads(daemon.run_program("qemu-img", "map", "--output=json", str(image.path)))
                has_place = sum(extent["length"] for extent in extents if "offset" in extent)
                assert (has_place == 64 * MB) is mapped


def test_an_image_smaller_than_its_disk_is_not_allocated() -> None:
    spec = target(format="vdi", filesystem="ext4", preallocation="full")
    with (
        make_images([spec]) as (image,),
        pytest.raises(AttestationError, match=r"preallocation=full did not take effect: asked for 67108864"),
    ):
        image.finish_allocation()


def test_an_overlay_has_the_shape_that_was_asked_for() -> None:
    spec = target(
        format="qcow2",
        backing="on",
        filesystem="ext4",
        cluster_size=128 << 10,
        subclusters="on",
        compression="zstd",
    )
    with make_images([spec]) as (image,):
        found = info(image.path)
        details = found["format-specific"]["data"]
        assert (found["cluster-size"], details["extended-l2"]) == (128 << 10, True)
        assert details["compression-type"] == "zstd"
        assert "backing-filename" in found
        image.check_filesystem()


@pytest.mark.parametrize("allocate", [sparse.allocate_holes, sparse.write_holes])
def test_what_is_allocated_is_written_before_the_measurement(
    allocate: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "image"
    path.touch()
    os.truncate(path, MB)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_blocks * 512))
    allocate(path)
    assert flushed == [MB]


def _allocate_slowly(path: Path) -> None:
    time.sleep(0.3)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def test_an_image_that_this_host_mounts_is_allocated_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocating thread fills old holes with zeroes, and would overwrite what the mounted filesystem writes."""
    monkeypatch.setattr(sparse, "write_holes", _allocate_slowly)
    spec = replace(target(filesystem="ext4", preallocation="full"), loop=True)
    with attach_on_host([spec]) as (disk,):
        assert disk.image.count_allocated_bytes() >= spec.size


def test_an_image_that_this_host_cannot_allocate_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(_path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sparse, "write_holes", fill_up)
    spec = replace(target(filesystem="ext4", preallocation="full"), loop=True)
    with pytest.raises(MachineError, match="no room"), attach_on_host([spec]):
        pytest.fail("the disk is in use")


def test_guestfish_gets_an_image_that_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "write_holes", _allocate_slowly)
    found: list[int] = []

    def note_allocated(*_words: object, writable: list[Path], **_options: object) -> None:
        found.append(writable[0].stat().st_blocks * 512)
        raise WorkloadError("that is all")

    monkeypatch.setattr(guestfish, "run", note_allocated)
    asked = cell_of("tcg", "guestfish", {"preallocation": "full", "size": "64M"}, amount="8M")
    trial = GuestfishTrial(plan_of(asked), asked)
    monkeypatch.setattr(trial, "_make_script", lambda _image: [])
    with pytest.raises(WorkloadError, match="that is all"):
        trial.run(Host(Agent.__new__(Agent), ()))
    (allocated,) = found
    assert allocated >= 64 * MB


def test_cluster_size_and_mkfs_options_reach_the_programs() -> None:
    with make_images([target(format="qcow2", cluster_size=2 * MB)]) as (image,):
        assert info(image.path)["cluster-size"] == 2 * MB
    with make_images([target(filesystem="ext4", mkfs="-b 1024 -L hello")]) as (image,):
        said = daemon.run_program("dumpe2fs", "-h", str(image.path))
        assert "Block size:               1024" in said
        assert "hello" in said


def test_a_refused_mkfs_option_is_passed_on() -> None:
    with (
        pytest.raises(MachineError, match=r"ext4 filesystem cannot be created: mke2fs failed: .*block size"),
        make_images([target(filesystem="ext4", mkfs="-b 1000")]),
    ):
        pass


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in ("qemu-img", "mke2fs"):
        (tmp_path / program).symlink_to(daemon.find_program(program))
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, path: real(name, path=str(tmp_path)))
    with (
        pytest.raises(PlatformUnusableError, match=r"mkfs\.xfs is not installed") as caught,
        make_images([target(filesystem="xfs", size=512 * MB)]),
    ):
        pass
    assert "xfsprogs" in caught.value.hint


def test_sources_hold_their_content_and_serve_all_trials(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"0123456789abcdef" * 512)
    one = DiskSpec.from_levels(Role.SOURCE, MB, content="one")
    given = DiskSpec.from_levels(Role.SOURCE, 4096, content=f"file:{tmp_path}/given")
    with make_images([one]) as (first,), make_images([given]) as (second,):
        assert first.path.read_bytes() == b"\1" * MB
        assert second.path.read_bytes() == b"0123456789abcdef" * 256
    with make_images([one]) as (again,):
        assert again.path == first.path
        assert again.from_template


def test_a_source_file_that_is_too_short_is_said(tmp_path: Path) -> None:
    (tmp_path / "given").write_bytes(b"x" * 5000)
    spec = DiskSpec.from_levels(Role.SOURCE, 8192, content=f"file:{tmp_path}/given")
    with (
        pytest.raises(MachineError, match="is too short: it has 5000 of the 8192 bytes requested"),
        make_images([spec]),
    ):
        pass


def test_holes_stay_holes(tmp_path: Path) -> None:
    original = tmp_path / "a"
    with original.open("wb") as file:
        file.truncate(8 * MB)
        file.seek(4 * MB)
        file.write(b"x" * 4096)
    sparse.copy_file(original, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == original.read_bytes()
    assert (tmp_path / "b").stat().st_blocks * 512 < MB


HOLD = """
import sys, time
from guestmark.disks.image import make_images
from guestmark.setting.disk import DiskSpec, Role
from guestmark.disks.scratch import get_scratch_store
get_scratch_store().keep = sys.argv[2] == "keep"
with make_images([DiskSpec.from_levels(Role.TARGET, 1 << 26, location=sys.argv[1], filesystem="ext4")]) as (image,):
    print(image.path, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_controller_that_is_killed_leaves_no_image(tmp_path: Path, how: signal.Signals) -> None:
    path = run_and_kill(tmp_path, "no", how)
    deadline = time.monotonic() + 20
    while list(tmp_path.glob("guestmark-disks-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(tmp_path.glob("guestmark-disks-*")), path


def test_images_are_kept_when_asked(tmp_path: Path) -> None:
    path = run_and_kill(tmp_path, "keep", signal.SIGINT)
    time.sleep(0.3)
    assert path.exists()


def run_and_kill(directory: Path, keep: str, how: signal.Signals) -> Path:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory), keep],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    path = Path(process.stdout.readline().strip())
    assert path.exists()
    process.send_signal(how)
    process.wait(20)
    return path


def test_a_location_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="images cannot be created in") as caught:
        Store().directory(str(tmp_path / "missing"))
    assert "location" in caught.value.hint


def test_no_room_is_said(small_tmpfs: Path) -> None:
    spec = target(size=64 * MB, location=str(small_tmpfs), filesystem="ext4", preallocation="falloc")
    with (
        pytest.raises(MachineError, match="no room for a 67108864-byte image"),
        make_images([spec]) as (image,),
    ):
        image.finish_allocation()
    get_scratch_store().close()
    assert not any(small_tmpfs.iterdir())


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    with small_mount(tmp_path / "small", "tmpfs", "size=8M") as where:
        yield where

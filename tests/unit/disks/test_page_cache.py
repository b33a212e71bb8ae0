"""What is read comes from the disk, and nothing else that this host has cached is lost for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.agent.client import Agent
from guestmark.disks.attached import AttachedDisk
from guestmark.disks.image import Image
from guestmark.disks.location import is_in_memory
from guestmark.setting.disk import DiskSpec, Role
from guestmark.workloads.common.moving import warn_of_caches
from tests.framework.disk_files import count_cached_bytes

MB = 1 << 20


@pytest.fixture(name="on_disk")
def _on_disk() -> Iterator[Path]:
    """A directory that is not in memory, where nothing can be evicted."""
    if is_in_memory("/var/tmp"):
        pytest.skip("/var/tmp is in memory")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


def make_cached_file(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(os.urandom(MB))
    assert count_cached_bytes(path) == MB
    return path


def make_host_disk(directory: Path) -> AttachedDisk:
    spec = DiskSpec.from_levels(Role.TARGET, MB, location=str(directory))
    return AttachedDisk(spec, Image(spec, directory), directory=str(directory))


def test_a_disk_of_the_host_empties_its_own_part_of_the_cache(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop_everything(_self: Agent) -> None:
        raise AssertionError("everything that the host has cached is lost")

    monkeypatch.setattr(Agent, "drop_caches", drop_everything)
    own = [make_cached_file(on_disk / "disk" / "file"), make_cached_file(on_disk / "disk" / "x" / "file")]
    other = make_cached_file(on_disk / "source")
    disk = make_host_disk(on_disk / "disk")
    disk.umount(Agent.__new__(Agent))
    assert [count_cached_bytes(path) for path in own] == [0, 0]
    assert count_cached_bytes(other) == MB
    assert warn_of_caches(disk) == []


def test_what_cannot_be_evicted_is_told(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    make_cached_file(on_disk / "file")
    monkeypatch.setattr("guestmark.disks.page_cache.evict_file", deny)
    disk = make_host_disk(on_disk)
    disk.umount(Agent.__new__(Agent))
    (warning,) = warn_of_caches(disk)
    assert f"not dropped: Permission denied: {on_disk}/file" in warning


def test_a_source_is_cached_again_for_each_row(on_disk: Path) -> None:
    path = make_cached_file(on_disk / "source")
    spec = DiskSpec.from_levels(Role.SOURCE, MB, location=str(on_disk))
    source = Image(spec, path)
    source.evict_from_cache()
    assert count_cached_bytes(path) == 0
    Image(spec.with_levels(cache="none"), path).read_into_cache()
    assert count_cached_bytes(path) == 0
    source.read_into_cache()
    assert count_cached_bytes(path) == MB

"""Where images go unless somebody says otherwise: on a disk, and stored with the plan."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from guestmark.core.findings import flatten_fact
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import parse_platform
from guestmark.disks.location import (
    add_locations,
    choose_default_location,
    describe_storage,
    is_in_memory,
    read_filesystem_type,
)
from guestmark.engine.preflight import choose_locations
from tests.framework.cells import plan_of

MOUNTS = "/dev/vda / ext4 rw 0 0\ntmpfs {memory} tmpfs rw 0 0\n/dev/vdb /mnt/a\\040b xfs rw 0 0\n"


@pytest.fixture
def directories(tmp_path: Path) -> tuple[str, str, str]:
    """One on a disk, one in memory, and the mounts that say so."""
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    disk.mkdir()
    memory.mkdir()
    return str(disk), str(memory), MOUNTS.format(memory=memory)


def test_the_innermost_mount_says_which_filesystem_it_is(directories: tuple[str, str, str]) -> None:
    disk, memory, mounts = directories
    assert [read_filesystem_type(where, mounts) for where in (disk, memory, "/mnt/a b/c")] == [
        "ext4",
        "tmpfs",
        "xfs",
    ]
    assert [is_in_memory(where, mounts) for where in (disk, memory)] == [False, True]


def test_memory_is_taken_only_where_there_is_no_disk(
    directories: tuple[str, str, str], tmp_path: Path
) -> None:
    disk, memory, mounts = directories
    other = tmp_path / "other"
    other.mkdir()
    assert choose_default_location({"TMPDIR": disk}, mounts, [str(other)]) == disk
    assert choose_default_location({"TMPDIR": memory}, mounts, [disk, str(other)]) == disk
    assert choose_default_location({"TMPDIR": "/no/such"}, mounts, [memory, disk]) == disk
    assert choose_default_location({}, mounts, [memory]) == memory


def a_cell(
    platform: str,
    factors: Mapping[str, str] | None = None,
    disks: Sequence[Mapping[str, str]] | None = ({"role": "target"},),
) -> Cell:
    params = {} if disks is None else {"disks": list(disks)}
    return Cell(platform, WorkloadSpec("filewrite", params), parse_platform(platform), factors or {})


def test_the_location_is_stored_with_cells_that_have_disks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cells = add_locations([
        a_cell("host"),
        a_cell("tcg", {"location": "/dev/shm"}),
        a_cell("tcg", disks=None),
        a_cell("tcg", disks=[{"role": "target", "location": "/srv"}]),
        a_cell("tcg/uml"),
        a_cell("tcg", {"format": "qcow2"}, disks=None),
    ])  # fmt: skip
    place = choose_default_location()
    assert [cell.factors.get("location") for cell in cells] == [
        place,
        "/dev/shm",
        None,
        None,
        "/dev/shm",
        place,
    ]
    assert [cell.id for cell in cells] == ["host", "tcg", "tcg", "tcg", "tcg/uml", "tcg"]


def test_cells_whose_place_nobody_named_are_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    named, unnamed = a_cell("tcg", {"location": "/dev/shm"}), a_cell("host")
    made = choose_locations(plan_of(named, unnamed))
    assert made.context.default_locations == ("host",)
    assert made.cells[1].factors["location"] == choose_default_location()
    assert choose_locations(plan_of(named)) == plan_of(named)


def test_a_trial_says_where_its_disks_were(directories: tuple[str, str, str]) -> None:
    disk, memory, mounts = directories
    assert flatten_fact(describe_storage(a_cell("tcg", {"location": disk}), mounts)) == {
        "storage": {"target": {"location": disk, "filesystem": "ext4", "in_memory": False}}
    }
    assert describe_storage(a_cell("uml", {"location": memory}), mounts).disks["target"].in_memory
    assert describe_storage(a_cell("uml", disks=None), mounts).disks == {}


def test_this_host_gets_a_directory_beside_machines_with_disks() -> None:
    cells = [
        Cell("host", WorkloadSpec("exec", {"argv": ["true"]}), parse_platform("host")),
        Cell("tcg", WorkloadSpec("exec", {"argv": ["true"]}), parse_platform("tcg"), {"filesystem": "xfs"}),
    ]
    assert all("location" in cell.factors for cell in add_locations(cells))
    assert "location" not in add_locations(cells[:1])[0].factors

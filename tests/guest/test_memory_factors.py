"""What a guest's memory is made of, as its own kernel and this host's say."""

import time
from pathlib import Path

import pytest

from guestmark.core.errors import AttestationError, PlatformUnusableError
from guestmark.core.machine_facts import Backing, GuestMachine
from guestmark.engine.preflight import find_cells_without_memory
from guestmark.platforms.guest import Guest
from guestmark.setting import memory
from guestmark.testing.factor import check_factor
from tests.framework.cells import cell
from tests.framework.guests import start


def backing(**levels: str) -> Backing:
    with start("tcg", memory="128M", **levels) as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.backing is not None
        return found.backing


@pytest.mark.long
def test_transparent_huge_pages_are_there_or_not() -> None:
    assert backing(thp="off").thp_bytes == 0
    assert not backing(thp="off").thp_allowed


@pytest.mark.long
def test_memory_is_there_from_the_start() -> None:
    assert backing(prealloc="on", numa="0") == backing(prealloc="on", numa="0")
    found = backing(prealloc="on", numa="0")
    assert found.resident_bytes == 128 << 20
    assert found.policy == "bind:0"


def test_a_balloon_leaves_what_it_was_told() -> None:
    with start("tcg", memory="256M", balloon="128M") as machine:
        found = machine.attest()
        assert isinstance(found, GuestMachine)
        assert found.guest.memory_bytes < 128 << 20
        assert isinstance(machine, Guest)
        machine.query = lambda _: {"actual": 256 << 20, "status": "none"}
        with pytest.raises(AttestationError):
            machine.attest()


@pytest.mark.long
def test_pages_may_be_merged_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ksm").mkdir()
    (tmp_path / "ksm/run").write_text("1\n")
    monkeypatch.setattr(memory, "_KERNEL", tmp_path)
    assert [backing(ksm=level).mergeable for level in ("on", "off")] == [True, False]


@pytest.mark.long
def test_free_pages_come_back_where_they_are_reported() -> None:
    left = {}
    for level in ("on", "off"):
        with start("tcg", memory="512M", free_page_reporting=level) as machine:
            filled = "dd if=/dev/zero of=/filled bs=1M count=200 && rm /filled"
            assert machine.agent.exec(["sh", "-c", filled], timeout_s=60).ok
            time.sleep(6)  # the kernel reports every 2 s
            found = machine.attest()
            assert isinstance(found, GuestMachine)
            assert found.backing is not None
            assert found.backing.reports_free is (level == "on")
            left[level] = found.backing.resident_bytes
    assert left["on"] < left["off"] - (128 << 20)


def test_what_this_host_lacks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = tmp_path / "hugepages/hugepages-2048kB"
    pages.mkdir(parents=True)
    (pages / "free_hugepages").write_text("7\n")
    monkeypatch.setattr(memory, "_KERNEL", tmp_path)
    for levels, why in (
        ({"hugepages": "2M"}, "7 free huge pages of 2M, but the guest needs 64"),
        ({"hugepages": "1G"}, "not a multiple of the page size"),
        ({"numa": "77"}, "no NUMA node 77"),
        ({"balloon": "128M"}, "balloon=128M is not less than the guest's memory"),
        ({"balloon": "64M", "machine": "microvm"}, "without PCI"),
        ({"ksm": "on"}, "does not merge pages"),
        ({"balloon": "64M", "free_page_reporting": "on"}, "cannot be combined"),
        ({"free_page_reporting": "on", "machine": "microvm"}, "without PCI"),
        ({"thp": "off", "start": "restored"}, "does not support thp"),
        ({"thp": "on"}, "no transparent huge pages"),
    ):
        with pytest.raises(PlatformUnusableError, match=why), start("tcg", memory="128M", **levels):
            pass


def test_cells_whose_memory_this_host_lacks_are_left_out_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_KERNEL", tmp_path)
    cells = [
        cell("tcg", memory="128M", hugepages="2M"),
        cell("tcg", prealloc="on"),
        cell("host"),
        cell("uml"),
    ]
    (found,) = find_cells_without_memory(cells)
    assert (found.cell, found.reason) == (cells[0].id, "this host has no huge pages of 2M")


@pytest.mark.long
@pytest.mark.parametrize("name", ["thp", "prealloc"])
def test_factors_keep_the_contract(name: str) -> None:
    assert check_factor(name) == []

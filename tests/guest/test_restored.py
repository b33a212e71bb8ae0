"""Guests that go on from a saved one: what they are, and that they are no twins."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.appliance.paths import choose_scratch_parent
from guestmark.core.errors import AttestationError, PlatformUnusableError
from guestmark.core.machine_facts import GuestMachine
from guestmark.core.units import parse_size
from guestmark.platforms.guest import Guest
from guestmark.platforms.qemu import restored
from tests.framework.cells import cell_of
from tests.framework.guests import start, start_cell
from tests.framework.known import known
from tests.framework.marks import long

_SHOWN = (
    "head -c 16 /dev/urandom | od -An -tx1 | tr -d ' '; "
    "cat /proc/sys/kernel/random/boot_id /proc/sys/kernel/random/uuid; "
    "date +%s.%N"
)


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs have templates too."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def block() -> Iterator[None]:
    with restored.TEMPLATES.share_in_block():
        yield


def shown(machine: object) -> list[str]:
    assert isinstance(machine, Guest)
    found = machine.agent.exec(["sh", "-c", _SHOWN], timeout_s=30)
    return [*found.stdout.decode().split(), str(time.time())]


def templates() -> set[Path]:
    return set(choose_scratch_parent().glob("guestmark-template-*"))


@pytest.mark.long
def test_clones_of_one_template_are_no_twins(block: None) -> None:
    seen, before = [], templates()
    for number in (1, 2, 3):
        with start("tcg", start="restored", memory="256M") as machine:
            found = machine.attest()
            assert isinstance(found, GuestMachine)
            assert found.restored is not None
            assert found.restored.clone == number
            assert isinstance(machine, Guest)
            assert "one layout of memory" in machine.remarks()[0]
            assert machine.phases["answered"] < machine.phases["ready"]
            seen.append(shown(machine))
        assert len(templates() - before) == 1
    for what in range(3):  # random bytes, the id of the boot, a UUID
        assert len({found[what] for found in seen}) == len(seen)
    for *_, guest, host in seen:
        assert abs(float(host) - float(guest)) < 5  # the template is older


@pytest.mark.long
@pytest.mark.parametrize("bus", ["virtio-blk", *(long(bus) for bus in ("virtio-scsi", "ide"))])
def test_clones_have_disks_of_their_own(block: None, bus: str) -> None:
    templates_seen = []
    for number, size in enumerate(("64M", "64M", "96M")):
        levels = {"start": "restored", "memory": "256M", "bus": bus, "size": size, "filesystem": "ext4"}
        with start_cell(cell_of("tcg", "filewrite", levels, amount="4M")) as machine:
            found = machine.attest()
            assert isinstance(found, GuestMachine)
            assert found.restored is not None
            templates_seen.append(found.restored.template)
            (disk,) = machine.disks
            directory = disk.mount(machine.agent)
            script = f"ls -A {directory}; echo {number} >{directory}/mark; blockdev --getsize64 {disk.device}"
            seen = machine.agent.exec(["sh", "-c", script], timeout_s=30).stdout.decode().split()
            assert seen == ["lost+found", str(parse_size(size))]
            disk.umount(machine.agent)
            disk.image.digest_past_guest("mark")  # it is on this one
    assert templates_seen[0] == templates_seen[1] != templates_seen[2]


@pytest.mark.long
def test_clones_that_differ_in_their_filesystem_share_a_template() -> None:
    levels = {"start": "restored", "memory": "256M", "size": "320M"}
    cells = [
        cell_of("tcg", "filewrite", {**levels, "filesystem": name}, amount="4M")
        for name in ("ext4", "xfs", "ext2")
    ]
    found = []
    with restored.TEMPLATES.share_in_block(cells):
        for cell in cells:
            with start_cell(cell) as machine:
                attested = machine.attest()
                assert isinstance(attested, GuestMachine)
                (disk,) = machine.disks
                directory = disk.mount(machine.agent)
                script = f"grep ' {directory} ' /proc/mounts; ls -A {directory}; echo x >{directory}/mark"
                seen = machine.agent.exec(["sh", "-c", script], timeout_s=30).stdout.decode().split()
                assert "mark" not in seen
                disk.umount(machine.agent)
                if seen[2] != "xfs":
                    disk.image.digest_past_guest("mark")  # it is on this one
                found.append((known(attested.restored).template, seen[2]))
    assert [filesystem for _, filesystem in found] == ["ext4", "xfs", "ext2"]
    assert len({template for template, _ in found}) == 1


def test_one_that_only_says_so_is_caught(block: None) -> None:
    with start("tcg", start="restored", memory="256M") as machine:
        assert isinstance(machine, Guest)
        machine.query = lambda _: {}  # a monitor that knows of no migration
        with pytest.raises(
            AttestationError, match=r"the start is not what was asked for: asked for restored, found cold"
        ):
            machine.attest()


def test_what_cannot_be_restored_is_refused() -> None:
    with_disk = cell_of("tcg", "filewrite", {"start": "restored", "bus": "nvme"}, amount="4M")
    with (
        pytest.raises(PlatformUnusableError, match="a disk of bus=nvme cannot be saved") as caught,
        start_cell(with_disk),
    ):
        pass
    assert caught.value.hint == "use start=cold for them"


@pytest.mark.long
def test_without_a_block_the_template_goes_with_its_guest() -> None:
    before = templates()
    with start("tcg", start="restored", memory="256M"):
        pass
    assert templates() == before

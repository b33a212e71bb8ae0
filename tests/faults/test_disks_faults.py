"""What goes wrong with disks, provoked for real: each is told in one line, and nothing is left behind."""

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from guestmark.agent.results import CallError
from guestmark.agent.wire import Pattern
from guestmark.core.errors import AttestationError, MachineError, UsageError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks import preflight
from guestmark.disks.scratch import get_scratch_store
from guestmark.platforms import drives, registry
from guestmark.platforms.base import Machine
from tests.framework.disk_files import flip_bit, small_mount
from tests.framework.known import known
from tests.framework.marks import long
from tests.framework.processes import gone, others

MB = 1 << 20
SMALL = {"disks": [{"role": "target", "filesystem": "ext4", "size": "64M"}]}


def cell(platform: str, needs: Mapping[str, Any] = SMALL, **factors: str) -> Cell:
    return Cell("test", WorkloadSpec("test", needs), PlatformSpec.read(platform), factors)


def start(platform: str, needs: Mapping[str, Any] = SMALL, **factors: str) -> AbstractContextManager[Machine]:
    return registry.get_platform(platform).start(cell(platform, needs, **factors))


def leftovers() -> list[Path]:
    """Trials' directories in shared memory that belong to this process's run."""
    return list(get_scratch_store().directory("/dev/shm").glob("guestmark-trial-*"))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert leftovers() == []


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_mount_option_the_kernel_rejects_is_told_in_its_words(platform: str) -> None:
    with start(platform, mount="data=nonsense") as machine:
        with pytest.raises(MachineError, match=r"mount -t ext4 -o data=nonsense /dev/\w+: Invalid") as caught:
            machine.disks[0].mount(machine.agent)
        assert "kernel log:" in str(caught.value)
        assert "nonsense" in str(caught.value) or "data" in str(caught.value)
        assert "mount=data=nonsense" in caught.value.hint
        assert machine.agent.read_facts()  # the guest goes on


def test_a_filesystem_the_kernel_does_not_have_is_told() -> None:
    with start("uml") as machine:
        disk = machine.disks[0]
        disk.spec = disk.spec.with_levels(filesystem="exfat")
        with pytest.raises(MachineError, match="mount -t exfat /dev/ubda: No such device"):
            disk.mount(machine.agent)


def test_a_combination_qemu_refuses_is_told_in_its_words() -> None:
    with (
        pytest.raises(MachineError, match=r"aio=native was specified, but it requires"),
        start("tcg", aio="native", cache="writeback"),
    ):
        pass


def test_a_disk_that_is_not_what_was_asked_for_fails_attestation() -> None:
    with start("tcg", cache="unsafe") as machine:
        disk = machine.disks[0]
        disk.spec = disk.spec.with_levels(cache="none")
        with pytest.raises(
            AttestationError, match=r"cache \(none\).*asked .*'direct': True.*found .*'no-flush': True"
        ):
            machine.attest()


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
@pytest.mark.parametrize("direct", [False, True])
def test_a_full_disk_in_the_guest_is_told(platform: str, direct: bool) -> None:
    with start(platform) as machine:
        directory = machine.disks[0].mount(machine.agent)
        with pytest.raises(CallError) as caught:
            machine.agent.fill(f"{directory}/f", 100 * MB, direct=direct, timeout_s=120)
        assert caught.value.errno == errno.ENOSPC
        machine.agent.remove(f"{directory}/f")
        assert machine.agent.fill(f"{directory}/f", MB, timeout_s=60).bytes == MB


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_an_image_corrupted_underneath_is_found(platform: str) -> None:
    with start(platform) as machine:
        disk = machine.disks[0]
        directory = disk.mount(machine.agent)
        machine.agent.fill(f"{directory}/f", 16 * MB, Pattern.RANDOM, direct=True, timeout_s=60)
        disk.umount(machine.agent)
        expected = machine.agent.compute_pattern_checksum(Pattern.RANDOM, 16 * MB)
        # One bit in the middle of the content: its page is known by the number it starts with.
        page = (2000).to_bytes(8, "little")
        image = bytearray(disk.image.path.read_bytes())
        at = next(
            at
            for at in range(0, len(image), 1024)
            if image[at : at + 8] == page and bytes(8) != image[at + 8 : at + 16]
        )
        flip_bit(disk.image.path, at + 100)
        disk.mount(machine.agent)
        assert machine.agent.checksum(f"{directory}/f", timeout_s=60) != expected
        disk.umount(machine.agent)
        disk.image.check_filesystem()  # the filesystem itself is whole
        with disk.image.path.open("r+b") as file:
            file.seek(1024)
            file.write(os.urandom(4096))
        with pytest.raises(MachineError, match="e2fsck failed"):
            disk.image.check_filesystem()


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_hypervisor_killed_while_it_writes(platform: str) -> None:
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(start(platform, size="1G"))
        directory = machine.disks[0].mount(machine.agent)
        pid = known(machine.vmm_pid)
        timer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(MachineError, match="closed the connection"):
            machine.agent.fill(f"{directory}/f", 900 * MB, Pattern.RANDOM, timeout_s=60)
        timer.join()
    assert gone(pid, seconds=10)


def test_a_storage_daemon_killed_while_it_writes_ends_the_guest() -> None:
    with contextlib.ExitStack() as stack:
        machine = stack.enter_context(start("uml", size="1G", uml_disk="vhost-user"))
        directory = machine.disks[0].mount(machine.agent)
        below = machine.place.list_descendants(known(machine.vmm_pid))
        (daemon,) = [
            int(at.name) for at, words in others() if int(at.name) in below and b"--blockdev" in words
        ]
        timer = threading.Timer(0.2, os.kill, (daemon, signal.SIGKILL))
        timer.start()
        # The guest may still say that its disk fails before it is ended.
        with pytest.raises(MachineError, match=r"closed the connection|Read-only file|Input/output error"):
            machine.agent.fill(f"{directory}/f", 900 * MB, Pattern.RANDOM, direct=True, timeout_s=60)
        timer.join()
    assert gone(*below, seconds=10)


def test_a_storage_daemon_that_refuses_its_image_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drives, "_DAEMON_START_S", 1)
    monkeypatch.setattr("guestmark.platforms.place.ThisHost.link_image", lambda *_: "no-such-image")
    with pytest.raises(MachineError, match=r"the guest ended while starting.*no-such-image.*No such file"):
        start("uml", uml_disk="vhost-user").__enter__()


def test_an_image_directory_that_is_too_small_is_told_before_anything_starts(
    small: Callable[..., Path],
) -> None:
    needs = {"disks": [{"role": "target", "size": "64M"}, {"role": "source", "size": "16M"}]}
    with pytest.raises(
        UsageError, match=r"is too small: the plan's images take up to 0\.1 GB, 0\.0 GB are free"
    ):
        preflight.check_disks([cell("tcg", needs, location=str(small("tmpfs", "size=32M")))])


def test_a_location_without_direct_io_is_told_with_the_way_out(small: Callable[..., Path]) -> None:
    where = str(small("ramfs"))
    with pytest.raises(UsageError, match=r"cache=none needs O_DIRECT, which .* does not support") as caught:
        preflight.check_disks([cell("tcg", location=where, cache="none")])
    assert "location=DIRECTORY" in caught.value.hint
    preflight.check_disks([cell("tcg", location=where, cache="writeback")])
    with pytest.raises(MachineError, match="O_DIRECT"), start("tcg", location=where, cache="none"):
        pass


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a small filesystem; gone afterwards."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, options="defaults": stack.enter_context(
            small_mount(tmp_path / kind, kind, options)
        )
        get_scratch_store().close()

"""Filesystems that are made with their content and only read: erofs and squashfs."""

from collections.abc import Mapping

import pytest

from guestmark.core.errors import PlatformUnusableError, UsageError
from guestmark.disks import daemon
from guestmark.setting.disk import Disks
from guestmark.setting.filesystem import Filesystem
from tests.framework.cells import cell_of
from tests.framework.guests import prepared


def read(platform: str, factors: Mapping[str, str], content: str = "random") -> None:
    """Reads 4 MB; their digest is compared with that of the pattern."""
    try:
        daemon.find_program(Filesystem(factors["filesystem"]).maker)
    except PlatformUnusableError as error:
        pytest.skip(str(error))
    given = {"location": "/var/tmp", "size": "64M", **factors}
    with prepared(cell_of(platform, "fileread", given, amount="4M", content=content)) as (machine, workload):
        machine.attest()
        values = {measurement.metric.name: measurement.value for measurement in workload.run(machine)}
        assert values["throughput"] > 0


def test_a_squashfs_is_read_in_uml() -> None:
    read("uml", {"filesystem": "squashfs"})


@pytest.mark.long
@pytest.mark.parametrize("platform", ["tcg", "uml"])
@pytest.mark.parametrize(
    "factors",
    [
        {"filesystem": "erofs"},
        {"filesystem": "erofs", "mkfs": "-zlz4"},
        {"filesystem": "squashfs", "mkfs": "-comp gzip -b 131072"},
    ],
    ids=str,
)
def test_what_is_packed_is_read(platform: str, factors: Mapping[str, str]) -> None:
    read(platform, factors, content="one")


@pytest.mark.parametrize(
    ("workload", "factors", "said"),
    [
        ("filewrite", {}, "squashfs is read-only, but filewrite writes to it"),
        ("powercut", {}, "squashfs is read-only"),
        ("fileread", {"format": "qcow2"}, "raw file"),
        ("fileread", {"preallocation": "full"}, "raw file"),
    ],
)
def test_what_is_written_or_not_raw_is_refused(workload: str, factors: Mapping[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cell_of("tcg", workload, {"filesystem": "squashfs", **factors}).view(Disks)

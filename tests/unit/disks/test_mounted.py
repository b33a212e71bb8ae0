"""On which mount a directory is, from what a kernel says: by the mount's number, never by the look of a path."""

import pytest

from guestmark.core.errors import AttestationError
from guestmark.disks.mounted import find_mount_by_path, parse_working_directory

MOUNTS = r"""22 1 0:21 / / rw,relatime shared:1 - overlay overlay rw,lowerdir=/a
30 22 254:0 / /run/disk rw,noatime - ext4 /dev/vda rw,data=journal
31 22 254:0 / /run/disk rw,relatime - tmpfs none rw,size=1k
32 22 0:40 /sub /with\040blank\134 ro master:3 propagate_from:2 - btrfs /dev/mapper/a\040b rw,subvol=/sub
33 22 0:41 / /odd rw - fuse
"""


def fdinfo(mount: int) -> str:
    return f"pos:\t0\nflags:\t0100000\nmnt_id:\t{mount}\nino:\t2\n"


def test_the_number_of_the_mount_decides() -> None:
    found = parse_working_directory(fdinfo(30) + MOUNTS, "/run/disk/work")
    assert (found.filesystem, found.source, found.number) == ("ext4", "/dev/vda", "254:0")
    assert found.options == "rw,noatime,data=journal"
    covering = parse_working_directory(fdinfo(31) + MOUNTS, "/run/disk/work")
    assert (covering.filesystem, covering.mounted_at) == ("tmpfs", "/run/disk")


def test_names_are_unescaped_and_optional_fields_skipped() -> None:
    found = parse_working_directory(fdinfo(32) + MOUNTS, "/x")
    assert (found.mounted_at, found.source) == ("/with blank\\", "/dev/mapper/a b")
    assert found.options == "ro,subvol=/sub"


@pytest.mark.parametrize("text", ["", MOUNTS, fdinfo(99) + MOUNTS, fdinfo(33) + MOUNTS, fdinfo(3) + MOUNTS])
def test_a_kernel_that_does_not_tell_is_no_evidence(text: str) -> None:
    with pytest.raises(AttestationError, match="does not show"):
        parse_working_directory(text, "/x")


@pytest.mark.parametrize(
    ("path", "filesystem", "options"),
    [
        ("/run/disk/work", "tmpfs", "rw,relatime,size=1k"),  # mounted later, over the other
        ("/run/disks", "overlay", "rw,relatime"),
        ("/with blank\\/sub", "btrfs", "ro,subvol=/sub"),
    ],
)
def test_a_path_is_on_the_longest_and_last_mount(path: str, filesystem: str, options: str) -> None:
    found = find_mount_by_path(MOUNTS, path)
    assert found is not None
    assert (found.filesystem, found.options) == (filesystem, options)
    assert find_mount_by_path("", path) is None

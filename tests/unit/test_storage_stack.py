"""The layers below a file: what is memory, and what drops flushes, is named."""

from pathlib import Path

import pytest

from guestmark.disks.stack import Loses, layers, volatile


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """Three devices: 8:1, a partition of the disk sda; 7:0, a loop device; 253:0, a mapping of the two."""
    devices, block = tmp_path / "sys" / "devices", tmp_path / "sys" / "dev" / "block"
    block.mkdir(parents=True)
    partition = devices / "sda" / "sda1"
    (devices / "sda" / "queue").mkdir(parents=True)
    (devices / "sda" / "queue" / "write_cache").write_text("write back\n")
    (devices / "sda" / "queue" / "fua").write_text("1\n")
    partition.mkdir()
    (partition / "partition").write_text("1\n")
    (partition / "dev").write_text("8:1\n")
    (devices / "loop0" / "loop").mkdir(parents=True)
    (devices / "loop0" / "loop" / "backing_file").write_text("/memory/image\n")
    (devices / "loop0" / "dev").write_text("7:0\n")
    mapping = devices / "dm-0"
    (mapping / "dm").mkdir(parents=True)
    (mapping / "dm" / "name").write_text("vault\n")
    (mapping / "slaves").mkdir()
    for name, number in (("sda/sda1", "8:1"), ("loop0", "7:0"), ("dm-0", "253:0")):
        (block / number).symlink_to(devices / name)
    (mapping / "slaves" / "sda1").symlink_to(partition)
    return tmp_path / "sys"


MOUNTS = r"""
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:30 / /memory rw - tmpfs tmpfs rw
22 20 7:0 / /on\040loop rw - ext4 /dev/loop0 rw
23 20 253:0 / /mapped rw - xfs /dev/mapper/vault rw
24 20 0:31 / /scratch rw - overlay overlay rw,lowerdir=/l,upperdir=/upper,workdir=/w,volatile
25 20 0:32 / /layered rw - overlay overlay rw,lowerdir=/l,upperdir=/memory/upper,workdir=/w
26 20 8:1 / /hasty rw - ext4 /dev/sda1 rw,nobarrier
27 20 0:33 / /far rw - nfs4 server:/x rw
""".strip()


@pytest.mark.parametrize(
    ("path", "loses", "named"),
    [
        ("/data", Loses.NOTHING, ""),
        ("/mapped/x", Loses.NOTHING, ""),
        ("/memory/x", Loses.MEMORY, "tmpfs at /memory"),
        ("/on loop/x", Loses.MEMORY, "tmpfs at /memory"),
        ("/scratch/x", Loses.FLUSHES, "mounted volatile"),
        ("/layered/x", Loses.MEMORY, "tmpfs at /memory"),
        ("/hasty/x", Loses.FLUSHES, "without barriers"),
    ],
)
def test_what_loses_flushed_data_is_named(sys: Path, path: str, loses: Loses, named: str) -> None:
    found = volatile(layers(path, mounts=MOUNTS, sys=sys))
    assert (found.loses if found else Loses.NOTHING) is loses
    assert named in str(found or "")


def test_layers_are_walked_down_to_the_disk(sys: Path) -> None:
    said = [str(layer) for layer in layers("/mapped/x", mounts=MOUNTS, sys=sys)]
    assert said == ["xfs at /mapped", "/dev/dm-0 (dm vault)", "/dev/sda (cache write back, FUA)"]


def test_what_cannot_be_seen_is_said_to_be_unknown(sys: Path) -> None:
    assert layers("/far/x", mounts=MOUNTS, sys=sys)[-1].loses is Loses.UNKNOWN


def test_this_hosts_shared_memory_is_memory() -> None:
    found = volatile(layers("/dev/shm"))
    assert found is not None
    assert found.loses is Loses.MEMORY

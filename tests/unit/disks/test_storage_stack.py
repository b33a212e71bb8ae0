"""The layers below a file: what is memory, and what drops flushes, is named, whatever covers its path."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.disks.stack import Layer, Loses, find_volatile_layer, list_layers, list_layers_below_device

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts filesystems")

_LOOK = """
import json, sys
from guestmark.disks.stack import list_layers
print(json.dumps([[layer.name, layer.loses, layer.why] for layer in list_layers(sys.argv[1])]))
"""


def seen(script: str, path: Path, **variables: object) -> list[Layer]:
    """The layers below `path` in a mount namespace of its own in which a shell has run `script`."""
    python = Path(__file__).resolve().parents[3] / "python"
    script = f"set -e\n{script}\ncd /\n'{sys.executable}' -c \"$LOOK\" {path}"
    environment = {**os.environ, "LOOK": _LOOK, "PYTHONPATH": str(python), "on": str(path)}
    environment |= {name: str(value) for name, value in variables.items()}
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    return [Layer(name, Loses(loses), why) for name, loses, why in said]


def lost(found: list[Layer]) -> Loses:
    layer = find_volatile_layer(found)
    return layer.loses if layer else Loses.NOTHING


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory on a disk, which `tmp_path` need not be."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="guestmark-stack-") as folder:
        assert lost(list_layers(folder)) is Loses.NOTHING
        yield Path(folder)


@as_root
def test_a_directory_on_a_disk_is_followed_to_the_device(place: Path) -> None:
    found = seen("true", place)
    assert lost(found) is Loses.NOTHING
    assert found[-1].name.startswith("/dev/")


@as_root
def test_memory_over_an_older_bind_mount(place: Path) -> None:
    """The bind mount has the longer path and is listed first; the memory lies over both."""
    found = seen(
        """
        mkdir -p $on/a/b
        mount --bind $on/a/b $on/a/b
        mount -t tmpfs memory $on/a
        mkdir $on/a/b
        """,
        place / "a" / "b",
        on=place,
    )
    assert lost(found) is Loses.MEMORY


@as_root
def test_a_disk_over_memory(place: Path) -> None:
    found = seen(
        "mkdir $on/m $on/d; mount -t tmpfs memory $on/m; mount --bind $on/d $on/m", place / "m", on=place
    )
    assert lost(found) is Loses.NOTHING


@as_root
@pytest.mark.parametrize(
    "covered", ["", "mount -t tmpfs memory $on/m", "mount --bind $on $on/m; truncate -s 64M $on/disk"]
)
def test_a_loop_device_whose_file_is_memory(place: Path, covered: str) -> None:
    """Also where its name leads elsewhere: the path was covered later, and there may be a file of that name."""
    found = seen(
        f"""
        mkdir $on/m $on/there
        mount -t tmpfs -o size=80M memory $on/m
        truncate -s 64M $on/m/disk
        mke2fs -qF $on/m/disk
        mount -o loop $on/m/disk $on/there
        {covered}
        """,
        place / "there",
        on=place,
    )
    assert lost(found) is Loses.MEMORY


_ON_A_DISK = """
mkdir $on/m $on/there
mount -t tmpfs -o size=400M memory $on/m
device() { truncate -s 320M $1 && losetup -f --show $1; }
trap 'umount $on/there; losetup -d $data $log' EXIT
"""


@as_root
@pytest.mark.parametrize("journal", ["$on/m/journal", "$on/journal"], ids=["in memory", "on the disk"])
@pytest.mark.parametrize("kind", ["ext3", "ext4"])
def test_a_journal_on_a_device_of_its_own(place: Path, kind: str, journal: str) -> None:
    found = seen(
        f"""{_ON_A_DISK}
        log=$(device {journal}); data=$(device $on/data)
        mke2fs -qF -O journal_dev -b 4096 $log
        mke2fs -qF -t {kind} -b 4096 -J device=$log $data
        mount -t {kind} $data $on/there
        """,
        place / "there",
        on=place,
    )
    assert sum("/dev/loop" in layer.name for layer in found) == 2
    assert lost(found) is (Loses.MEMORY if "/m/" in journal else Loses.NOTHING)


@as_root
@pytest.mark.parametrize("log", ["$on/m/log", "$on/log"], ids=["in memory", "on the disk"])
def test_a_log_of_xfs_on_a_device_of_its_own(place: Path, log: str) -> None:
    found = seen(
        f"""{_ON_A_DISK}
        log=$(device {log}); data=$(device $on/data)
        mkfs.xfs -q -f -l logdev=$log,size=64m $data
        mount -o logdev=$log $data $on/there
        """,
        place / "there",
        on=place,
    )
    assert sum("/dev/loop" in layer.name for layer in found) == 2
    assert lost(found) is (Loses.MEMORY if "/m/" in log else Loses.NOTHING)


@as_root
@pytest.mark.parametrize("kind", ["ext4", "ext2"])
def test_a_loop_device_that_gets_no_flush(place: Path, kind: str) -> None:
    found = seen(
        f"""{_ON_A_DISK}
        data=$(device $on/data) log=
        mke2fs -qF -t {kind} $data
        echo write through > /sys/block/${{data#/dev/}}/queue/write_cache
        mount $data $on/there
        trap 'umount $on/there; echo write back > /sys/block/${{data#/dev/}}/queue/write_cache; losetup -d $data' EXIT
        """,
        place / "there",
        on=place,
    )
    assert lost(found) is Loses.FLUSHES


@as_root
@pytest.mark.parametrize(("alive", "loses"), [("exec sleep 5", Loses.MEMORY), ("", Loses.UNKNOWN)])
def test_a_loop_device_whose_file_is_memory_of_another_namespace(
    place: Path, alive: str, loses: Loses
) -> None:
    """Here its name is a file on the disk. Without a process in the other namespace its mounts cannot be seen."""
    (place / "other.sh").write_text(
        f"""
        mount -t tmpfs -o size=80M memory $on/m
        truncate -s 64M $on/m/disk
        mke2fs -qF $on/m/disk
        losetup --show -f $on/m/disk >$on/device
        echo >$on/ready
        {alive}
        """
    )
    found = seen(
        """
        mkdir $on/m $on/there
        truncate -s 64M $on/m/disk
        mkfifo $on/ready
        unshare --mount --propagation private sh $on/other.sh >/dev/null 2>&1 &
        read -r _ <$on/ready
        device=$(cat $on/device)
        mount $device $on/there
        losetup -d $device
        """
        + ("" if alive else "wait"),
        place / "there",
        on=place,
    )
    assert [layer.loses for layer in found][-1] is loses


@as_root
def test_a_loop_device_on_a_disk(place: Path) -> None:
    script = """
        mkdir $on/there
        truncate -s 64M $on/disk
        mke2fs -qF $on/disk
        mount -o loop $on/disk $on/there
        """
    found = seen(script, place / "there", on=place)
    assert lost(found) is Loses.NOTHING
    assert not any(layer.loses is Loses.UNKNOWN for layer in found)
    moved = seen(
        f"rm -r $on/*; {script}\nmv $on/disk $on/renamed; truncate -s 1M $on/disk", place / "there", on=place
    )
    assert lost(moved) is Loses.NOTHING
    assert not any(layer.loses is Loses.UNKNOWN for layer in moved)


@as_root
@pytest.mark.parametrize(
    ("upper", "then", "loses"),
    [
        ("$on/m", "true", Loses.MEMORY),
        ("$on/d", "true", Loses.NOTHING),
        ("$on/m", "umount -l $on/m", Loses.UNKNOWN),
        ("$on/m", "mount --bind $on/d $on/m; mkdir -p $on/m/upper", Loses.UNKNOWN),
    ],
)
def test_an_overlay_is_where_its_upper_directory_is(place: Path, upper: str, then: str, loses: Loses) -> None:
    found = seen(
        f"""
        mkdir $on/m $on/d $on/l $on/there
        mount -t tmpfs memory $on/m
        mkdir {upper}/upper {upper}/work
        mount -t overlay -o lowerdir=$on/l,upperdir={upper}/upper,workdir={upper}/work overlay $on/there
        {then}
        mkdir $on/there/deeper
        """,
        place / "there" / "deeper",
        on=place,
    )
    assert loses in {layer.loses for layer in found}
    assert (lost(found) is Loses.MEMORY) is (loses is Loses.MEMORY)
    assert not list(place.rglob(".guestmark-*"))


@as_root
@pytest.mark.parametrize(
    ("kind", "options"), [("ext4", "nobarrier"), ("ext4", "barrier=0"), ("btrfs", "nobarrier")]
)
def test_a_mount_without_barriers(place: Path, kind: str, options: str) -> None:
    found = seen(
        f"""
        mkdir $on/there
        truncate -s 128M $on/disk
        mkfs.{kind} -q $on/disk
        mount -o loop,{options} $on/disk $on/there
        """,
        place / "there",
        on=place,
    )
    assert lost(found) is Loses.FLUSHES


@as_root
def test_btrfs_is_on_all_its_devices(place: Path) -> None:
    """One of two devices is a file in memory."""
    found = seen(
        """
        mkdir $on/m $on/there
        mount -t tmpfs -o size=140M memory $on/m
        truncate -s 128M $on/disk $on/m/disk
        first=$(losetup --show -f $on/disk) second=$(losetup --show -f $on/m/disk)
        trap 'cd /; umount $on/there; losetup -d $first $second' EXIT
        mkfs.btrfs -qf $first $second
        btrfs device scan $first $second >/dev/null
        mount $first $on/there
        btrfs subvolume create $on/there/sub >/dev/null
        """,
        place / "there" / "sub",
        on=place,
    )
    assert lost(found) is Loses.MEMORY
    assert sum("loop" in layer.name for layer in found) == 2


def test_what_is_served_by_something_else_is_unknown() -> None:
    assert list_layers("/proc/self")[-1].loses is Loses.UNKNOWN


def test_what_does_not_exist_yet_is_where_its_directory_is() -> None:
    assert lost(list_layers("/dev/shm/not/there")) is Loses.MEMORY


def test_this_hosts_shared_memory_is_memory() -> None:
    assert lost(list_layers("/dev/shm")) is Loses.MEMORY


# ---- kinds of devices that a test cannot make: a sysfs of files


@pytest.fixture
def made(tmp_path: Path) -> "Devices":
    return Devices(tmp_path)


class Devices:
    """Block devices in a directory that looks like sysfs."""

    def __init__(self, folder: Path) -> None:
        self.sys = folder
        (folder / "dev" / "block").mkdir(parents=True)

    def add(self, name: str, number: str, files: dict[str, str], slaves: tuple[str, ...] = ()) -> None:
        folder = self.sys / "devices" / name
        for path, text in {**files, "dev": number}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(f"{text}\n")
        (folder / "slaves").mkdir()
        for slave in slaves:
            (folder / "slaves" / slave.replace("/", "_")).symlink_to(self.sys / "devices" / slave)
        (self.sys / "dev" / "block" / number).symlink_to(folder)

    def below(self, number: str) -> list[Layer]:
        return list(list_layers_below_device(number, sys=self.sys))


DISK = {"queue/write_cache": "write back", "queue/fua": "1"}


def test_a_mapping_is_on_all_its_slaves(made: Devices) -> None:
    made.add("sda", "8:0", DISK)
    made.add("sda/sda1", "8:1", {"partition": "1"})
    made.add("dm-0", "253:0", {"dm/name": "vault", "dm/uuid": "CRYPT-LUKS2-1"}, ("sda/sda1",))
    assert [str(layer) for layer in made.below("253:0")] == [
        "/dev/dm-0 (dm vault)",
        "/dev/sda (cache write back, FUA)",
    ]


@pytest.mark.parametrize(
    ("name", "files", "loses"),
    [
        ("dm-1", {"dm/name": "flaky", "dm/uuid": ""}, Loses.UNKNOWN),
        ("dm-2", {"dm/name": "vg-lv", "dm/uuid": "LVM-x"}, Loses.UNKNOWN),  # sysfs names nothing below it
        ("md0", {"md/level": "raid1"}, Loses.UNKNOWN),
        ("zram0", {}, Loses.MEMORY),
        ("ram0", {}, Loses.MEMORY),
        ("nullb0", {}, Loses.MEMORY),
        ("sdb", {**DISK, "device/model": "scsi_debug"}, Loses.MEMORY),
        ("nbd0", DISK, Loses.UNKNOWN),
        ("ublkb0", DISK, Loses.UNKNOWN),
        ("pmem0", DISK, Loses.UNKNOWN),
        ("sda", DISK, Loses.NOTHING),
        (
            "sdc",
            {"queue/write_cache": "write through", "device/scsi_disk/0:0/cache_type": "write back"},
            Loses.FLUSHES,
        ),
        (
            "sdd",
            {"queue/write_cache": "write through", "device/scsi_disk/0:0/cache_type": "write through"},
            Loses.NOTHING,
        ),
        ("vdb", {"queue/write_cache": "write through", "cache_type": "write back"}, Loses.FLUSHES),
        ("nvme0n1", {"queue/write_cache": "write through"}, Loses.UNKNOWN),  # nobody else says so
    ],
)
def test_a_device_says_what_it_is(made: Devices, name: str, files: dict[str, str], loses: Loses) -> None:
    made.add(name, "240:0", files)
    assert made.below("240:0")[-1].loses is loses


def test_a_mirror_with_one_half_in_memory(made: Devices) -> None:
    made.add("sda", "8:0", DISK)
    made.add("ram0", "1:0", {})
    made.add("md0", "9:0", {"md/level": "raid1"}, ("ram0", "sda"))
    assert lost(made.below("9:0")) is Loses.MEMORY

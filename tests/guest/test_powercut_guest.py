"""Power cuts of real machines: what holds is proven, and what lies is found out."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.findings import Durability, Findings, Proof, Proven
from guestmark.disks import daemon, loop
from guestmark.engine import proofs
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import SilentObserver
from guestmark.powercut import evidence
from guestmark.powercut.recovery import ExtRecovery
from tests.framework.cells import cell_of, plan_of
from tests.framework.guests import prepared
from tests.framework.known import a, known
from tests.framework.marks import long, thorough
from tests.framework.processes import wait_until

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no image can be logged without FUSE"),
    pytest.mark.timeout(900),
]
on_loop = pytest.mark.skipif(bool(loop.explain_no_loop()), reason="images cannot be mounted here")


@pytest.fixture(autouse=True)
def kept_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def cut(
    platform: str,
    *,
    states: int = 40,
    method: str = "append",
    records: int = 100,
    factors: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Proven:
    """What is proven of a disk of that platform; `settings` are those of a database server."""
    placed = {"location": "/var/tmp", **(factors or {})}
    params = {"states": states, "method": method, "records": records, "settings": dict(settings or {})}
    with prepared(cell_of(platform, "powercut", placed, **params)) as (machine, workload):
        machine.attest()
        workload.run(machine)
        facts = a(Findings, workload.facts).facts()
    return known(facts.find_fact(Proof)).proven


@pytest.mark.long
def test_umls_own_disk_loses_and_vhost_user_does_not() -> None:
    ubd = cut("uml")
    assert ubd.word is Durability.LOST
    assert ubd.losing > 10  # without a flush the worst states are one
    assert "record" in ubd.first_loss
    served = cut("uml", factors={"uml_disk": "vhost-user"})
    assert served.word is Durability.PROVEN
    assert (served.losing, served.repaired) == (0, 0)
    assert all(control.is_caught for control in served.controls)
    assert [control.name for control in served.controls] == ["no-flush", "barrier=0"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("platform", "factors", "word"),
    [
        ("tcg", {}, Durability.PROVEN),
        ("tcg", {"cache": "none", "aio": "native"}, Durability.PROVEN),
        thorough("tcg", {"iothread": "on", "detect_zeroes": "on", "discard": "unmap"}, Durability.PROVEN),
        thorough("tcg", {"bus": "virtio-scsi", "iothread": "on"}, Durability.PROVEN),
        thorough("tcg", {"qemu_args": "-device virtio-rng-pci"}, Durability.PROVEN),
        thorough("tcg", {"cache": "writethrough"}, Durability.PROVEN),
        ("tcg", {"cache": "unsafe"}, Durability.LOST),
        ("tcg", {"mount": "barrier=0"}, Durability.LOST),
        thorough("tcg", {"format": "qcow2"}, Durability.PROVEN),
        thorough("tcg", {"format": "qcow2", "subclusters": "on"}, Durability.PROVEN),
        ("tcg", {"format": "qcow2", "backing": "on"}, Durability.PROVEN),
        thorough("tcg", {"format": "vmdk"}, Durability.PROVEN),
        ("tcg", {"disk_protocol": "nbd"}, Durability.PROVEN),
        ("tcg", {"bus": "vhost-user"}, Durability.PROVEN),
        thorough("tcg", {"bus": "vhost-user", "cache": "writethrough"}, Durability.PROVEN),
        ("tcg", {"bus": "vhost-user", "cache": "unsafe"}, Durability.LOST),
        thorough("tcg", {"format": "vdi"}, Durability.PROVEN),
        thorough("tcg", {"format": "vhdx"}, Durability.PROVEN),
        thorough("tcg", {"format": "luks"}, Durability.PROVEN),
        ("tcg", {"bus": "ide", "filesystem": "ext3"}, Durability.PROVEN),
        ("tcg/kvm", {}, Durability.PROVEN),
        thorough("tcg/kvm", {"bus": "vhost-user"}, Durability.PROVEN),
        thorough("tcg/kvm", {"bus": "vhost-user", "cache": "unsafe"}, Durability.LOST),
        thorough("tcg/uml", {"uml_disk": "vhost-user"}, Durability.PROVEN),
    ],
    ids=str,
)
def test_what_qemu_keeps(platform: str, factors: dict[str, str], word: Durability) -> None:
    # Each state is a copy that has to be opened, and LUKS takes seconds to derive a key.
    states = 10 if factors.get("format") == "luks" else 40
    found = cut(platform, states=states, factors=factors)
    assert found.word is word, found
    assert all(control.is_caught for control in found.controls)


@pytest.mark.long
def test_each_proof_of_a_run_is_there_as_soon_as_it_was_made() -> None:
    """So that a run which is interrupted meanwhile does not make them all again."""
    disks = ({"uml_disk": "vhost-user"}, {"uml_disk": "ubd"})
    cells = [
        replace(
            cell_of("uml", "filewrite", {"location": "/var/tmp", "size": "64M", **disk}, amount="4M"),
            id=f"write {number}",
        )
        for number, disk in enumerate(disks)
    ]
    plan = plan_of(*cells)
    first, *_, last = proofs.prove_cells(plan, cells, {}, SilentObserver(), Interruption())
    assert {name: proof.proven.word for name, proof in first.items()} == {"write 0": Durability.PROVEN}
    assert [proof.proven.word for proof in last.values()] == ["proven", "lost"]
    (made_again,) = proofs.prove_cells(
        plan, cells, proofs.read_proofs(proofs.attach_proofs(plan, last)), SilentObserver(), Interruption()
    )
    assert made_again == last


@pytest.mark.long
def test_a_kept_image_on_top_of_another_one_can_be_read(tmp_path: Path) -> None:
    """The image below is kept with the log, and what is written for a cut names it."""
    found = cut("tcg", states=10, factors={"format": "qcow2", "backing": "on", "cache": "unsafe"})
    assert found.word is Durability.LOST
    image = tmp_path / "cut.qcow2"
    evidence.write_cut_image(found.kept, 1, "none", str(image))
    assert "No errors" in daemon.run_program("qemu-img", "check", str(image))
    raw = tmp_path / "cut.raw"
    daemon.run_program("qemu-img", "convert", "-O", "raw", str(image), str(raw), writable=[tmp_path])
    assert "clean" in daemon.run_program("dumpe2fs", "-h", str(raw))


@pytest.mark.long
def test_nvme_is_safe_only_where_qemu_heeds_fua() -> None:
    """The kernel writes a journal's commit with FUA there; QEMU 7.2 writes it as any other block."""
    found = cut("tcg", factors={"bus": "nvme"})
    heeded = found.flushes > found.acknowledged * 3 / 2
    assert found.word is (Durability.PROVEN if heeded else Durability.LOST), found


@pytest.mark.long
@on_loop
def test_a_smaller_tree_of_extents_is_no_repair(tmp_path: Path) -> None:
    """A file that is written here and there, and then between: its tree could have fewer levels."""
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run([daemon.find_program("mkfs.ext4"), "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    try:
        with (mounted / "file").open("wb", buffering=0) as file:
            for first in (0, 1):
                for block in range(first, 400, 2):
                    os.pwrite(file.fileno(), bytes([1]) * 4096, block * 4096)
                    if block % 8 < 2:
                        os.fdatasync(file.fileno())
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    copy = tmp_path / "copy"
    shutil.copy(image, copy)
    said = subprocess.run(
        [daemon.find_program("e2fsck"), "-fy", str(copy)], capture_output=True, text=True, check=False
    )
    assert "could be narrower" in said.stdout
    assert ExtRecovery().replay_journal(image).repairs == ()


@pytest.mark.long
@on_loop
@pytest.mark.parametrize("method", ["append", "overwrite", "replace", "dsync", "sqlite"])
def test_every_way_to_make_a_record_durable(method: str) -> None:
    found = cut("host", method=method)
    assert (found.word, found.losing, found.repaired) == (Durability.PROVEN, 0, 0)


@pytest.mark.long
@on_loop
@pytest.mark.parametrize("filesystem", ["ext2", "ext3", "ext4", "xfs", "btrfs"])
def test_every_filesystem_is_recovered(filesystem: str) -> None:
    found = cut("host", states=20, factors={"filesystem": filesystem})
    # Linux's btrfs has a second fsync of a file return before the first log commit of a mount is on the disk.
    if filesystem == "btrfs" and found.early_states:
        assert found.losing == found.early_states, found
    else:
        assert (found.word, found.losing) == (Durability.PROVEN, 0), found


@pytest.mark.long
@on_loop
@pytest.mark.parametrize(
    ("server", "platform"),
    [("mariadb", "host"), ("postgresql", "host"), ("mariadb", "tcg"), thorough("postgresql", "tcg"),
     thorough("mariadb", "uml"), ("postgresql", "uml")],
)  # fmt: skip
def test_a_server_recovers_each_row_that_it_acknowledged(platform: str, server: str) -> None:
    factors = {"uml_disk": "vhost-user"} if platform == "uml" else {}
    found = cut(platform, states=8, method=server, records=30, factors=factors)
    assert (found.word, found.losing, found.acknowledged) == (Durability.PROVEN, 0, 30), found
    assert [control.is_caught for control in found.controls] == [True, True]


@pytest.mark.long
@on_loop
@pytest.mark.parametrize("server", [thorough("mariadb"), "postgresql"])
def test_a_server_on_a_disk_that_lies_loses_rows(server: str) -> None:
    found = cut("uml", states=12, method=server, records=30)
    assert found.word is Durability.LOST
    assert found.losing > 0


@pytest.mark.long
@on_loop
@pytest.mark.parametrize(
    ("platform", "server", "settings", "word"),
    [
        thorough("host", "postgresql", {"full_page_writes": "on"}, Durability.PROVEN),
        ("host", "postgresql", {"full_page_writes": "off"}, Durability.LOST),
        ("host", "mariadb", {"innodb_doublewrite": "1"}, Durability.PROVEN),
        thorough("host", "mariadb", {"innodb_doublewrite": "0"}, Durability.LOST),
        thorough("uml", "mariadb", {"innodb_doublewrite": "0"}, Durability.LOST),
        thorough("tcg", "postgresql", {"full_page_writes": "off"}, Durability.LOST),
    ],
    ids=str,
)
def test_a_server_that_is_not_safe_from_torn_pages_loses_rows(
    platform: str, server: str, settings: Mapping[str, str], word: Durability
) -> None:
    factors = {"uml_disk": "vhost-user"} if platform == "uml" else {}
    found = cut(platform, states=12, method=server, records=40, settings=settings, factors=factors)
    assert found.word is word, found
    assert known(found.coverage).torn >= 1
    if word is Durability.LOST:
        assert any(survival in found.first_loss for survival in ("half of the last write", "torn sectors"))


# Drops every flush whose number is a multiple of LIE_EVERY; with LIE_EARLY a thread flushes after it has returned.
_LIAR = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static int count;
static void *later(void *fd) { syscall(SYS_fdatasync, (int)(intptr_t)fd); return 0; }
int fdatasync(int fd) {
    pthread_t thread;
    if (getenv("LIE_EARLY")) {
        if (!pthread_create(&thread, 0, later, (void *)(intptr_t)fd)) pthread_detach(thread);
        return 0;
    }
    if (__atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST) % atoi(getenv("LIE_EVERY")) == 0) return 0;
    return syscall(SYS_fdatasync, fd);
}
int fsync(int fd) { return fdatasync(fd); }
"""


@pytest.fixture
def liar(tmp_path: Path) -> Callable[[str], str]:
    """Makes a QEMU that lies about its flushes, by what is in its environment."""
    source, library = tmp_path / "liar.c", tmp_path / "liar.so"
    source.write_text(_LIAR)
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", str(library), str(source)], check=True)
    real = known(shutil.which("qemu-system-x86_64"))

    def make(how: str) -> str:
        false = tmp_path / "liar"
        false.write_text(f'#!/bin/sh\n{how} LD_PRELOAD={library} exec {real} "$@"\n')
        false.chmod(0o755)
        return str(false)

    return make


@pytest.mark.parametrize("every", [long(1), thorough(2), long(7), thorough(50), thorough(151), thorough(301)])
def test_every_flush_that_is_dropped_is_found(every: int, liar: Callable[[str], str]) -> None:
    """One flush for each record: the one that is dropped of hundreds is as sure to be found as one of two."""
    records = every + 20 if every > 20 else 30
    found = cut("tcg", method="overwrite", records=records, factors={"qemu": liar(f"LIE_EVERY={every}")})
    assert found.word is Durability.LOST, found
    assert known(found.again).losing > 0
    assert known(found.counted) > 0


@pytest.mark.long
def test_an_acknowledgement_before_the_flush_has_ended_is_found(liar: Callable[[str], str]) -> None:
    found = cut("tcg", method="overwrite", records=30, factors={"qemu": liar("LIE_EARLY=1")})
    assert found.word is Durability.LOST, found
    assert found.flushes > 0  # each is made, too late


_WRITER = """
import os, sys
data = os.open("data", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.fsync(os.open(".", os.O_RDONLY))
for number in range(15):
    os.write(data, b"%08d\\n" % number)
    if sys.argv[1] == "safe":
        os.fsync(data)
    print(number, flush=True)
    sys.stdin.readline()
"""
_CHECK = """
import sys
wanted = {int(line) for line in sys.stdin if line.strip()}
sys.exit(not wanted <= {int(word) for word in open("data").read().split() if word.isdigit()})
"""


@on_loop
@pytest.mark.parametrize(
    ("how", "word"),
    [long("safe", Durability.PROVEN), ("careless", Durability.LOST)],
)
def test_a_command_is_judged_by_what_it_says_is_safe(how: str, word: Durability, tmp_path: Path) -> None:
    check = tmp_path / "check.py"
    check.write_text(_CHECK)
    cell = cell_of(
        "tcg", "powercut", {"location": "/var/tmp"}, method="command", states=10,
        command=[sys.executable, "-c", _WRITER, how], check=f"{sys.executable} {check}",
    )  # fmt: skip
    with prepared(cell) as (machine, workload):
        workload.run(machine)
        found = known(a(Findings, workload.facts).facts().find_fact(Proof)).proven
    assert found.word is word, found
    assert known(found.coverage).worst == 15


@pytest.mark.long
@on_loop
@pytest.mark.parametrize(
    ("server", "settings", "word"),
    [
        ("mariadb", {"innodb_flush_log_at_trx_commit": 0}, Durability.LOST),
        ("mariadb", {"innodb_flush_log_at_trx_commit": 1}, Durability.PROVEN),
        thorough("mariadb", {"innodb_flush_log_at_trx_commit": 2}, Durability.LOST),
        thorough("postgresql", {"synchronous_commit": "off"}, Durability.LOST),
        ("postgresql", {"synchronous_commit": "on"}, Durability.PROVEN),
    ],
    ids=str,
)
def test_a_server_is_judged_with_the_settings_of_its_row(
    server: str, settings: Mapping[str, object], word: Durability
) -> None:
    row = cell_of("tcg", "oltp", {"filesystem": "ext4"}, server=server, settings=settings)
    plan = plan_of(row, limit_s=600.0)
    *_, found = proofs.prove_cells(plan, [row], {}, SilentObserver(), Interruption())
    assert (found[row.id].proven.word, found[row.id].proven.of_row) == (word, True)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A directory that is unmounted at the end."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)


@pytest.mark.long
@on_loop
def test_an_overlay_that_drops_flushes_is_called_by_its_name(tmp_path: Path, mounted: Path) -> None:
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work,volatile"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "none", str(mounted)], check=False)
    if done.returncode:
        pytest.skip("this kernel has no volatile overlays here")
    found = cut("uml", factors={"uml_disk": "vhost-user", "location": str(mounted)})
    assert found.word in {Durability.LOST, Durability.MEMORY}
    assert "mounted volatile" in f"{found.why} {found.below}"


@pytest.mark.long
@on_loop
def test_a_loop_device_in_memory_is_called_memory(mounted: Path) -> None:
    image = Path(f"/dev/shm/test-{os.getpid()}.raw")
    try:
        with image.open("wb") as file:
            file.truncate(400 << 20)
        subprocess.run(["mke2fs", "-q", "-F", str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
        found = cut("uml", factors={"uml_disk": "vhost-user", "location": str(mounted)})
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=False)
        image.unlink(missing_ok=True)
    assert found.word is Durability.MEMORY
    assert "tmpfs" in found.why


@pytest.mark.long
def test_nothing_stays_mounted_after_a_kill(tmp_path: Path) -> None:
    location = tmp_path / "images"
    location.mkdir()
    command = [
        sys.executable, "-m", "guestmark", "powercut", "--on", "uml", "--states", "100000", "--records", "20000",
        "--set", f"location={location}", "--ledger", str(tmp_path / "ledger.sqlite"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )

    def mounts() -> list[str]:
        return [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(location) in line]

    try:
        assert wait_until(mounts, 60)
        time.sleep(0.5)
        process.kill()
        process.wait()
        assert wait_until(lambda: not mounts(), 20)
        assert wait_until(lambda: not any(location.iterdir()), 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


_FIO = "fio --name=w --rw=write --bs=4k --size=44k --fsync=1 --ioengine="  # leaves its last write for later
SYNCING = {
    "script": "for n in 1 2 3 4 5 6 7 8 9 10; do echo $n >> file; sync file; done",
    "io_uring": f"{_FIO}io_uring",
    "io_submit": f"{_FIO}libaio",
}


@pytest.mark.long
@on_loop
@pytest.mark.parametrize(("every", "word"), [(0, Durability.PROVEN), (7, Durability.LOST)])
@pytest.mark.parametrize("program", SYNCING)
def test_the_syncs_of_a_program_are_judged(
    program: str, every: int, word: Durability, liar: Callable[[str], str]
) -> None:
    factors = {"location": "/var/tmp", **({"qemu": liar(f"LIE_EVERY={every}")} if every else {})}
    target = cell_of("tcg", "powercut", factors, method="syncs", command=["sh", "-c", SYNCING[program]])
    with prepared(target) as (machine, workload):
        workload.run(machine)
        facts = a(Findings, workload.facts).facts()
    found = known(facts.find_fact(Proof)).proven
    if word is Durability.PROVEN and program != "script":
        word = Durability.SYNCED_PART_PROVEN  # fio's last write is not synced
    assert (found.word, found.acknowledged) == (word, 10), found


@pytest.mark.long
def test_a_job_of_fio_is_proven_by_its_own_syncs() -> None:
    """With `fsync=1`, fio leaves its last write for later."""
    job = "[w]\nioengine=psync\nrw=randwrite\nbs=4k\nsize=128k\nfsync="
    disk = {"location": "/var/tmp", "size": "64M", "uml_disk": "vhost-user"}
    cells = [replace(cell_of("uml", "fio", disk, job=f"{job}{every}\n"), id=every) for every in ("1", "0")]
    *_, found = proofs.prove_cells(plan_of(*cells), cells, {}, SilentObserver(), Interruption())
    synced, unsynced = found["1"].proven, found["0"].proven
    assert (synced.word, synced.losing, unsynced.word) == (
        Durability.SYNCED_PART_PROVEN,
        0,
        Durability.NOTHING,
    )
    assert synced.acknowledged > 0
    assert all(one.unsynced[0].path.endswith("w.0.0") for one in (synced, unsynced))

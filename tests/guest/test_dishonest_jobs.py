"""Jobs of fio and commands that sync something, but not all that they leave: none of them is called proven."""

import os
from dataclasses import replace

import pytest

from guestmark.core.findings import Durability, Proven
from guestmark.engine import proofs
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import SilentObserver
from tests.framework.cells import cell_of, plan_of
from tests.framework.command_line import CommandLine
from tests.framework.marks import long, long_but

pytestmark = [
    pytest.mark.skipif(os.getuid() != 0, reason="a loop device of this host takes root"),
    pytest.mark.timeout(600),
]
DISK = {"location": "/var/tmp", "filesystem": "ext4", "size": "64M"}
_PLAIN = "ioengine=psync\nrw=write\nbs=4k\nsize=64k\n"
JOBS = {
    "never": f"[w]\n{_PLAIN}",
    "once in the middle": f"[w]\n{_PLAIN}fsync=11\n",
    "fdatasync in the middle": f"[w]\n{_PLAIN}fdatasync=9\n",
    "only a range of it": f"[w]\n{_PLAIN}sync_file_range=write:4\n",
    "another file": f"[a]\n{_PLAIN}filename=a\nend_fsync=1\n[b]\n{_PLAIN}filename=b\n",
    "another file, O_DSYNC": f"[a]\n{_PLAIN}filename=a\nsync=dsync\n[b]\n{_PLAIN}filename=b\n",
    "another file, O_SYNC": f"[a]\n{_PLAIN}filename=a\nsync=sync\n[b]\n{_PLAIN}filename=b\n",
    "before it writes": f"[w]\n{_PLAIN}filename=a\nrw=randwrite\n"
    "exec_prerun=dd if=/dev/zero of=a bs=4k count=16 conv=fsync\n",
    "everything, before it writes": f"[w]\n{_PLAIN}exec_prerun=sync\n",
    "then a shell writes": f"[w]\n{_PLAIN}end_fsync=1\nexec_postrun=date +%N\n",
    "threads, one syncs": f"[global]\nthread=1\n[a]\n{_PLAIN}filename=a\nend_fsync=1\n[b]\n{_PLAIN}filename=b\n",
    "random, once": f"[w]\n{_PLAIN}rw=randwrite\nfsync=10\n",
    "direct": f"[w]\n{_PLAIN}direct=1\n",
    "direct, in the middle": f"[w]\n{_PLAIN}direct=1\nfdatasync=11\n",
    "vectors": f"[w]\n{_PLAIN}ioengine=pvsync2\nfsync=11\n",
    "libaio": f"[w]\n{_PLAIN}ioengine=libaio\niodepth=4\nfsync=11\n",
    "libaio, direct": f"[w]\n{_PLAIN}ioengine=libaio\niodepth=8\ndirect=1\n",
    "io_uring": f"[w]\n{_PLAIN}ioengine=io_uring\niodepth=4\nfsync=11\n",
    "io_uring, a thread of the kernel": f"[w]\n{_PLAIN}ioengine=io_uring\nsqthread_poll=1\nend_fsync=1\n",
    "a mapping": f"[w]\n{_PLAIN}ioengine=mmap\n",
    "a mapping, in the middle": f"[w]\n{_PLAIN}ioengine=mmap\nfsync=11\n",
    "splice": f"[w]\n{_PLAIN}ioengine=splice\n",
    "two processes": f"[w]\n{_PLAIN}numjobs=2\nfsync=11\n",
    "a longer file": f"[w]\n{_PLAIN}file_append=1\nfsync=11\n",
    "created only": "[w]\nioengine=filecreate\nfilesize=4k\nnrfiles=4\nrw=write\nsize=16k\nbs=4k\n",
}
HONEST = {
    "at its end": f"[w]\n{_PLAIN}end_fsync=1\n",
    "O_DSYNC": f"[w]\n{_PLAIN}sync=dsync\n",
    "both files": f"[global]\nend_fsync=1\n[a]\n{_PLAIN}filename=a\n[b]\n{_PLAIN}filename=b\n",
}
SHORT = {"once in the middle", "at its end"}


def prove_job(kind: str, **params: object) -> Proven:
    target = replace(cell_of("host", kind, DISK, host_disk="loop", **params), id="job")
    *_, found = proofs.prove_cells(plan_of(target), [target], {}, SilentObserver(), Interruption())
    return found["job"].proven


@pytest.mark.parametrize("name", long_but(SHORT, JOBS))
def test_a_job_that_leaves_something_unsynced_is_not_proven(name: str) -> None:
    found = prove_job("fio", job=JOBS[name])
    assert found.of_row
    assert found.word in {Durability.SYNCED_PART_PROVEN, Durability.NOTHING, Durability.UNKNOWN}, found
    # A job that only makes files finds them there, as they are laid out before.
    assert found.unsynced or found.word is not Durability.SYNCED_PART_PROVEN, found
    assert found.why, found


@pytest.mark.parametrize("name", long_but(SHORT, HONEST))
def test_a_job_that_syncs_all_is_proven(name: str) -> None:
    found = prove_job("fio", job=HONEST[name])
    assert (found.word, found.losing, found.unsynced) == (Durability.PROVEN, 0, []), found


_WAL = """
import os, sqlite3
database = sqlite3.connect("rows.db", isolation_level=None)
database.execute("pragma journal_mode=wal")
database.execute("pragma synchronous={synchronous}")
database.execute("create table rows (n)")
for n in range(5):
    database.execute("insert into rows values (?)", (n,))
os._exit(0)
"""


@pytest.mark.parametrize(
    ("synchronous", "words"),
    [
        long("full", {Durability.PROVEN}),
        long("normal", {Durability.SYNCED_PART_PROVEN}),
        ("off", {Durability.SYNCED_PART_PROVEN, Durability.NOTHING}),
    ],
)
def test_what_a_database_makes_anew_needs_no_sync(synchronous: str, words: set[Durability]) -> None:
    """A connection that is not closed leaves the index of SQLite's log, which the next one makes anew."""
    found = prove_job("exec", command=["/usr/bin/python3", "-I", "-c", _WAL.format(synchronous=synchronous)])
    assert found.word in words, found
    assert [os.path.basename(file.path) for file in found.rebuilt] == ["rows.db-shm"], found
    left = {os.path.basename(file.path) for file in found.unsynced}
    assert "rows.db-shm" not in left
    assert ("rows.db-wal" in left) == (synchronous != "full")


_RACE = """
schema = "guestmark-plan/1"
name = "race"
title = "Which way to write is fastest, of those that are safe?"
platforms = ["host"]
metrics = ["wall_s"]

[factors]
filesystem = "ext4"
location = "/var/tmp"
size = "64M"
"env:HOW" = [{ways}]

[workloads.write]
kind = "exec"
params.command = ["sh", "-c", "eval $HOW"]
params.host_disk = "loop"

[tune]
objective = "wall_s"
durability = "proven"
max_blocks = 3
finalists = 2
confirm = 2
"""
WAYS = {
    "dd if=/dev/zero of=f bs=4k count=20 conv=fsync": True,
    "dd if=/dev/zero of=f bs=4k count=20 oflag=dsync": True,
    "dd if=/dev/zero of=f bs=4k count=20": False,
    "sync; dd if=/dev/zero of=f bs=4k count=20": False,
    "dd if=/dev/zero of=f bs=4k count=20; echo x > g; sync g": False,
    "dd if=/dev/zero of=f bs=4k count=20 conv=fsync; mv f g": False,
}


@pytest.mark.long
def test_a_race_for_what_is_proven_admits_who_syncs_all(guestmark: CommandLine, tmp_path: object) -> None:
    plan = os.path.join(str(tmp_path), "race.toml")
    with open(plan, "w") as file:
        file.write(_RACE.format(ways=", ".join(f'"{way}"' for way in WAYS)))
    done = guestmark("tune", plan, "--json", "-", timeout=500)
    assert done.status == 0, done.stderr
    barred = {cell["id"] for cell in done.document()["cells"] if not cell["trials"]}
    for way, honest in WAYS.items():
        assert any(name.endswith(f"env:HOW={way}") for name in barred) != honest, (way, barred)

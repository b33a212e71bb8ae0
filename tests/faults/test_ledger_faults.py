"""The ledger under real faults: kills, full disks, locks, damage, and files that are something else."""

import hashlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from guestmark.core.errors import LedgerError
from guestmark.core.model import RunState
from guestmark.ledger import open_ledger
from tests.framework import IMPORTABLE
from tests.framework.ledgers import INCOMPRESSIBLE, PLAN, trial


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


def forked(work: Callable[[], None]) -> int:
    """Runs `work` in a child; its process id. The child never returns into the test."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(9)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_writer_killed_at_any_moment_loses_nothing_it_was_told_is_stored(file: Path) -> None:
    chance = random.Random(20_261_121)
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    survived = 0
    for _ in range(40):
        reader, writer = os.pipe()

        def write(first: int = survived, told: int = writer) -> None:
            with open_ledger(file) as mine, mine.claim_run(run_id):
                mine.set_run_state(run_id, RunState.RUNNING)
                for block in range(first, first + 10_000):
                    mine.store_trial(run_id, trial(block, INCOMPRESSIBLE[: chance.randrange(60_000)]))
                    os.write(told, b".")

        child = forked(write)
        os.close(writer)
        os.read(reader, 1)  # it has begun
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        assert ended(child) == -signal.SIGKILL
        told = 1
        while chunk := os.read(reader, 65536):
            told += len(chunk)
        os.close(reader)
        with open_ledger(file) as ledger:
            run = ledger.load_run(run_id)
            with ledger.claim_run(run_id):  # the dead owner does not block
                pass
        stored = len(run.trials)
        assert survived + told <= stored <= survived + told + 1
        assert [stored_trial.block for stored_trial in run.trials] == list(range(stored))
        assert all(
            stored_trial.measurements == trial(stored_trial.block).measurements for stored_trial in run.trials
        )
        assert run.state is RunState.KILLED
        survived = stored
    with closing(sqlite3.connect(file)) as link:
        assert link.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_a_writer_killed_while_it_makes_the_ledger_leaves_none_or_a_sound_one(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(30):
        file = tmp_path / f"{number}.sqlite"

        def make(where: Path = file) -> None:
            open_ledger(where).close()
            time.sleep(10)

        child = forked(make)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        ended(child)
        with open_ledger(file) as ledger:
            assert ledger.load_run(ledger.create_run(PLAN, {}, 1)).plan == PLAN


def test_many_processes_may_make_and_fill_the_same_ledger_at_once(file: Path) -> None:
    def work() -> None:
        with open_ledger(file) as ledger:
            run_id = ledger.create_run(PLAN, {}, 1)
            with ledger.claim_run(run_id):
                for block in range(20):
                    ledger.store_trial(run_id, trial(block))

    children = [forked(work) for _ in range(6)]
    assert [ended(child) for child in children] == [0] * 6
    with open_ledger(file) as ledger:
        assert [run.trials for run in ledger.list_runs()] == [20] * 6


@pytest.mark.long
def test_nobody_takes_a_ledger_that_is_just_being_made_for_something_else() -> None:
    with TemporaryDirectory(dir="/dev/shm") as folder:  # where nothing waits for a disk they meet most often
        with open_ledger(Path(folder, "first")) as ledger:  # what is imported once is imported now
            ledger.create_run(PLAN, {}, 1)
        for number in range(20):

            def make(file: Path = Path(folder, str(number))) -> None:
                with open_ledger(file) as ledger:
                    ledger.create_run(PLAN, {}, 1)

            children = [forked(make) for _ in range(8)]
            assert [ended(child) for child in children] == [0] * 8


def test_a_claim_holds_against_other_processes_and_ends_with_its_owner(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    reader, writer = os.pipe()

    def own() -> None:
        with open_ledger(file) as mine, mine.claim_run(run_id):
            os.write(writer, b".")
            time.sleep(60)

    child = forked(own)
    try:
        os.read(reader, 1)
        with open_ledger(file) as ledger:
            with pytest.raises(LedgerError, match=f"executed by process {child} on"):
                ledger.claim_run(run_id).__enter__()
            os.kill(child, signal.SIGKILL)
            ended(child)
            with ledger.claim_run(run_id):
                assert ledger.is_claimed(run_id)
    finally:
        os.close(reader)
        os.close(writer)


def test_locked_by_another_program(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        ledger.store_trial(run_id, trial(0))
    with closing(sqlite3.connect(file)) as other, open_ledger(file, busy_timeout_s=0.2) as ledger:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(
            LedgerError, match=r"locked.*storing the trial of cell 'host' in block 2"
        ) as raised:
            ledger.store_trial(run_id, trial(1))
        assert "--ledger" in raised.value.hint
        assert len(ledger.load_run(run_id).trials) == 1  # reading goes on
        other.rollback()
        ledger.store_trial(run_id, trial(1))
        assert len(ledger.load_run(run_id).trials) == 2


def test_a_file_size_limit(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    reader, writer = os.pipe()

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        with open_ledger(file) as mine:
            for block in range(100):
                try:
                    mine.store_trial(run_id, trial(block, INCOMPRESSIBLE))
                except LedgerError as error:
                    os.write(writer, f"{block}\n{error.message}\n{error.hint}".encode())
                    return

    assert ended(forked(write)) == 0
    os.close(writer)
    with os.fdopen(reader) as stream:
        block, message, hint = stream.read().split("\n")
    assert f"storing the trial of cell 'host' in block {int(block) + 1} of run {run_id}" in message
    assert "ulimit" in hint or "space" in hint
    with open_ledger(file) as ledger:
        run = ledger.load_run(run_id)
        assert [trial.block for trial in run.trials] == list(range(int(block)))
        assert int(block) > 1
        ledger.store_trial(run_id, trial(int(block), INCOMPRESSIBLE))  # and it goes on


def in_namespace(script: str) -> str:
    """Runs Python where it may mount things, seen by nobody else; its output."""
    alone = (
        ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    )
    allowed = subprocess.run([*alone, "true"], capture_output=True, check=False, timeout=30)
    if allowed.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {allowed.stderr.decode(errors='replace').strip()}")
    command = [*alone, sys.executable, "-c", textwrap.dedent(script)]
    environment = os.environ | {"PYTHONPATH": IMPORTABLE}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_full_disk(tmp_path: Path) -> None:
    output = in_namespace(f"""
        import subprocess
        from pathlib import Path
        from guestmark.core.errors import LedgerError
        from guestmark.ledger import open_ledger
        from tests.framework.ledgers import INCOMPRESSIBLE, PLAN, trial
        disk = Path({str(tmp_path)!r})
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk], check=True)
        file = disk / "ledger.sqlite"
        with open_ledger(file) as ledger:
            run_id = ledger.create_run(PLAN, {{}}, 1)
            block = 0
            try:
                while block < 100:
                    ledger.store_trial(run_id, trial(block, INCOMPRESSIBLE))
                    block += 1
            except LedgerError as error:
                assert "no space" in error.message.lower(), error
                assert f"in block {{block + 1}} of run {{run_id}}" in error.message, error
                assert "safe" in error.hint
            assert 1 < block < 100, block
            assert len(ledger.load_run(run_id).trials) == block
        # Not a byte is left, in every way of being opened:
        (disk / "filler").write_bytes(b"")
        with (disk / "filler").open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        for writable in (True, False):
            try:
                with open_ledger(file, writable=writable) as ledger:
                    assert len(ledger.load_run(run_id).trials) == block
                    print("read", end=" ")
            except LedgerError as error:
                assert "space" in error.message + error.hint, error
                print("told", end=" ")
        try:
            open_ledger(disk / "new.sqlite")
        except LedgerError as error:
            assert "space" in error.message + error.hint, (error.message, error.hint)
            print("refused", end=" ")
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        with open_ledger(file) as ledger:
            assert len(ledger.load_run(run_id).trials) == block
            with open_ledger(disk / "new.sqlite") as new:
                assert new.list_runs() == []
        print("fine")
    """)
    assert output == "read read refused fine\n"


def test_read_only_storage(tmp_path: Path) -> None:
    output = in_namespace(f"""
        import subprocess
        from pathlib import Path
        from guestmark.core.errors import LedgerError
        from guestmark.ledger import open_ledger
        from tests.framework.ledgers import INCOMPRESSIBLE, PLAN, trial
        disk = Path({str(tmp_path)!r})
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], check=True)
        file = disk / "ledger.sqlite"
        with open_ledger(file) as ledger:
            run_id = ledger.create_run(PLAN, {{}}, 1)
            ledger.store_trial(run_id, trial(0))
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with open_ledger(file, writable=False) as ledger:
            assert ledger.load_run("last").trials == (trial(0),)
            print("read")
        for other in (file, disk / "new.sqlite", disk / "folder" / "new.sqlite"):
            try:
                with open_ledger(other) as ledger:
                    ledger.store_trial(run_id, trial(1))
                raise SystemExit("written to read-only storage")
            except LedgerError as error:
                assert str(other) in error.message and "writable" in error.hint, (error.message, error.hint)
                print("told")
    """)
    assert output == "read\ntold\ntold\ntold\n"


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_a_file_that_is_not_a_database_is_left_alone(file: Path) -> None:
    file.write_text("dear diary\n" * 100)
    before = digest(file)
    with pytest.raises(LedgerError, match="not an SQLite database"):
        open_ledger(file)
    assert digest(file) == before
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_another_programs_database_is_left_alone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as link:
        link.execute("CREATE TABLE bookmarks (url TEXT)")
        link.commit()
    before = digest(file)
    with pytest.raises(LedgerError, match="another program's SQLite database"):
        open_ledger(file)
    assert digest(file) == before


def test_a_newer_ledger_is_left_alone(file: Path) -> None:
    open_ledger(file).close()
    with closing(sqlite3.connect(file)) as link:
        link.execute("PRAGMA user_version = 99")
    before = digest(file)
    with pytest.raises(LedgerError, match=r"newer guestmark \(schema 99") as raised:
        open_ledger(file)
    assert "update guestmark" in raised.value.hint
    assert digest(file) == before


def test_an_empty_file_becomes_a_ledger(file: Path) -> None:
    file.touch()
    with open_ledger(file) as ledger:
        assert ledger.list_runs() == []


def test_a_directory_is_not_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is a directory") as raised:
        open_ledger(tmp_path)
    assert "ledger.sqlite" in raised.value.hint


def test_pipes_devices_and_what_cannot_be_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for bad in (
        tmp_path / "pipe",
        Path("/dev/null"),
        tmp_path / "loop",
        "~no-such-user/x",
        tmp_path / ("x" * 300),
    ):
        with pytest.raises(LedgerError) as raised:
            open_ledger(bad)
        assert raised.value.hint


def test_a_link_is_the_same_ledger(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    with open_ledger(file) as ledger, open_ledger(link) as linked:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id), pytest.raises(LedgerError, match="is being executed"):
            linked.claim_run(run_id).__enter__()


def test_below_a_file_there_is_no_ledger(file: Path) -> None:
    file.write_text("x")
    with pytest.raises(LedgerError, match="Not a directory"):
        open_ledger(file / "ledger.sqlite")


def test_damage_anywhere_is_said_and_never_a_crash(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {"a": 1}, 1)
        for block in range(30):
            ledger.store_trial(run_id, trial(block, INCOMPRESSIBLE[:3000]))
    whole = file.read_bytes()
    assert len(whole) > 50_000
    chance = random.Random(3)
    told = 0
    for number in range(150):
        damaged = bytearray(whole)
        if number % 5 == 0:
            del damaged[chance.randrange(1, len(damaged)) :]
        else:
            at, length = chance.randrange(len(damaged)), chance.choice([1, 40, 5000])
            damaged[at : at + length] = chance.randbytes(len(damaged[at : at + length]))
        for companion in file.parent.iterdir():
            companion.unlink()
        file.write_bytes(damaged)
        error = None
        try:
            with open_ledger(file, busy_timeout_s=0.1) as ledger:
                ledger.list_runs()
                ledger.load_run(run_id)
                ledger.store_trial(run_id, trial(99))
        except LedgerError as raised:
            error = raised
        if error is not None:
            told += 1
            assert error.hint, error.message
            assert str(file) in error.message or run_id in error.message
    assert told > 30  # some damage hits nothing that is read


def test_a_damaged_run_does_not_hide_the_others(file: Path) -> None:
    with open_ledger(file) as ledger:
        bad, good = (ledger.create_run(PLAN, {}, 1) for _ in range(2))
        ledger.store_trial(bad, trial(0))
    with closing(sqlite3.connect(file)) as link:
        link.execute("UPDATE runs SET plan = '{\"name\": 7' WHERE id = ?", (bad,))
        link.execute("UPDATE trials SET console = x'00'")
        link.commit()
    with open_ledger(file) as ledger:
        assert [run.label for run in ledger.list_runs()] == ["(the plan is damaged)", "true"]
        with pytest.raises(LedgerError, match=f"the plan of run {bad}"):
            ledger.load_run(bad)
        assert ledger.load_run(good).plan == PLAN

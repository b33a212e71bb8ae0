"""Ledger files of strangers: opened as data, refused in one line, and their commands not run unasked."""

import hashlib
import os
import shutil
import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guestmark.core.actions import list_actions
from guestmark.core.errors import LedgerError
from guestmark.core.model import RunState
from guestmark.engine.time_estimate import estimate_time
from guestmark.ledger import open_ledger, run_history
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.run_manager import RunManager
from guestmark.report import ratio_history
from tests.framework.command_line import CommandLine
from tests.framework.runs import host_uml_tcg
from tests.unit.stats.test_history import a_run


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """A ledger with one run."""
    file = tmp_path / "stranger.sqlite"
    run = host_uml_tcg(blocks=2)
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(run.plan, run.environment, run.seed)
        for trial in run.trials:
            ledger.store_trial(run_id, trial)
    with closing(sqlite3.connect(file)) as link:
        link.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


def altered(file: Path, script: str) -> None:
    with closing(sqlite3.connect(file)) as link:
        link.executescript(f"PRAGMA writable_schema = ON; {script}")


STRUCTURES = {
    "a view": "ALTER TABLE trials RENAME TO hidden; CREATE VIEW trials AS SELECT * FROM hidden;",
    "a trigger": "CREATE TRIGGER t AFTER UPDATE ON runs BEGIN DELETE FROM trials; END;",
    "a virtual table": "CREATE VIRTUAL TABLE v USING fts5(a);",
    "a computed column": "ALTER TABLE runs ADD COLUMN x GENERATED ALWAYS AS (randomblob(9)) VIRTUAL;",
    "another column": "ALTER TABLE trials ADD COLUMN x;",
    "an index that computes": "CREATE INDEX i ON runs (upper(name));",
    "an index of some rows": "CREATE INDEX i ON trials (block) WHERE block > 1;",
    "no table": "DROP TABLE runs;",
}


def _hot_journal(file: Path, names: Path) -> bytes:
    """Of a writer that died in a transaction over several files, the list of which is said to be in another one."""
    with closing(sqlite3.connect(file)) as link:
        (size,) = link.execute("PRAGMA page_size").fetchone()
    name, magic = os.fsencode(names), bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">5I", 0, 1, file.stat().st_size // size, 512, size)
    last = struct.pack(">I", (1 << 30) // size + 1) + name + struct.pack(">2I", len(name), sum(name))
    return head.ljust(512, b"\0") + last + magic


def test_a_journal_takes_no_file_of_its_users_along(stranger: Path, tmp_path: Path) -> None:
    """SQLite itself removes it, as the example shows."""
    victim, journal = tmp_path / "victim", tmp_path / f"{stranger.name}-journal"
    victim.write_text("precious")
    journal.write_bytes(_hot_journal(stranger, victim))
    for writable in (False, True):
        with pytest.raises(LedgerError, match="names another file"):
            open_ledger(stranger, writable=writable).close()
    assert victim.read_text() == "precious"
    with closing(sqlite3.connect(stranger)) as link:
        link.execute("SELECT count(*) FROM runs").fetchone()
    assert not victim.exists()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-claims"])
def test_what_is_beside_it_is_its_own(stranger: Path, tmp_path: Path, suffix: str, there: bool) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    if not there:
        stranger.unlink()
    for make in (lambda path: path.symlink_to(victim), Path.mkdir, os.mkfifo):
        beside = stranger.with_name(stranger.name + suffix)
        make(beside)
        with pytest.raises(LedgerError, match="not a plain file"):
            open_ledger(stranger).close()
        assert victim.read_text() == "precious"
        beside.rmdir() if beside.is_dir() and not beside.is_symlink() else beside.unlink()


@pytest.mark.parametrize("how", STRUCTURES)
def test_a_file_with_code_in_it_is_refused(stranger: Path, how: str) -> None:
    altered(stranger, STRUCTURES[how])
    for writable in (False, True):
        with pytest.raises(LedgerError) as caught:
            open_ledger(stranger, writable=writable).close()
        assert caught.value.hint


VALUES: dict[str, str] = {
    "runs.created_at": "1e300", "runs.seed": "x'00ff'", "runs.state": "'excellent'", "runs.plan": "17",
    "runs.name": "x'ff'",
    "trials.body": "'[[[['", "trials.console": "'text'", "trials.status": "x'00'",
    "trials.block": "block + 1000000000000",
    "environments.body": "x'00'",
}  # fmt: skip


@pytest.mark.parametrize("column", VALUES)
def test_a_value_of_another_type_is_one_line(stranger: Path, column: str) -> None:
    """Also where its checksums are taken away, as whoever wrote the file can compute them."""
    table, _, name = column.partition(".")
    altered(stranger, f"DELETE FROM checks; UPDATE {table} SET {name} = {VALUES[column]};")
    with open_ledger(stranger, writable=False) as ledger:
        assert len(ledger.list_runs()) == 1
        assert ledger.check_all().problems or column in {"trials.console", "trials.status", "runs.name"}
        if column not in {"trials.console", "trials.status", "runs.name"}:
            with pytest.raises(LedgerError):
                ledger.load_run("last")


DAMAGES = {
    "plan": "UPDATE runs SET plan = '[[' WHERE rowid = 1;",
    "time": "UPDATE runs SET created_at = -1e300 WHERE rowid = 1;",
    "state": "UPDATE runs SET state = 'excellent' WHERE rowid = 1;",
    "seed": "UPDATE runs SET seed = x'00' WHERE rowid = 1;",
    "trials": "UPDATE trials SET body = '[[';",
    "environments": "UPDATE environments SET body = x'00';",
    "odd environments": """UPDATE environments SET body = '{"machine":5,"processor":[1],"versions":{"a":{}}}';""",
    "moments": "UPDATE comparisons SET created_at = '1', typical = 'x', blocks = 'x';",
    "ratios": "UPDATE comparisons SET log_ratio = 'x';",
    "intervals": "UPDATE comparisons SET low = -1e300, high = 1e300;",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_one_damaged_run_is_no_fault_of_the_others(tmp_path: Path, how: str) -> None:
    """Whatever reads earlier runs: judging a new one, its estimate, a series of ratios, the list."""
    file = tmp_path / "ledger.sqlite"
    with open_ledger(file) as ledger:
        a_run(ledger, 2.0)
    altered(file, f"DELETE FROM checks; {DAMAGES[how]}")
    with open_ledger(file) as ledger:
        a_run(ledger, 2.0)
        new = ledger.load_run("last")
        assert run_history.analyse_with_history(ledger, new).cells
        assert estimate_time(new.plan, ledger)
        assert [found.cell for found in ratio_history.follow_ratios(ledger, new, "commit")] == ["uml"]
        assert len(ledger.list_runs()) == 2


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(100, 60_000), st.binary(min_size=1, max_size=24)), min_size=1, max_size=6)
)
def test_pages_of_any_bytes_are_an_error_or_read(stranger: Path, changes: list[tuple[int, bytes]]) -> None:
    copy = stranger.with_name("copy.sqlite")
    data = bytearray(stranger.read_bytes())
    for at, piece in changes:
        data[at % len(data) : at % len(data) + len(piece)] = piece
    copy.write_bytes(data)
    try:
        with open_ledger(copy, writable=False) as ledger:
            ledger.check_all()
            for overview in ledger.list_runs():
                ledger.load_run(overview.id)
    except LedgerError:
        return


@pytest.mark.parametrize("cwd", ["", "/home/a"])
def test_everything_that_a_stranger_s_command_is_given_is_shown(cwd: str) -> None:
    """Variables decide what a name such as `make` runs; those of the reader's own are given by name."""
    run = host_uml_tcg(blocks=1)
    given = {"PATH": "/elsewhere", "LD_PRELOAD": "/elsewhere/lib.so"}
    context = replace(run.plan.context, cwd=cwd, env=given, env_names=("TOKEN",), uid=7, groups=(8, 9))
    shown = dict(list_actions(replace(run.plan, context=context)))
    assert {name: shown[f"env.{name}"] for name in given} == given
    assert shown["your own variables"] == "TOKEN"
    assert (shown["uid"], shown["groups"]) == ("7", "'[8, 9]'")
    assert shown.get("cwd", "") == cwd


def test_a_copy_has_what_was_said_of_its_runs_and_is_never_set_back(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    source, target = tmp_path / "source.sqlite", tmp_path / "target.sqlite"
    run = host_uml_tcg(blocks=4)
    early, late = ([trial for trial in run.trials if (trial.block < 2) is first] for first in (True, False))
    with open_ledger(source) as ledger:
        continued, removed = (ledger.create_run(run.plan, run.environment, run.seed) for _ in range(2))
        for trial in early:
            ledger.store_trial(continued, trial)
        ledger.set_run_state(continued, RunState.INTERRUPTED)
        ledger.annotate_run(continued, Annotations("mine", ("quiet",), {"commit": "1a"}, ("kept",)))
        RunManager(ledger).remove_run(removed)
        said = ledger.read_annotations(continued)
    assert guestmark("ledger", "copy", source, target).status == 0
    with open_ledger(target) as ledger:
        assert replace(ledger.read_annotations(continued), origin=None) == said
        assert [each.id for each in ledger.list_runs()] == [continued]
        for trial in late:
            ledger.store_trial(continued, trial)
        ledger.set_run_state(continued, RunState.COMPLETE)
    assert guestmark("ledger", "copy", source, target).status == 0
    with open_ledger(target) as ledger:
        kept = ledger.load_run(continued)
        assert (kept.state, len(kept.trials)) == (RunState.COMPLETE, len(run.trials))
    with open_ledger(source) as ledger:
        ledger.store_trial(continued, replace(run.trials[0], block=9))
    both = guestmark("ledger", "copy", source, target)
    assert (both.status, "was continued in both ledgers" in both.stderr) == (3, True)


def test_commands_of_a_stranger_are_shown_and_not_run(guestmark: CommandLine, tmp_path: Path) -> None:
    mark = tmp_path / "X"
    made = guestmark("exec", "--on", "host", "-r", "1", "--null", "none", "--", "sh", "-c", f"touch {mark}")
    assert made.status == 0, made.stderr
    shutil.copy(guestmark.ledger, tmp_path / "theirs.sqlite")
    assert guestmark("export", "last", "--bundle", str(tmp_path / "b.html")).status == 0
    digest = hashlib.sha256((tmp_path / "b.html").read_bytes()).hexdigest()
    mark.unlink()
    guestmark.environment["XDG_STATE_HOME"] = str(tmp_path / "another user")
    altered(tmp_path / "theirs.sqlite", "UPDATE runs SET state = 'interrupted';")
    merged = tmp_path / "merged.sqlite"
    for arguments in (
        ("import", str(tmp_path / "b.html")),
        ("ledger", "copy", str(tmp_path / "theirs.sqlite"), str(merged)),
    ):
        target = () if arguments[0] == "ledger" else ("--ledger", str(merged))
        assert guestmark(*arguments, *target).status == 0
        for ledger in (merged, tmp_path / "theirs.sqlite"):
            refused = guestmark("resume", "last", "--blocks", "2", "--ledger", str(ledger))
            assert refused.status == 2, refused.stderr
            assert "add --trust" in refused.stderr
            assert f"touch {mark}" in refused.stderr
            shown = guestmark("show", "last", "--ledger", str(ledger)).stdout
            assert f"touch{mark}" in "".join(shown.split())  # lines are folded
            said = "comes from" if ledger == merged else "is signed by another key than yours"
            assert "".join(said.split()) in "".join(shown.split())
            assert not mark.exists()
            origin = guestmark("export", "last", "--ledger", str(ledger)).stdout
            assert (digest in origin) == (arguments[0] == "import" and ledger == merged)
        os.remove(merged)
    taken = guestmark(
        "resume", "last", "--blocks", "2", "--trust", "--ledger", str(tmp_path / "theirs.sqlite")
    )
    assert taken.status == 0, taken.stderr
    assert f"touch {mark}" in taken.stderr
    assert mark.exists()

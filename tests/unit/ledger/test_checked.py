"""Damage in a ledger is noticed, older ledgers get checksums, and secrets of the environment stay out."""

import lzma
import os
import random
import sqlite3
import stat
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut
from guestmark.ledger import open_ledger
from guestmark.ledger.environment_variables import is_recorded, restore_values, strip_unrecorded
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import host_uml_tcg

OLD = Path(__file__).parents[2] / "ledger_0_1"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    run = host_uml_tcg(blocks=3)
    with open_ledger(path) as opened:
        run_id = opened.create_run(run.plan, {"processor": {"model": "Core 5"}}, run.seed)
        opened.record_left_out(run_id, LeftOut("kvm", "no /dev/kvm", ""))
        for trial in run.trials:
            opened.store_trial(run_id, replace(trial, console="console of the trial\n"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    return path


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(statement).rowcount > 0, statement
        connection.commit()


DAMAGE = {
    "the plan": "update runs set plan = replace(plan, 'sysbench', 'sysbinch')",
    "the record of the environment": "update environments set body = replace(body, 'Core 5', 'Core 6')",
    "the reason why kvm was left out": "update unusable set reason = 'no /dev/kvn'",
    "the trial of cell": "update trials set duration_s = duration_s + 1e-9 where block = 2",
    "trial of cell": "update trials set console = x'00' where block = 1",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_changed_row_is_noticed(ledger: Path, what: str) -> None:
    with open_ledger(ledger, writable=False) as opened:
        opened.load_run("last")
        assert opened.check_all().problems == ()
    change(ledger, DAMAGE[what])
    with open_ledger(ledger, writable=False) as opened:
        assert any(what in problem for problem in opened.check_all().problems)
        with pytest.raises(LedgerError, match=f"{what}.* is damaged"):
            opened.load_run("last")


def test_a_row_that_is_gone_is_noticed(ledger: Path) -> None:
    change(ledger, "delete from trials where block = 2 and cell_id = 'uml'")
    with open_ledger(ledger, writable=False) as opened:
        assert any("trial of cell 'uml' in block 3" in problem for problem in opened.check_all().problems)
        with pytest.raises(LedgerError, match="is missing"):
            opened.load_run("last")


def test_any_bit_of_the_rows_counts(ledger: Path, tmp_path: Path) -> None:
    """Copies with a flipped bit inside the content of rows: none is listed, shown and checked as if nothing was."""
    chance = random.Random(1)
    content = ledger.read_bytes()
    starts = [place for place in range(len(content) - 9) if content.startswith(b'{"', place)]
    assert len(starts) > 5
    for number in range(25):
        damaged = bytearray(content)
        damaged[chance.choice(starts) + chance.randrange(9)] ^= 1 << chance.randrange(8)
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(damaged)
        with open_ledger(copy, writable=False) as opened:
            assert opened.check_all().problems
        if number < 3:
            assert guestmark("show", "last", GUESTMARK_LEDGER=str(copy)).returncode != 0


def test_the_verb_says_what_it_found(ledger: Path) -> None:
    sound = guestmark("runs", "--check", GUESTMARK_LEDGER=str(ledger))
    assert sound.returncode == 0
    assert "every row is as it was stored" in sound.stderr
    change(ledger, DAMAGE["the plan"])
    damaged = guestmark("runs", "--check", GUESTMARK_LEDGER=str(ledger))
    assert damaged.returncode == 1
    assert "the plan of run" in damaged.stdout
    assert "1 problem" in damaged.stderr
    assert "(the plan is damaged)" in guestmark("runs", GUESTMARK_LEDGER=str(ledger)).stdout


@pytest.fixture
def old(tmp_path: Path) -> Path:
    copy = tmp_path / "old.sqlite"
    copy.write_bytes(lzma.decompress((OLD / "ledger.sqlite.xz").read_bytes()))
    return copy


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


def test_an_older_ledger_is_read_without_being_changed(old: Path) -> None:
    before = old.read_bytes()
    with open_ledger(old, writable=False) as opened:
        assert opened.list_runs()
        assert not opened.check_all().checked
    assert old.read_bytes() == before
    assert [path.name for path in old.parent.glob("old.sqlite.schema*")] == []


def test_an_older_ledger_is_brought_up_to_date_when_it_is_written_to(old: Path) -> None:
    before = content(old)
    with open_ledger(old, writable=False) as opened:
        plain = [opened.load_run(run.id) for run in opened.list_runs()]
    for _ in range(2):
        with open_ledger(old) as opened:
            found = opened.check_all()
            assert found.checked
            assert found.problems == ()
            assert found.without_checksum == 0
            for run in plain:
                again = opened.load_run(run.id)
                assert again.trials == run.trials
                assert again.plan.cells == run.plan.cells
    (copy,) = old.parent.glob("old.sqlite.schema-1.*")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert content(copy) == before


def test_values_of_other_variables_are_not_recorded(ledger: Path) -> None:
    run = host_uml_tcg(blocks=1)
    variables = {
        "PATH": "/usr/bin",
        "LC_ALL": "C",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "GUESTMARK_LEDGER": "pg://u:pw@h",
    }
    plan = replace(run.plan, context=replace(run.plan.context, env=variables))
    with open_ledger(ledger) as opened:
        stored = opened.load_run(opened.create_run(plan, {}, 1)).plan
    assert stored.context.env == {"PATH": "/usr/bin", "LC_ALL": "C"}
    assert stored.context.env_names == ("AWS_SECRET_ACCESS_KEY", "GUESTMARK_LEDGER")
    everything = b"".join(path.read_bytes() for path in ledger.parent.glob("ledger.sqlite*"))
    assert b"hunter2" not in everything
    assert b"u:pw@h" not in everything
    again, gone = restore_values(stored, {"AWS_SECRET_ACCESS_KEY": "new"})
    assert again.context.env == {"PATH": "/usr/bin", "LC_ALL": "C", "AWS_SECRET_ACCESS_KEY": "new"}
    assert gone == ["GUESTMARK_LEDGER"]
    assert strip_unrecorded(again.context) == stored.context


def test_commands_get_all_variables_and_the_ledger_does_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    script = '[ "$DEPLOY_TOKEN" = hunter2 ]'
    done = guestmark(
        "exec", "--on", "host", "--blocks", "2", "--quiet", "--", "sh", "-c", script,
        GUESTMARK_LEDGER=str(path), DEPLOY_TOKEN="hunter2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with open_ledger(path, writable=False) as opened:
        (run,) = opened.list_runs()
        assert "DEPLOY_TOKEN" in opened.load_run(run.id).plan.context.env_names
        assert "hunter2" not in opened.load_run(run.id).plan.context.env.values()


@pytest.mark.parametrize(
    "name", ["API_KEY", "MYSQL_PWD", "PATHS", "XPATH", "SSH_AUTH_SOCK", "LC_ALL2", "GITHUB_TOKEN"]
)
def test_names_are_matched_whole(name: str) -> None:
    assert not is_recorded(name)
    assert os.environ.get(name, "") is not None

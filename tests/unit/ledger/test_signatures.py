"""Who vouches for a run: nothing but the user's own guestmark changes it and leaves it the user's own."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import LedgerError
from guestmark.core.model import Cell, LeftOut, RunState
from guestmark.core.platform_spec import HOST
from guestmark.ledger import open_ledger, signing_key
from guestmark.ledger.attempts import TrialAttempts, record_lost_attempts
from guestmark.ledger.bundle import PackedRun, pack_runs, unpack_runs
from guestmark.ledger.model import RunOrigin, SignatureStatus, StoredRatio
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from tests.framework import recorded
from tests.framework.command_line import CommandLine
from tests.framework.marks import long
from tests.framework.runs import EXEC, constructed

SAID = Annotations("before", ("a note", "another"), {"commit": "1a2b"}, ("release",))


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "state" / "guestmark"


def small(**changes: Any) -> Any:
    """A run with one row in every table."""
    cell = Cell("host", replace(EXEC, params={"argv": ["true"]}), HOST, {}, True)
    made = constructed([(cell, 1.0)], blocks=1, **changes)
    trials = tuple(replace(trial, measurements=trial.measurements[:1]) for trial in made.trials)
    return replace(made, plan=replace(made.plan, metrics=made.plan.metrics[:1]), trials=trials)


def stored(ledger: Ledger, origin: RunOrigin | None = None) -> str:
    run = small()
    run_id = RunManager(ledger).import_run(run, replace(SAID, origin=origin))
    assert run_id is not None
    TrialAttempts(ledger, run_id, "here").begin_trial("host", 7, 0)
    compared = StoredRatio(run_id, "host", "a host", "a question", run.created_at, 0.5, 0.4, 0.6, 9, 1.0)
    ledger.store_ratios(run_id, [compared])
    return run_id


# --- any single byte -----------------------------------------------------------------------------------------

_ROWS = ("runs", "environments", "unusable", "trials", "checks", "remarks", "comparisons", "attempts")


def flipped(value: Any) -> Iterator[Any]:
    """The value with each of its bytes changed, as a column of SQLite holds it; of text also what is none."""
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        for at in range(len(data)):
            yield bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]])
    elif isinstance(value, int | float):
        form = "<q" if isinstance(value, int) else "<d"
        data = struct.pack(form, value)
        for at in range(len(data)):
            yield struct.unpack(form, bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]))[0]


def changes(link: sqlite3.Connection) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """A statement that flips one byte, the one that undoes it, and their parameters, for each byte of each row."""
    for table in _ROWS:
        rows = link.execute(f"SELECT rowid, * FROM {table}").fetchall()
        assert rows, table
        names = [column[1] for column in link.execute(f"PRAGMA table_info({table})")]
        for row in rows:
            for name, value in zip(names, row[1:], strict=True):
                cast = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
                script = f"UPDATE {table} SET {name} = {cast} WHERE rowid = ?"
                for other in flipped(value):
                    yield script, name, (other, value, row[0])


@pytest.mark.parametrize("whose", ["mine", long("trusted"), long("theirs")])
def test_a_run_with_any_single_byte_changed_is_distrusted_or_refused(tmp_path: Path, whose: str) -> None:
    """Every byte of every column of every row of it; trusted before and again when it is as it was, or never."""
    file = tmp_path / "ledger.sqlite"
    origin = None if whose == "mine" else RunOrigin("theirs.html", 1.0, "00", trusted=whose == "trusted")
    with open_ledger(file) as ledger:
        run_id = stored(ledger, origin)
        assert trusts(ledger, run_id) == (whose != "theirs")
    tried = 0
    with closing(sqlite3.connect(file, isolation_level=None)) as link, open_ledger(file) as ledger:
        link.execute("PRAGMA synchronous = OFF")
        for script, name, (other, value, row) in list(changes(link)):
            with contextlib.suppress(sqlite3.IntegrityError):
                link.execute(script, (other, row))
                tried += 1
                assert not trusts(ledger, run_id), (script, name, other)
                link.execute(script, (value, row))
        assert trusts(ledger, run_id) == (whose != "theirs")
        assert ledger.check_all().problems == ()
    assert tried > 2000


def trusts(ledger: Ledger, run_id: str) -> bool:
    try:
        origin = ledger.load_run(run_id).origin
    except LedgerError:
        return False
    return origin is None or origin.trusted


@pytest.mark.parametrize("table", _ROWS)
def test_a_row_that_is_gone_or_there_twice_is_noticed(tmp_path: Path, table: str) -> None:
    file = tmp_path / "ledger.sqlite"
    with open_ledger(file) as ledger:
        run_id = stored(ledger)
    with closing(sqlite3.connect(file)) as link:
        (rows,) = link.execute(f"SELECT count(*) FROM {table}").fetchone()
    for number in range(rows):
        copy = tmp_path / f"{number}.sqlite"
        shutil.copy(file, copy)
        with closing(sqlite3.connect(copy)) as link:
            link.execute(
                f"DELETE FROM {table} WHERE rowid = (SELECT rowid FROM {table} LIMIT 1 OFFSET {number})"
            )
            link.commit()
        with open_ledger(copy) as ledger:
            assert not trusts(ledger, run_id)


def test_check_names_what_was_changed(guestmark: CommandLine, tmp_path: Path) -> None:
    made = guestmark("exec", "-q", "-r", "1", "--name", "mine", "--note", "n", "--label", "a=b", "--", "true")
    assert made.status == 0, made.stderr
    assert guestmark("runs", "--check").status == 0
    for script in (
        "UPDATE remarks SET value = 'x' WHERE kind = 'label'",
        "UPDATE remarks SET value = 'x' WHERE kind = 'name'",
        "DELETE FROM remarks WHERE kind = 'note'",
        "UPDATE runs SET owner = 'me'",
    ):
        copy = tmp_path / "copy.sqlite"
        shutil.copy(guestmark.ledger, copy)
        with closing(sqlite3.connect(copy)) as link:
            link.execute(script)
            link.commit()
        found = guestmark("runs", "--check", "--ledger", str(copy))
        assert found.status == 1
        assert "was changed after it had been signed" in found.stdout


# --- what the user's own guestmark does keeps it the user's own -------------------------------------------------


def _again(ledger: Ledger, run_id: str) -> None:
    with contextlib.suppress(LedgerError):
        TrialAttempts(ledger, run_id, "there").begin_trial("host", 7, 0)


def _claim(ledger: Ledger, run_id: str) -> None:
    with ledger.claim_run(run_id):
        pass


MUTATIONS: dict[str, Callable[[Ledger, str], object]] = {
    "add_environment": lambda ledger, run: ledger.add_environment(run, {"machine": "other"}),
    "add_environment_of": lambda ledger, run: ledger.add_environment_of(
        run, {"machine": "m"}, "digest", lambda _: False
    ),
    "append": lambda ledger, run: ledger.store_trial(run, replace(small().trials[0], block=3)),
    "append an attempt": lambda ledger, run: ledger.store_trial(
        run,
        replace(small().trials[0], block=4),
        token=TrialAttempts(ledger, run, "here").begin_trial("host", 4, 0),
    ),
    "lose": lambda ledger, run: record_lost_attempts(ledger, run, "gone"),
    "refuse": _again,
    "record_left_out": lambda ledger, run: ledger.record_left_out(run, LeftOut("kvm", "gone", "")),
    "set_plan": lambda ledger, run: ledger.set_plan(run, replace(small().plan, name="other")),
    "set_run_state": lambda ledger, run: ledger.set_run_state(run, RunState.INTERRUPTED),
    "annotate": lambda ledger, run: ledger.annotate_run(
        run, Annotations("after", ("third",), {"x": "y"}, ("t",))
    ),
    "take_away": lambda ledger, run: ledger.remove_annotations(run, labels=["commit"], tags=["release"]),
    "remember": lambda ledger, run: ledger.store_ratios(run, []),
    "claim": _claim,
    "remove": lambda ledger, run: (RunManager(ledger).remove_run(run), RunManager(ledger).restore_run(run)),
    "compact": lambda ledger, run: ledger.reclaim_space(),
}


@pytest.mark.parametrize("how", MUTATIONS)
def test_every_change_of_ones_own_keeps_a_run_ones_own_and_a_strangers_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Changes by others than the signer do not make a run the changer's own."""
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = stored(ledger)
        assert ledger.load_run(run_id).origin is None
        MUTATIONS[how](ledger, run_id)
        assert ledger.load_run(run_id).origin is None
    for there in (False, True):
        with open_ledger(tmp_path / f"{there}.sqlite") as ledger:
            monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
            run_id = stored(ledger)
            if there:
                monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
            else:
                ledger.run_transaction(
                    "tampering", lambda it: it.exec_driver_sql("UPDATE runs SET owner = 'x'")
                )
            MUTATIONS[how](ledger, run_id)
            origin = ledger.load_run(run_id).origin
            assert origin is not None
            assert not origin.trusted
            assert origin.standing is (SignatureStatus.OTHERS if there else SignatureStatus.CHANGED)


# --- what earlier versions and strangers left ------------------------------------------------------------------


def test_a_mark_of_an_import_that_is_flipped_or_removed_makes_no_run_ones_own(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    mark, bundle = tmp_path / "X", tmp_path / "b.html"
    theirs = CommandLine(tmp_path / "theirs")
    made = theirs("exec", "--on", "host", "-r", "1", "--null", "none", "--", "sh", "-c", f"touch {mark}")
    assert made.status == 0, made.stderr
    assert theirs("export", "last", "--bundle", str(bundle)).status == 0
    mark.unlink()
    assert guestmark("import", str(bundle)).status == 0
    for number, script in enumerate(
        (
            "DELETE FROM remarks WHERE kind = 'imported'",
            "UPDATE remarks SET kind = 'hmported' WHERE kind = 'imported'",
            "UPDATE remarks SET value = replace(value, '\"trusted\": false', '\"trusted\": true')",
            "DELETE FROM remarks",
            "DROP TABLE remarks",
        )
    ):
        copy = tmp_path / f"{number}.sqlite"
        shutil.copy(guestmark.ledger, copy)
        with closing(sqlite3.connect(copy)) as link:
            link.execute(script)
            link.commit()
        (tmp_path / "data" / "guestmark").mkdir(parents=True, exist_ok=True)
        for place in (copy, tmp_path / "data" / "guestmark" / "ledger.sqlite"):
            if place != copy:
                shutil.copy(copy, place)
            guestmark.environment |= {"XDG_DATA_HOME": str(tmp_path / "data"), "GUESTMARK_LEDGER": str(place)}
            refused = guestmark("resume", "last", "--blocks", "2")
            assert refused.status == 2, refused.stderr
            assert f"touch {mark}" in refused.stderr
            assert "--trust" in refused.stderr
            assert not mark.exists()


def test_a_ledger_of_an_earlier_version_is_shown_and_is_ones_own_once_it_is_signed(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    old = recorded.ledger(tmp_path, "0_1")
    guestmark.environment["GUESTMARK_LEDGER"] = str(old)
    shown = guestmark("show", "last")
    assert shown.status == 0
    assert "is not signed" in " ".join(shown.stdout.split())
    asked = guestmark("ledger", "sign")
    assert asked.status == 2
    assert "and this is what it runs" in asked.stderr
    assert guestmark("ledger", "sign", "--trust").status == 0
    assert "is not signed" not in " ".join(guestmark("show", "last").stdout.split())
    assert "is your own" in guestmark("ledger", "sign").stderr
    with open_ledger(old, writable=False) as ledger:
        assert ledger.check_all().problems == ()


def test_what_version_0_3_vouched_for_is_ones_own_until_it_is_changed(
    tmp_path: Path, own_state: Path
) -> None:
    own_state.mkdir(parents=True)
    (own_state / "key").write_bytes(bytes(range(32)))
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = stored(ledger)

        def as_before(connection: Any) -> None:
            row = connection.exec_driver_sql("SELECT id, created_at, seed, plan FROM runs").one()
            hashed = hashlib.blake2b(
                json.dumps(list(row)).encode(), key=bytes(range(32)), digest_size=32
            ).hexdigest()
            connection.exec_driver_sql(
                "UPDATE remarks SET kind = 'made', value = ? WHERE kind = 'signature'", (hashed,)
            )

        ledger.run_transaction("as before", as_before)
        assert ledger.load_run(run_id).origin is None
        ledger.annotate_run(run_id, Annotations(tags=("new",)))
        assert ledger.load_run(run_id).origin is None
        ledger.run_transaction(
            "tampering", lambda it: it.exec_driver_sql("UPDATE runs SET plan = plan || ' '")
        )
        with pytest.raises(LedgerError):
            ledger.load_run(run_id)


def test_a_lost_key_distrusts_and_a_file_that_others_read_is_refused(tmp_path: Path, own_state: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = stored(ledger)
        assert (own_state / "signing-key").stat().st_mode & 0o777 == 0o600
        signing_key._load_own_key.cache_clear()
        (own_state / "signing-key").chmod(0o640)
        with pytest.raises(LedgerError, match="must belong to its user"):
            ledger.load_run(run_id)
        (own_state / "signing-key").unlink()
        origin = ledger.load_run(run_id).origin
        assert origin is not None
        assert origin.standing is SignatureStatus.OTHERS
        ledger.sign_as_own(run_id)
        assert ledger.load_run(run_id).origin is None


@pytest.mark.skipif(os.getuid() != 0, reason="makes another user's directory, which takes root")
def test_a_key_that_root_makes_in_a_users_home_is_the_users(own_state: Path) -> None:
    own_state.mkdir(parents=True)
    os.chown(own_state, 65534, 65534)
    made = signing_key.read_public_key()
    assert (own_state / "signing-key").stat().st_uid == 65534
    signing_key._load_own_key.cache_clear()
    assert signing_key.read_public_key() == made


def test_a_user_who_can_keep_no_key_measures_all_the_same(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    guestmark.environment["XDG_STATE_HOME"] = str(tmp_path / "file")
    made = guestmark("exec", "-r", "2", "--", "true")
    assert made.status == 0, made.stderr
    assert "not signed" not in made.stdout
    assert "another key" in " ".join(guestmark("show", "last").stdout.split())


# --- bundles ---------------------------------------------------------------------------------------------------


def test_a_bundle_names_who_signed_it_and_is_refused_when_it_was_changed() -> None:
    data = pack_runs([PackedRun(small(), NO_ANNOTATIONS)], "<html><body></body></html>")
    (found,) = unpack_runs(data, "b")
    assert found.signer == signing_key.read_public_key()
    head = json.loads(data.decode().partition('id="guestmark-bundle">')[2].partition("</script>")[0])
    for name in ("key", "signature"):
        value = head[name]
        for at in range(len(value)):
            other = chr(ord(value[at]) ^ 1)
            changed = json.dumps({**head, name: value[:at] + other + value[at + 1 :]})
            with pytest.raises(LedgerError):
                unpack_runs(data.replace(json.dumps(head).encode(), changed.encode()), "b")
        alone = {key: value for key, value in head.items() if key != name}
        with pytest.raises(LedgerError):
            unpack_runs(data.replace(json.dumps(head).encode(), json.dumps(alone).encode()), "b")
    unsigned = {key: value for key, value in head.items() if key not in {"key", "signature"}}
    (found,) = unpack_runs(data.replace(json.dumps(head).encode(), json.dumps(unsigned).encode()), "b")
    assert found.signer == ""


def test_an_imported_run_shows_its_signer_and_all_that_it_would_run(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    """Also what comes after 3,000 spaces and 400 empty lines, before trust is asked for."""
    mark, bundle = tmp_path / "X", tmp_path / "b.html"
    script = "echo hello #" + 3000 * " " + 400 * "\n" + f"touch {mark}"
    made = guestmark("exec", "--on", "host", "-r", "1", "--null", "none", "--", "sh", "-c", script)
    assert made.status == 0, made.stderr
    assert guestmark("export", "last", "--bundle", str(bundle)).status == 0
    key = guestmark("ledger", "key").stdout.strip()
    mark.unlink()
    other = CommandLine(tmp_path / "other")
    assert other("import", str(bundle)).status == 0
    refused = other("resume", "last", "--blocks", "2")
    shown = other("show", "last", "--details")
    for said in ("".join(output.split()) for output in (refused.stderr, shown.stdout)):
        assert r"\n\ntouch" in said
        assert 2999 * r"\x20" in said
        assert "401lines)" in said
        assert key in said
    assert refused.status == 2
    assert not mark.exists()
    trusted = CommandLine(tmp_path / "third")
    taken = trusted("import", str(bundle), "--trust")
    assert taken.status == 0
    assert r"\n\ntouch" in taken.stderr
    assert os.path.exists(trusted.ledger)

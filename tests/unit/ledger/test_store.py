"""The ledger on real files: what goes in comes out, and only what belongs in it goes in."""

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.context import Context
from guestmark.core.errors import LedgerError
from guestmark.core.findings import Facts
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Cell, LeftOut, Plan, Policy, RunState, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import HOST, PlatformSpec
from guestmark.ledger import codec, find_default_ledger, open_ledger

WALL = Metric("wall_s", "s")
SPEED = Metric("speed", "events/s", Better.HIGHER)
WORKLOAD = WorkloadSpec("exec", {"argv": ["true"], "metrics": [{"name": "speed", "pattern": "(.*)"}]}, "true")
PLAN = Plan(
    "exec",
    (
        Cell("host", WORKLOAD, HOST, {}, True),
        Cell("tcg memory=1G", WORKLOAD, PlatformSpec.read("tcg"), {"memory": "1G"}),
        Cell("host#2", WORKLOAD, HOST, null_of="host"),
    ),
    Policy(blocks=3, seed=2**40, precision=0.015),
    (WALL, SPEED),
    Context(env={"LC_BYTES": "a\udcffb", "LANG": "C"}, uid=1000, groups=(1, 2)),
)


def trial(block: int = 0, cell: str = "host", **changes: object) -> Trial:
    given: dict[str, object] = {
        "reason": "",
        "measurements": (
            Measurement(WALL, 1.25, (1.0, 1.25, 1.5)),
            Measurement(SPEED, 800.0, (800.0,)),
        ),
        "started_at": 1795296580.123456,
        "duration_s": 3.5,
        "phases": {"ready": 0.75},
        "facts": Facts({"accelerator": "tcg", "sizes": [1, 2], "kvm": None}),
        "noise": {"psi_cpu_some": 0.01, "frequency_mhz": [2250.0, 2250.0]},
        "warnings": ("clocks disagree",),
        "command_line": ("qemu-system-x86_64", "-M", "pc"),
        "console": "Linux version 6.1\r\n\x00\x1b[0m\udcfe panic ü\n" * 50,
    } | changes
    return Trial(cell, block, 0, TrialStatus.OK, **given)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "ledger.sqlite"


def test_what_goes_in_comes_out(file: Path) -> None:
    environment = {"processor": {"count": 2}, "load": [0.5]}
    failed = Trial("tcg memory=1G", 0, 1, TrialStatus.FAILED, "it hung", console="panic")
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, environment, 2**80)
        ledger.store_trial(run_id, failed)
        ledger.store_trial(run_id, trial())
        ledger.record_left_out(run_id, LeftOut("kvm", "no guest gets ready", "use tcg"))
        ledger.record_left_out(run_id, LeftOut("kvm", "still none", "use tcg"))
        ledger.add_environment(run_id, {"load": [9.0]})
        ledger.set_run_state(run_id, RunState.STOPPED)
    with open_ledger(file) as ledger:
        run = ledger.load_run(run_id)
    assert run.plan == PLAN
    assert run.seed == 2**80
    assert run.trials == (trial(), failed)  # by block, then by position
    assert run.environment == environment
    assert run.environments == (environment, {"load": [9.0]})
    assert run.state is RunState.STOPPED
    assert [(left_out.platform, left_out.reason, left_out.hint) for left_out in run.unusable] == [
        ("kvm", "still none", "use tcg")
    ]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.text(st.characters()), values, max_size=4),
    st.text(st.characters(exclude_categories=())),
    st.lists(st.floats(allow_nan=False), max_size=5),
)
def test_every_plan_and_trial_survives_storage_exactly(
    content: dict[str, object], text: str, series: list[float]
) -> None:
    plan = Plan(
        text,
        (Cell(text, WorkloadSpec("exec", content, text), PlatformSpec.read(text), {text: text}),),
        Policy(),
        (),
        Context(cwd=text, notes=(text, text), cost={text: 0.0}, proofs={text: Facts(content)}),
    )
    assert codec.load_json(codec.dump_json(plan), Plan, "plan") == plan
    stored = trial(
        reason=text, console=text, facts=Facts(content), measurements=(Measurement(WALL, 1.0, tuple(series)),)
    )
    assert codec.unpack_trial(*codec.pack_trial(stored), "trial") == stored


def test_values_that_are_not_json_are_stored_rather_than_lost() -> None:
    import numpy as np

    odd = trial(facts=Facts({"size": np.float64(1.5), "path": Path("/dev/kvm"), "array": np.arange(2)}))
    back = codec.unpack_trial(*codec.pack_trial(odd), "trial")
    assert back.facts == Facts({"size": 1.5, "path": "/dev/kvm", "array": [0, 1]})


def test_infinite_raw_values_are_kept() -> None:
    stored = trial(measurements=(Measurement(WALL, float("inf"), (float("inf"), float("-inf"))),))
    assert codec.unpack_trial(*codec.pack_trial(stored), "trial") == stored


def test_run_ids_are_unique_and_found_by_their_ends(file: Path) -> None:
    with open_ledger(file) as ledger:
        ids = [ledger.create_run(PLAN, {}, 1) for _ in range(30)]
        assert len(set(ids)) == 30
        assert ledger.load_run("last").id == ids[-1]
        assert ledger.load_run(ids[3]).id == ids[3]
        endings = [run_id[-3:] for run_id in ids]
        unique = next(ending for ending in endings if endings.count(ending) == 1)
        assert ledger.resolve_run(unique) == ids[endings.index(unique)]
        assert [overview.id for overview in ledger.list_runs()] == ids
        with pytest.raises(LedgerError, match="matches 30 runs"):
            ledger.load_run(ids[0][:4])
        with pytest.raises(LedgerError, match="there is no run") as raised:
            ledger.load_run(ids[0][:-4] + "-!!!")
        assert ids[0][:-4] in raised.value.hint


def test_an_empty_ledger_says_so(file: Path) -> None:
    with open_ledger(file) as ledger:
        assert ledger.list_runs() == []
        with pytest.raises(LedgerError, match="no run 'last'") as raised:
            ledger.load_run("last")
    assert "no runs yet" in raised.value.hint


def test_overview_counts(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        for block in range(3):
            ledger.store_trial(run_id, trial(block))
        ledger.store_trial(run_id, Trial("tcg memory=1G", 2, 1, TrialStatus.FAILED, "x"))
        (overview,) = ledger.list_runs()
    assert (overview.cells, overview.blocks, overview.trials, overview.failed) == (3, 3, 4, 1)
    assert overview.label == "true"
    assert overview.state is RunState.CREATED


def test_a_trial_is_stored_once(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        ledger.store_trial(run_id, trial())
        with pytest.raises(LedgerError, match="cell 'host' in block 1"):
            ledger.store_trial(run_id, trial(reason="another"))
        with pytest.raises(LedgerError, match="not in the ledger"):
            ledger.store_trial("no-such-run", trial())
        with pytest.raises(LedgerError, match="there is no run"):
            ledger.set_run_state("no-such-run", RunState.COMPLETE)
        assert ledger.load_run(run_id).trials == (trial(),)


def test_a_run_that_nobody_executes_was_killed(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            ledger.set_run_state(run_id, RunState.RUNNING)
            assert ledger.load_run(run_id).state is RunState.RUNNING
        assert ledger.load_run(run_id).state is RunState.KILLED
        assert ledger.list_runs()[0].state is RunState.KILLED


def test_a_run_is_claimed_once_but_runs_do_not_disturb_each_other(file: Path) -> None:
    with open_ledger(file) as ledger, open_ledger(file) as other:
        first, second = (ledger.create_run(PLAN, {}, 1) for _ in range(2))
        with ledger.claim_run(first):
            with pytest.raises(LedgerError, match=f"{first} is being executed by process {os.getpid()}"):
                other.claim_run(first).__enter__()
            with other.claim_run(second):
                assert ledger.is_claimed(second)
        assert not ledger.is_claimed(second)
        with other.claim_run(first):
            pass


def test_threads_share_a_ledger(file: Path) -> None:
    with open_ledger(file) as ledger:

        def append_ten(run: str) -> None:
            for block in range(10):
                ledger.store_trial(run, trial(block))

        runs = [ledger.create_run(PLAN, {}, 1) for _ in range(4)]
        threads = [threading.Thread(target=append_ten, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert all(len(ledger.load_run(run).trials) == 10 for run in runs)


def test_nobody_else_can_read_a_ledger(file: Path) -> None:
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in file.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "ledger.sqlite-wal" in modes


def test_where_it_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert find_default_ledger() == tmp_path / "guestmark" / "ledger.sqlite"
    with open_ledger() as ledger:
        assert ledger.where == str(find_default_ledger())
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_default_ledger() == tmp_path / ".local/share/guestmark/ledger.sqlite"


def test_urls_and_odd_paths_are_taken(tmp_path: Path) -> None:
    odd = tmp_path / "a b?c#d%20ü.sqlite"
    with open_ledger(odd) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    with open_ledger(odd, writable=False) as ledger:
        assert ledger.load_run("last").id == run_id
    with open_ledger(f"sqlite:///{tmp_path}/url.sqlite") as ledger:
        ledger.create_run(PLAN, {}, 1)
    assert (tmp_path / "url.sqlite").exists()


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "nosuch://x/y", "mysql+nosuch://u:secret@h/d", "://"]
)
def test_urls_that_cannot_hold_a_ledger(url: str) -> None:
    with pytest.raises(LedgerError) as raised:
        open_ledger(url)
    assert raised.value.hint
    assert "secret" not in str(raised.value)


def test_reading_makes_and_changes_nothing(file: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        open_ledger(file, writable=False)
    assert not file.parent.exists()
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    with open_ledger(file, writable=False) as ledger:
        assert ledger.load_run(run_id).plan == PLAN
        with pytest.raises(LedgerError, match="cannot be written"):
            ledger.store_trial(run_id, trial())


def test_sqlalchemy_comes_only_with_the_first_ledger() -> None:
    import subprocess
    import sys

    code = "import guestmark.ledger, sys; assert not {'sqlalchemy', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "python"}, timeout=60)


def test_durability_settings_are_in_force(file: Path) -> None:
    from guestmark.ledger.connect import connect_ledger

    store = connect_ledger(file, writable=True, busy_timeout_s=1)
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.engine.dispose()
    with closing(sqlite3.connect(file)) as link:
        assert link.execute("PRAGMA application_id").fetchone()[0] == 0x676D726B
        assert link.execute("PRAGMA user_version").fetchone()[0] == 2

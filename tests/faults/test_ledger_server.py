"""A ledger on a real PostgreSQL server that is stopped, killed and started again while it is written."""

from __future__ import annotations

import multiprocessing
import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut, RunState
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import TrialAttempts, count_refused_attempts, record_lost_attempts
from guestmark.ledger.model import StoredRatio
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from tests.framework import at_once
from tests.framework.command_line import CommandLine
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import wait_until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql() as running:
        yield running


def counted(server: Server, run_id: str) -> Counter[tuple[str, int]]:
    with open_ledger(server.url) as ledger:
        return Counter((found.cell_id, found.block) for found in ledger.load_run(run_id).trials)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_restart_loses_and_doubles_nothing(server: Server, number: signal.Signals) -> None:
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            for block in range(5):
                ledger.store_trial(run_id, trial(block))
            server.stop(number)
            again = threading.Timer(0.7, server.start)
            again.start()
            for block in range(5, 10):
                ledger.store_trial(run_id, trial(block))
            again.join()
            with open_ledger(server.url) as other:  # the claim was taken again, too
                assert other.is_claimed(run_id)
            ledger.set_run_state(run_id, RunState.COMPLETE)
        assert not ledger.is_claimed(run_id)
    assert counted(server, run_id) == {("host", block): 1 for block in range(10)}


class Cutting:
    """A server in between that cuts the connection when what has `cut_at` in it has got through, before its answer."""

    def __init__(self, port: int) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cuts = 0
        self.cut_at = b""
        self._target = port
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                upstream = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=self._up, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._down, args=(upstream, client), daemon=True).start()

    def _up(self, client: socket.socket, upstream: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.cut_at and self.cut_at in data:
                    self.cut_at = b""
                    self.cuts += 1
                    with suppress(OSError):
                        client.shutdown(socket.SHUT_RDWR)
                    upstream.sendall(data)
                    time.sleep(0.2)  # the server commits
                    upstream.close()
                    return
                upstream.sendall(data)
        for end in (client, upstream):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _down(upstream: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := upstream.recv(65536):
                client.sendall(data)


def test_a_commit_whose_answer_is_lost_is_not_done_twice(server: Server) -> None:
    with closing(Cutting(server.port)) as between:
        url = server.url.replace(f":{server.port}", f":{between.port}")
        with open_ledger(url) as ledger:
            between.cut_at = b"commit"
            run_id = ledger.create_run(PLAN, {"here": 1}, 1)
            between.cut_at = b'"measurements"'  # in the one statement that stores a trial
            ledger.store_trial(run_id, trial(0))
            between.cut_at = b"commit"
            ledger.add_environment(run_id, {"here": 2})
            with ledger.claim_run(run_id):
                attempts = TrialAttempts(ledger, run_id, "lab1")
                between.cut_at = b"lab1"
                token = attempts.begin_trial("host", 1, 0)
                between.cut_at = b'"measurements"'
                attempts.store_trial(trial(1), token)
            assert between.cuts == 5
            assert count_refused_attempts(ledger, run_id) == 0
            stored = ledger.load_run(run_id)
    assert len(stored.trials) == 2
    assert stored.environments == ({"here": 1}, {"here": 2})
    with open_ledger(server.url) as ledger:
        assert [run.id for run in ledger.list_runs()].count(run_id) == 1


def test_another_attempt_at_a_trial_is_refused(server: Server) -> None:
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        ledger.store_trial(run_id, trial(0))
        second = replace(trial(0), started_at=trial(0).started_at + 1)
        with pytest.raises(LedgerError, match="or the trial already is"):
            ledger.store_trial(run_id, second)
        assert len(ledger.load_run(run_id).trials) == 1


def test_a_claim_that_another_took_meanwhile_is_noticed(server: Server) -> None:
    with open_ledger(server.url) as ledger, open_ledger(server.url) as other:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            ledger.store_trial(run_id, trial(0))
            with other._engine.connect() as connection:
                mine = connection.execute(text("SELECT pg_backend_pid()")).scalar()
                connection.execute(
                    text(
                        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> :mine"
                    ),
                    {"mine": mine},
                )
            assert wait_until(lambda: not other.is_claimed(run_id), 5)
            with (
                other.claim_run(run_id),
                pytest.raises(LedgerError, match="claimed by another process while"),
            ):
                ledger.store_trial(run_id, trial(1))
            ledger.store_trial(run_id, trial(1))  # and it can be had again when that one has gone


def test_patience_ends(server: Server) -> None:
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        said: list[str] = []
        ledger.patience.patience_s, ledger.patience.notice = 0.5, said.append
        server.stop()
        try:
            with pytest.raises(LedgerError, match="failed while storing the trial"):
                ledger.store_trial(run_id, trial(0))
        finally:
            server.start()


def test_a_whole_run_survives_a_crash_of_the_server(server: Server, guestmark: CommandLine) -> None:
    guestmark.environment["GUESTMARK_LEDGER"] = server.url
    with open_ledger(server.url) as ledger:
        before = {run.id for run in ledger.list_runs()}
        process = guestmark.start(
            "exec", "--blocks", 4, "--warmup", 0, "--iterations", 1, "--", "sleep", "0.2"
        )

        def stored() -> int:
            return sum(run.trials for run in ledger.list_runs() if run.id not in before)

        assert wait_until(lambda: stored() >= 2, 30)
        server.stop(signal.SIGKILL)
        time.sleep(0.5)
        server.start()
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr.decode()
        assert b"Traceback" not in stderr
        (run,) = [run for run in ledger.list_runs() if run.id not in before]
        assert (run.state, run.trials, run.failed) == (RunState.COMPLETE, 4, 0)


def _write(url: str, run_id: str, cell: str, blocks: int, ready: Barrier) -> None:
    with open_ledger(url) as ledger:
        ready.wait(30)
        for block in range(blocks):
            ledger.store_trial(run_id, replace(trial(block), cell_id=cell))


def test_eight_writers_and_a_server_that_crashes(server: Server) -> None:
    """Each in a process of its own, into one run; the server is killed while they write."""
    blocks, writers = 30, 8
    cells = tuple(replace(PLAN.cells[0], id=f"cell {number}") for number in range(writers))
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(replace(PLAN, cells=cells), {}, 1)
    ready = multiprocessing.Barrier(writers + 1)
    fork = multiprocessing.get_context("fork")
    running = [
        fork.Process(target=_write, args=(server.url, run_id, f"cell {number}", blocks, ready))
        for number in range(writers)
    ]
    for process in running:
        process.start()
    ready.wait(30)
    choose = random.Random(7)
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGKILL):
        time.sleep(choose.uniform(0.05, 0.3))
        server.stop(number)
        time.sleep(0.2)
        server.start()
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    assert counted(server, run_id) == {
        (f"cell {number}", block): 1 for number in range(writers) for block in range(blocks)
    }
    with open_ledger(server.url) as ledger:
        assert not ledger.check_all().problems


def test_a_role_can_measure_and_cannot_change_trials(server: Server, guestmark: CommandLine) -> None:
    script = guestmark("ledger", "role", "bench'er").stdout
    where = ("-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres", "postgres")
    psql = ["psql", "-q", "-v", "ON_ERROR_STOP=1", *where]
    for _ in range(2):  # it may be run again
        subprocess.run(psql, input=script.encode(), check=True, capture_output=True)
    url = server.url.replace("postgres@", "bench%27er@")
    guestmark.environment["GUESTMARK_LEDGER"] = url
    done = guestmark("exec", "--blocks", 3, "--warmup", 0, "--iterations", 1, "--", "true")
    assert done.status == 0, done.stderr
    refused = ("DELETE FROM trials", "UPDATE trials SET status = 'ok'", "DELETE FROM runs", "DROP TABLE runs")
    with open_ledger(url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):  # as the machines of a fleet do
            attempts = TrialAttempts(ledger, run_id, "lab1")
            attempts.store_trial(trial(0), attempts.begin_trial("host", 0, 0))
            with pytest.raises(LedgerError, match="it had already begun"):
                attempts.begin_trial("host", 0, 0)
        for statement in refused:
            with (
                pytest.raises(DBAPIError, match=r"permission denied|must be owner"),
                ledger._engine.begin() as link,
            ):
                link.execute(text(statement))


def test_runs_are_copied_between_ledgers(server: Server, tmp_path: Path, guestmark: CommandLine) -> None:
    file = tmp_path / "here.sqlite"
    with open_ledger(file) as ledger:
        run_id = ledger.create_run(PLAN, {"here": 1}, 1)
        ledger.store_trial(run_id, trial(0, "console"))
        first = guestmark("ledger", "copy", file, server.url)
        assert "1 run with 1 trials copied" in first.stderr
        assert guestmark("ledger", "copy", file, server.url).stderr.endswith("1 were there already\n")
        ledger.store_trial(run_id, trial(1))  # it has gone on
        ledger.set_run_state(run_id, RunState.COMPLETE)
        # Of what its own user has made, nothing need be trusted; here another process made it.
        assert "with 1 trials copied" in guestmark("ledger", "copy", "--trust", file, server.url).stderr
        stored = ledger.load_run(run_id)
    with open_ledger(server.url) as ledger:
        assert replace(ledger.load_run(run_id), origin=None) == stored
    assert guestmark("ledger", "copy", server.url, tmp_path / "back.sqlite").status == 0
    with open_ledger(tmp_path / "back.sqlite") as ledger:
        assert replace(ledger.load_run(run_id), origin=None) == stored
        assert not ledger.check_all().problems


def test_copying_to_itself_is_refused(tmp_path: Path, guestmark: CommandLine) -> None:
    with open_ledger(tmp_path / "a.sqlite"):
        pass
    done = guestmark("ledger", "copy", tmp_path / "a.sqlite", tmp_path / "a.sqlite")
    assert (done.status, "are the same ledger" in done.stderr) == (2, True)
    assert guestmark("ledger", "copy", "one").status == 2
    assert "did you mean 'copy'" in guestmark("ledger", "cpy").stderr


def test_what_is_sent_again_and_again_is_prepared_once(server: Server) -> None:
    """Fails when the bundled driver no longer has what `ledger.postgres` builds on: each trial would take three times
    as long."""
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            attempts = TrialAttempts(ledger, run_id, "lab1")
            for block in range(4):
                made = trial(block)
                ledger.store_trial(run_id, made, token=attempts.begin_trial(made.cell_id, block, made.order))
            seen = text("SELECT generic_plans + custom_plans FROM pg_prepared_statements")
            assert list(ledger._claims[-1].get_current_session().execute(seen).scalars()).count(4) == 2


def test_a_claim_keeps_no_transaction_open(server: Server) -> None:
    """A transaction that is open for a whole run keeps the server from cleaning up, and may be ended by it."""
    with open_ledger(server.url) as ledger, open_ledger(server.url) as other:
        run_id = ledger.create_run(PLAN, {}, 1)
        with ledger.claim_run(run_id):
            ledger.store_trial(run_id, trial(0))
            with other._engine.connect() as connection:
                found = connection.execute(
                    text("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")
                )
                assert found.scalar() == 0


def test_machines_that_begin_at_once_make_one_table(server: Server) -> None:
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        TrialAttempts(ledger, run_id, "lab")
        with ledger._engine.begin() as link:
            link.execute(text("DROP TABLE attempts"))
    ready = threading.Barrier(8)

    def begin() -> None:
        with open_ledger(server.url) as own:
            ready.wait(20)
            TrialAttempts(own, run_id, "lab")

    assert at_once.failures(begin, 8) == []


def _remove_or_restore(ledger: Ledger, run_id: str, turn: int) -> None:
    runs = RunManager(ledger)
    try:
        (runs.restore_run if turn % 2 else runs.remove_run)(run_id)
    except LedgerError as error:
        if error.__cause__ is not None:  # otherwise another process was first
            raise


RATIO = StoredRatio("", "host", "digest", "what", 0.0, 0.5, low=0.4, high=0.6, blocks=6, typical=1.0)
# What several processes do to one run at once, such as those that measure its blocks.
CHANGES: dict[str, Callable[[Ledger, str, int], object]] = {
    "environment": lambda ledger, run_id, turn: ledger.add_environment(run_id, {"turn": turn}),
    "machine": lambda ledger, run_id, turn: ledger.add_environment_of(
        run_id, {"machine": "lab"}, f"digest {turn}", bool
    ),
    "left out": lambda ledger, run_id, turn: ledger.record_left_out(run_id, LeftOut("host", f"turn {turn}")),
    "annotations": lambda ledger, run_id, turn: ledger.annotate_run(
        run_id, Annotations(notes=(f"turn {turn}",), labels={"turn": str(turn)}, tags=("same",))
    ),
    "ratios": lambda ledger, run_id, turn: ledger.store_ratios(run_id, [replace(RATIO, run_id=run_id)]),
    "removed": _remove_or_restore,
    "lost": lambda ledger, run_id, turn: record_lost_attempts(ledger, run_id, "gone", block=turn),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_processes_that_change_a_run_at_once_wait_for_each_other(server: Server, kind: str) -> None:
    turns = 12
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        attempts = TrialAttempts(ledger, run_id, "lab")
        for block in range(turns):
            attempts.begin_trial("host", block, 0)
    ready = threading.Barrier(6)

    def change() -> None:
        with open_ledger(server.url) as own:
            for turn in range(turns):
                ready.wait(20)
                CHANGES[kind](own, run_id, turn)

    assert at_once.failures(change, 6) == []
    with open_ledger(server.url) as ledger:  # whose checksums fit
        ledger.load_run(run_id)

"""Attempts at trials: which machine began which trial, and how it ended.

If several machines work on one ledger through an engine, each trial is recorded here before its machine is started, by
an insertion that succeeds only once. So a task that the engine repeats is refused, a worker that was given up cannot
store its measurements, and the trials that never ended are known.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from sqlalchemy import ColumnElement, case, insert, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection
from sqlalchemy.sql.selectable import TypedReturnsRows

from guestmark.core.cause import Cause
from guestmark.core.errors import TakenError
from guestmark.core.findings import Facts, MeasuredOn, add_fact
from guestmark.core.model import Trial, TrialStatus
from guestmark.ledger import checksums, codec, schema, signatures
from guestmark.ledger.rows import BEGUN, LOST, STORED, load_postgresql_dialect
from guestmark.ledger.run_annotations import IMPORTED, LABEL
from guestmark.ledger.schema import attempts as table
from guestmark.ledger.schema import remarks as said
from guestmark.ledger.store import Ledger


class TrialAttempts:
    """The attempts of one worker, on the machine of this name, at trials of one run. Raises `LedgerError`."""

    def __init__(self, ledger: Ledger, run_id: str, machine: str) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._machine = machine
        if not ledger.has_table(table):
            ledger.run_transaction(f"preparing the attempts of run {run_id}", _make_table)

    def begin_trial(self, cell_id: str, block: int, order: int) -> str:
        """Begin a trial and return the attempt's token. Raises `TakenError` if the trial was begun before."""
        token = secrets.token_hex(16)
        values = {
            "run_id": self._run_id,
            "block": block,
            "cell_id": cell_id,
            "position": order,
            "token": token,
        }
        values |= {"machine": self._machine, "begun_at": time.time(), "outcome": BEGUN, "refused": 0}
        doing = f"beginning the trial of cell {cell_id!r} in block {block + 1} of run {self._run_id}"
        if self._ledger.is_file:
            kept = self._ledger.change_run(
                doing,
                self._run_id,
                lambda made: made.execute(_make_insert_statement(sqlite), values).scalar_one(),
            )
        else:
            statement = _make_insert_statement(load_postgresql_dialect())
            (kept,) = self._ledger.execute_autocommit(doing, statement, values)
        if kept != token:
            raise TakenError(
                f"failed while {doing}: it had already begun",
                hint="a trial runs once; a later block replaces a lost one",
            )
        return token

    def store_trial(self, trial: Trial, token: str) -> None:
        """Store a trial whose attempt is still in force. Raises `TakenError` if it was recorded as lost."""
        self._ledger.store_trial(self._run_id, trial, token=token)


def record_lost_attempts(ledger: Ledger, run_id: str, reason: str, *, block: int | None = None) -> int:
    """Record every attempt of the run, or of a block, that has not ended as a lost trial; return how many."""

    def store(connection: Connection) -> int:
        if not schema.has_table(connection, table):
            return 0
        pending = [table.c.run_id == run_id, table.c.outcome == BEGUN]
        if block is not None:
            pending.append(table.c.block == block)
        lost = 0
        for row in connection.execute(select(table).where(*pending)).all():
            key = _match_attempt(run_id, row.block, row.cell_id)
            there = schema.trials.c.block == row.block, schema.trials.c.cell_id == row.cell_id
            measured = select(schema.trials.c.block).where(schema.trials.c.run_id == run_id, *there)
            # A run that was resumed as a whole measured the trial without an attempt.
            is_there = connection.execute(measured).first() is not None
            outcome = STORED if is_there else LOST
            changed = update(table).where(*key, table.c.outcome == BEGUN).values(outcome=outcome)
            if connection.execute(changed).rowcount != 1 or is_there:
                # Or the attempt has ended since it was read.
                continue
            trial = Trial(
                row.cell_id,
                row.block,
                row.position,
                TrialStatus.LOST,
                f"{row.machine}: {reason}",
                started_at=row.begun_at,
                cause=Cause.LOST,
                facts=add_fact(Facts(), MeasuredOn(machine=row.machine)),
            )
            connection.execute(insert(schema.trials).values(run_id=run_id, **codec.make_trial_row(trial)))
            checksums.store_checksums(connection, schema.trials, run_id, *there)
            lost += 1
        return lost

    # Usually there are none, and reading is cheaper than a transaction that writes.
    if not find_pending_runs(ledger, [run_id], block=block):
        return 0
    return ledger.change_run(f"recording the lost trials of run {run_id}", run_id, store)


def find_pending_runs(ledger: Ledger, run_ids: Collection[str], *, block: int | None = None) -> set[str]:
    """Return the runs with an attempt that has not ended, in the `block` if one is given."""
    with ledger.read_transaction("looking for attempts that have not ended") as connection:
        if not schema.has_table(connection, table):
            return set()
        wanted = select(table.c.run_id).where(table.c.run_id.in_(run_ids), table.c.outcome == BEGUN)
        if block is not None:
            wanted = wanted.where(table.c.block == block)
        return set(connection.execute(wanted.distinct()).scalars())


def count_refused_attempts(ledger: Ledger, run_id: str) -> int:
    """Return how many attempts of a run were refused, as their trials had been begun before."""

    def count(connection: Connection) -> int:
        if not schema.has_table(connection, table):
            return 0
        return sum(connection.execute(select(table.c.refused).where(table.c.run_id == run_id)).scalars())

    return ledger.run_transaction(f"reading the attempts of run {run_id}", count)


def find_runs_with_labels(ledger: Ledger, labels: Mapping[str, str]) -> list[str]:
    """Return the ids of the runs that have all of these labels, oldest first, without reading any run."""

    def find(connection: Connection) -> list[str]:
        if not schema.has_table(connection, said):
            return []
        found: set[str] | None = None
        for key, value in labels.items():
            these = said.c.kind == LABEL, said.c.key == key, said.c.value == value
            ids = set(connection.execute(select(said.c.run_id).where(*these)).scalars())
            if found is not None:
                ids &= found
            found = ids
        # Labels of imported runs are another user's, and must not make a fleet use such a run.
        elsewhere = connection.execute(select(said.c.run_id).where(said.c.kind == IMPORTED)).scalars()
        mine = sorted((found or set()) - set(elsewhere))
        if not signatures.signs_all_rows(connection):
            return mine
        return [run_id for run_id in mine if signatures.is_own(connection, run_id)]

    return ledger.run_transaction("looking for runs by their labels", find)


def _match_attempt(run_id: str, block: int, cell_id: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.run_id == run_id, table.c.block == block, table.c.cell_id == cell_id


@functools.cache
def _make_insert_statement(dialect: ModuleType) -> TypedReturnsRows[Any]:
    """Return a statement that adds an attempt if there is none, else counts a refusal; it returns the stored token.

    The same token again means that the connection was lost just after the attempt had been stored.
    """
    added = dialect.insert(table)
    another = case((table.c.token == added.excluded.token, 0), else_=1)
    made: TypedReturnsRows[Any] = added.on_conflict_do_update(
        index_elements=list(table.primary_key), set_={"refused": table.c.refused + another}
    ).returning(table.c.token)
    return made


def _make_table(connection: Connection) -> None:
    table.create(connection, checkfirst=True)

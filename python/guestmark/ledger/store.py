"""The ledger: runs, their trials, and who executes them."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import DBAPIError, IntegrityError

from guestmark.core.errors import LedgerError
from guestmark.core.model import LeftOut, Plan, RunState, Trial
from guestmark.ledger import checksums, codec, comparisons, remarks, schema
from guestmark.ledger import claim as claims
from guestmark.ledger.connect import WRITING, Store
from guestmark.ledger.faults import explained
from guestmark.ledger.model import Check, Compared, RunOverview, StoredRun
from guestmark.ledger.naming import missing, resolve
from guestmark.ledger.overviews import overviews
from guestmark.ledger.remarks import NOTHING, Remarks
from guestmark.ledger.upgrade import has_checks
from guestmark.ledger.variables import recorded

_CELL = "cell:"  # before the id of a cell among the names of what is left out

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no characters that look alike


class Ledger:
    """Runs and trials in one database. Every write is durable when the call returns. Raises `LedgerError`
    only.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._engine = store.engine
        self.where = store.where  # path, or URL without its password

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the database; may be called again."""
        self._engine.dispose()

    @contextmanager
    def writing(self, doing: str) -> Iterator[Connection]:
        """A transaction for the modules of this package; `doing` is what errors say failed."""
        with self._writing(doing) as connection:
            yield connection

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with (
            explained(self.where, doing),
            self._engine.execution_options(**{WRITING: True}).begin() as connection,
        ):
            yield connection

    @contextmanager
    def _reading(self, doing: str) -> Iterator[Connection]:
        with explained(self.where, doing), self._engine.begin() as connection:
            yield connection

    # --- writing --------------------------------------------------------------------------------------------

    def create_run(self, plan: Plan, environment: Mapping[str, Any], seed: int) -> str:
        """Stores a new run and returns its id: UTC time and three random letters, so ids sort by age."""
        values = {
            "name": plan.name,
            "created_at": time.time(),
            "seed": str(seed),
            "state": RunState.CREATED.value,
            "owner": "",
            "plan": codec.dump(replace(plan, context=recorded(plan.context))),
        }
        for _ in range(20):
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(values["created_at"]))  # type: ignore[arg-type]
            run_id = f"{stamp}-{''.join(secrets.choice(_LETTERS) for _ in range(3))}"
            with self._writing("storing a new run") as connection:
                taken = select(schema.runs.c.id).where(schema.runs.c.id == run_id)
                if connection.execute(taken).first() is not None:
                    continue
                connection.execute(insert(schema.runs).values(id=run_id, **values))
                checksums.store(connection, schema.runs, run_id)
                _add_environment(connection, run_id, environment)
            return run_id
        raise LedgerError("no free run id was found", hint="check that the system's clock is running")

    def add_environment(self, run_id: str, environment: Mapping[str, Any]) -> None:
        """Records the environment anew, when a run is resumed: it may be another kernel or another
        load now.
        """
        with self._writing(f"recording the environment of run {run_id}") as connection:
            _add_environment(connection, run_id, environment)

    def append(self, run_id: str, trial: Trial) -> None:
        """Stores a trial, completely or not at all; it is on the disk when this returns.

        Raises `LedgerError` naming the trial when it cannot be stored or its cell already has one in this
        block.
        """
        doing = f"storing the trial of cell {trial.cell_id!r} in block {trial.block + 1} of run {run_id}"
        with self._writing(doing) as connection:
            try:
                connection.execute(insert(schema.trials).values(run_id=run_id, **codec.trial_row(trial)))
                here = schema.trials.c.block == trial.block, schema.trials.c.cell_id == trial.cell_id
                checksums.store(connection, schema.trials, run_id, *here)
            except IntegrityError as error:
                raise LedgerError(
                    f"failed while {doing}: the run is not in the ledger, or the trial already is",
                    hint="stop one of them if two guestmarks are executing the same run",
                ) from error

    def record_left_out(self, run_id: str, entry: LeftOut) -> None:
        """Records what cannot be measured here; a later record of the same replaces it."""
        table = schema.unusable
        name = f"{_CELL}{entry.cell}" if entry.cell else entry.platform
        with self._writing(f"recording that {entry.name} is unusable in run {run_id}") as connection:
            connection.execute(delete(table).where(table.c.run_id == run_id, table.c.platform == name))
            connection.execute(
                insert(table).values(run_id=run_id, platform=name, reason=entry.reason, hint=entry.hint)
            )
            checksums.store(connection, table, run_id, table.c.platform == name)

    def set_plan(self, run_id: str, plan: Plan) -> None:
        """Stores the plan anew, when a run is told to go on for longer than it was made for."""
        kept = codec.dump(replace(plan, context=recorded(plan.context)))
        statement = update(schema.runs).where(schema.runs.c.id == run_id).values(plan=kept)
        with self._writing(f"storing the plan of run {run_id}") as connection:
            if connection.execute(statement).rowcount == 0:
                raise self._missing(connection, run_id)
            checksums.store(connection, schema.runs, run_id)

    def set_run_state(self, run_id: str, state: RunState) -> None:
        """Stores the state of the run."""
        statement = update(schema.runs).where(schema.runs.c.id == run_id).values(state=RunState(state).value)
        with self._writing(f"storing that run {run_id} is {state}") as connection:
            if connection.execute(statement).rowcount == 0:
                raise self._missing(connection, run_id)

    def annotate(self, wanted: str, said: Remarks) -> str:
        """Adds a name, notes, labels and tags to a run, and returns its id; see `remarks.add`."""
        with self._writing(f"remarking run {wanted}") as connection:
            run_id = self._resolve(connection, wanted)
            remarks.add(connection, run_id, said)
        return run_id

    def remember(self, run_id: str, found: Sequence[Compared]) -> None:
        """Stores the ratios that a run found, in place of those it had found before."""
        with self._writing(f"storing what run {run_id} found") as connection:
            comparisons.replace_rows(connection, run_id, found)

    # --- reading --------------------------------------------------------------------------------------------

    def resolve(self, wanted: str) -> str:
        """The full id of the run that `wanted` refers to: an id, its unique beginning or end, or `last`.

        Raises `LedgerError` naming the candidates or the nearest ids.
        """
        with self._reading("looking for a run") as connection:
            return self._resolve(connection, wanted)

    def resolve_removed(self, connection: Connection, wanted: str) -> str:
        """The full id of a run that was removed; see `resolve`."""
        return self._resolve(connection, wanted, removed=True)

    def compact(self) -> None:
        """Gives the room of deleted rows back to the disk; servers do that by themselves."""
        if self._store.file is not None:
            with (
                explained(self.where, "compacting it"),
                closing(sqlite3.connect(self._store.file, isolation_level=None)) as connection,
            ):
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def load_run(self, wanted: str) -> StoredRun:
        """The whole run that `wanted` refers to (see `resolve`)."""
        with self._reading(f"reading run {wanted}") as connection:
            run_id = self._resolve(connection, wanted)
            run = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).one()
            trials = connection.execute(
                select(schema.trials)
                .where(schema.trials.c.run_id == run_id)
                .order_by(schema.trials.c.block, schema.trials.c.position)
            ).all()
            unusable = connection.execute(
                select(schema.unusable)
                .where(schema.unusable.c.run_id == run_id)
                .order_by(schema.unusable.c.platform)
            ).all()
            environments = connection.execute(
                select(schema.environments.c.body)
                .where(schema.environments.c.run_id == run_id)
                .order_by(schema.environments.c.position)
            ).scalars()
            if self._is_checked:
                checksums.verify(connection, run_id)
            plan = codec.load(run.plan, Plan, f"the plan of run {run_id}")
            return StoredRun(
                id=run_id,
                plan=plan,
                environments=tuple(
                    codec.load(body, dict[str, Any], f"the environment of run {run_id}")
                    for body in environments
                ),
                seed=int(run.seed),
                state=self._state(run_id, run.state),
                created_at=run.created_at,
                trials=tuple(_trial(row) for row in trials),
                unusable=tuple(_left_out(row, plan) for row in unusable),
            )

    def check_name(self, name: str) -> None:
        """Raises `LedgerError` when a run has that name."""
        with self._reading("looking for a run's name") as connection:
            remarks.check_free(connection, name)

    def remarks(self, run_id: str) -> Remarks:
        """What people have said of a run."""
        with self._reading(f"reading what is said of run {run_id}") as connection:
            return remarks.of_runs(connection).get(run_id, NOTHING)

    def runs(self, *, removed: bool = False) -> list[RunOverview]:
        """All runs, oldest first, including those whose plan is damaged; or those that were removed."""
        with self._reading("listing the runs") as connection:
            return overviews(connection, self._state, removed=removed, checked=self._is_checked)

    def earlier(
        self, host: str, what: Collection[str], before: float, most: int = comparisons.MOST
    ) -> list[Compared]:
        """What runs of that host, begun before then, found of each of these questions: the newest, oldest first."""
        with self._reading("looking for earlier runs") as connection:
            gone = remarks.removed(connection)
            found = comparisons.earlier(connection, host, what, before, most)
        return [row for row in found if row.run_id not in gone]

    def environments(self, run_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """The environment that each of these runs was last started or resumed in, in this order."""
        table = schema.environments
        statement = (
            select(table.c.run_id, table.c.body).where(table.c.run_id.in_(run_ids)).order_by(table.c.position)
        )
        with self._reading("reading environments") as connection:
            bodies = {row.run_id: row.body for row in connection.execute(statement)}
        return {
            run_id: codec.load(bodies[run_id], dict[str, Any], f"the environment of run {run_id}")
            for run_id in run_ids
            if run_id in bodies
        }

    @functools.cached_property
    def _is_checked(self) -> bool:
        """Whether there are checksums: ledgers of version 0.1 get them when they are next written to."""
        return has_checks(self._engine)

    def check(self) -> Check:
        """Looks at every row of every run, and at the database's own structure."""
        with self._reading("checking the ledger") as connection:
            problems = []
            if self._store.file is not None:
                found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
                problems += [f"the database: {line}" for line in found if line != "ok"]
            runs = list(
                connection.execute(select(schema.runs.c.id).order_by(schema.runs.c.created_at)).scalars()
            )
            if not self._is_checked:
                return Check(len(runs), 0, tuple(problems), checked=False)
            missing = 0
            for run_id in runs:
                try:
                    problems += list(checksums.damage(connection, run_id))
                    missing += checksums.unchecked(connection, run_id)
                except DBAPIError as error:  # bytes that are no text, for one
                    problems.append(f"run {run_id} cannot be read: {error.orig}")
        return Check(len(runs), missing, tuple(problems), checked=True)

    def _state(self, run_id: str, stored: str) -> RunState:
        state = RunState(stored)
        return RunState.KILLED if state is RunState.RUNNING and not self.is_claimed(run_id) else state

    def _resolve(self, connection: Connection, wanted: str, *, removed: bool = False) -> str:
        return resolve(connection, wanted, self.where, removed=removed)

    def _missing(self, connection: Connection, wanted: str) -> LedgerError:
        ids = list(connection.execute(select(schema.runs.c.id)).scalars())
        return missing(wanted, ids, self.where)

    # --- claims ---------------------------------------------------------------------------------------------

    @property
    def _lock_file(self) -> Path | None:
        file = self._store.file
        return None if file is None else file.with_name(file.name + "-claims")

    @contextmanager
    def claim(self, run_id: str) -> Iterator[None]:
        """While inside, this process alone executes the run. A dead owner never blocks.

        Raises `LedgerError` naming the owner when another process has it.
        """
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        with self._claimed(run_id) as held:
            if not held:
                with self._reading("asking who executes a run") as connection:
                    row = connection.execute(
                        select(schema.runs.c.owner).where(schema.runs.c.id == run_id)
                    ).first()
                who = (row.owner if row else "") or "another process"
                raise LedgerError(
                    f"run {run_id} is being executed by {who}",
                    hint="wait for it, or stop that process first",
                )
            with self._writing(f"claiming run {run_id}") as connection:
                connection.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(owner=owner))
            yield

    @contextmanager
    def _claimed(self, run_id: str) -> Iterator[bool]:
        if self._lock_file is not None:
            with claims.file_claim(self._lock_file, run_id, self.where) as held:
                yield held
            return
        with self._reading(f"claiming run {run_id}"):
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            yield claims.server_claim(connection, run_id)
        finally:
            connection.invalidate()  # ends the session, and with it the lock
            connection.close()

    def is_claimed(self, run_id: str) -> bool:
        """Whether some process, this one included, executes the run now."""
        if self._lock_file is not None:
            return claims.is_claimed(self._lock_file, run_id)
        with self._claimed(run_id) as held:
            return not held


def _add_environment(connection: Connection, run_id: str, environment: Mapping[str, Any]) -> None:
    table = schema.environments
    last = connection.execute(select(func.max(table.c.position)).where(table.c.run_id == run_id)).scalar()
    position = 0 if last is None else last + 1
    connection.execute(insert(table).values(run_id=run_id, position=position, body=codec.dump(environment)))
    checksums.store(connection, table, run_id, table.c.position == position)


def _trial(row: Row[Any]) -> Trial:
    what = f"the trial of cell {row.cell_id!r} in block {row.block + 1} of run {row.run_id}"
    return codec.unpack_trial(row.body, row.console, what)


def _left_out(row: Row[Any], plan: Plan) -> LeftOut:
    name = str(row.platform)
    wanted = name.removeprefix(_CELL)
    # Ledgers of version 0.1 hold a cell's id as it is.
    is_cell = name != wanted or all(str(cell.platform) != name for cell in plan.cells)
    cell = next((cell for cell in plan.cells if is_cell and cell.id == wanted), None)
    if cell is None:
        return LeftOut(name, row.reason, row.hint)
    return LeftOut(str(cell.platform), row.reason, row.hint, cell=cell.id)

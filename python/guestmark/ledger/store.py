"""The ledger: runs, their trials, and the claims of processes that execute them."""

from __future__ import annotations

import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from sqlalchemy import Label, Table, insert, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.sql.selectable import TypedReturnsRows

from guestmark.core.errors import LedgerError, TakenError
from guestmark.core.model import LeftOut, Plan, RunState, Trial
from guestmark.ledger import (
    checksums,
    codec,
    copying,
    rows,
    run_annotations,
    run_lookup,
    schema,
    signatures,
    validation,
)
from guestmark.ledger import claim as claims
from guestmark.ledger.connect import OpenedStore, begin_writing
from guestmark.ledger.environment_variables import strip_unrecorded
from guestmark.ledger.error_advice import explain_errors
from guestmark.ledger.model import (
    LedgerCheck,
    RunHead,
    RunOrigin,
    RunOverview,
    SignatureStatus,
    StoredRatio,
    StoredRun,
)
from guestmark.ledger.postgres import Patience, connect_autocommit, is_transient
from guestmark.ledger.rows import (
    PREPARED_OPTIONS,
    add_environment,
    find_environments,
    holds_values,
    load_environment,
    lock_run,
    make_run_row,
    measure_run_size,
    read_last_environments,
    read_left_out,
    read_trial,
    store_left_out,
)
from guestmark.ledger.run_annotations import NO_ANNOTATIONS, Annotations
from guestmark.ledger.validation import ReadBudget

T = TypeVar("T")

# Crockford's base 32: no characters that look alike.
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"


class Ledger:
    """Runs and trials in one database. Every write is durable when the call returns. Raises `LedgerError` only."""

    def __init__(self, store: OpenedStore) -> None:
        self._store = store
        self._engine = store.engine
        self.where = store.where  # path, or URL without its password
        self.patience = Patience()  # with an unreachable server
        self.is_file = store.file is not None
        # Claims in force, which must survive restarts of the server.
        self._claims: list[claims.ServerClaim] = []

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the database; may be called again."""
        self._engine.dispose()

    @contextmanager
    def write_transaction(self, doing: str) -> Iterator[Connection]:
        """Open a transaction for the modules of this package; errors say that `doing` failed.

        This waits for an unreachable server before the transaction, which is not repeated.
        """
        with explain_errors(self.where, doing):
            if not self.is_file:
                self.patience.retry_until_done(self._ping_server, is_transient)
        with (
            explain_errors(self.where, doing),
            begin_writing(self._engine) as connection,
        ):
            yield connection

    def run_transaction(self, doing: str, action: Callable[[Connection], T]) -> T:
        """Run `action` in one transaction.

        While a server is unreachable, this waits and runs the action again, although the transaction may have been
        committed just before the connection was lost: an action must notice what it did before.
        """

        def once() -> T:
            for claim in self._claims:
                claim.ensure_held()
            with begin_writing(self._engine) as connection:
                return action(connection)

        with explain_errors(self.where, doing):
            if self.is_file:
                return once()
            return self.patience.retry_until_done(once, is_transient)

    def change_run(self, doing: str, run_id: str, action: Callable[[Connection], T]) -> T:
        """Run `action`, which changes this run, in one transaction; see `run_transaction`.

        No other process changes the run meanwhile, and a signed run stays signed.
        """

        def change(connection: Connection) -> T:
            lock_run(connection, run_id)
            with signatures.keep_signed(connection, run_id):
                return action(connection)

        return self.run_transaction(doing, change)

    def execute_autocommit(
        self, doing: str, statement: TypedReturnsRows[Any], values: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        """Execute one statement on a server in autocommit mode, and return its only row; see `run_transaction`.

        While a run is claimed the statement is executed in the session that holds the claim. If that session is lost,
        so is the claim, and the statement fails; so the claim need not be checked before.
        """
        tried = False

        def once() -> tuple[Any, ...]:
            nonlocal tried
            for claim in self._claims if tried else self._claims[:-1]:
                claim.ensure_held()
            tried = True
            if self._claims:
                session = self._claims[-1].get_current_session()
                return tuple(session.execute(statement, values, execution_options=PREPARED_OPTIONS).one())
            with connect_autocommit(self._engine) as connection:
                return tuple(connection.execute(statement, values).one())

        with explain_errors(self.where, doing):
            return self.patience.retry_until_done(once, is_transient)

    @contextmanager
    def read_transaction(self, doing: str) -> Iterator[Connection]:
        """Open a connection for statements that change nothing; errors say that `doing` failed."""
        with explain_errors(self.where, doing):
            try:
                if self.is_file:
                    with self._engine.begin() as connection:
                        yield connection
                else:
                    # At the isolation level "read committed" a transaction would change nothing for statements that
                    # only read.
                    if self._claims:
                        yield self.patience.retry_until_done(
                            self._claims[-1].get_verified_session, is_transient
                        )
                        return
                    with self.patience.retry_until_done(self._connect_autocommit, is_transient) as connection:
                        yield connection
            except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                # A file may come from anywhere, and SQLite's columns hold values of any type.
                raise LedgerError(
                    f"the ledger {self.where} has values that guestmark never writes: failed while {doing}",
                    hint="guestmark runs --check lists the damage; restore it from a backup",
                ) from error

    def has_table(self, table: Table) -> bool:
        """Return whether the ledger has a table that is created when first needed."""
        with self.read_transaction(f"looking for {table.name}") as connection:
            return schema.has_table(connection, table)

    def _connect_autocommit(self) -> Connection:
        return connect_autocommit(self._engine)

    def _ping_server(self) -> None:
        # The pool pings the server before it hands out a connection.
        with self._engine.connect():
            pass

    # --- writing --------------------------------------------------------------------------------------------

    def create_run(
        self,
        plan: Plan,
        environment: Mapping[str, Any],
        seed: int,
        *,
        left_out: Sequence[LeftOut] = (),
        said: Annotations = NO_ANNOTATIONS,
    ) -> str:
        """Store a new run and return its id: UTC time and three random letters, so that ids sort by age."""
        created_at = time.time()
        values = make_run_row(plan, created_at=created_at, seed=seed, state=RunState.CREATED)
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(created_at))
        for _ in range(20):
            letters = "".join(secrets.choice(_LETTERS) for _ in range(3))
            run_id = f"{stamp}-{letters}"

            def store(connection: Connection, run_id: str = run_id) -> bool:
                runs = schema.runs
                found = connection.execute(select(runs).where(runs.c.id == run_id)).first()
                # If it is this run, the connection was lost just after it had been stored.
                if found is not None:
                    return holds_values(found, values)
                connection.execute(insert(runs).values(id=run_id, **values))
                checksums.store_checksums(connection, runs, run_id)
                add_environment(connection, run_id, environment)
                for entry in left_out:
                    store_left_out(connection, run_id, entry)
                if said != NO_ANNOTATIONS:
                    run_annotations.add_annotations(connection, run_id, said)
                signatures.sign_run(connection, run_id)
                return True

            if self.run_transaction("storing a new run", store):
                return run_id
        raise LedgerError("no free run id was found", hint="check the system's clock")

    def add_environment(self, run_id: str, environment: Mapping[str, Any]) -> None:
        """Record the environment of a run that is resumed: it may be another kernel or another load now."""
        self.change_run(
            f"recording the environment of run {run_id}",
            run_id,
            lambda connection: add_environment(connection, run_id, environment),
        )

    def add_environment_of(
        self,
        run_id: str,
        environment: Mapping[str, Any],
        digest: str,
        is_alike: Callable[[Mapping[str, Any]], bool],
    ) -> None:
        """Record a machine's environment unless the run has one that `is_alike`.

        An equal `digest` shows that without reading the environments.
        """
        place = str(environment.get("machine", ""))
        with self.read_transaction(f"looking for this machine among those of run {run_id}") as connection:
            if run_annotations.read_machine_digest(connection, run_id, place) == digest:
                return
            known = find_environments(connection, run_id, place)

        def store(connection: Connection) -> None:
            if not any(map(is_alike, known)):
                add_environment(connection, run_id, environment)
            run_annotations.store_machine_digest(connection, run_id, place, digest)

        self.change_run(f"recording the environment of run {run_id}", run_id, store)

    def store_trial(self, run_id: str, trial: Trial, *, token: str | None = None) -> None:
        """Store a trial, completely or not at all; it is on disk when this returns.

        With a `token` it is stored only while its attempt is in force. Raises `LedgerError` naming the trial if it
        cannot be stored or its cell already has one in this block.
        """
        rows.store_trial(self, run_id, trial, token)

    def record_left_out(self, run_id: str, entry: LeftOut) -> None:
        """Record a platform or cell that cannot be measured here; a later record of the same one replaces it."""
        self.change_run(
            f"recording that {entry.name} is unusable in run {run_id}",
            run_id,
            lambda connection: store_left_out(connection, run_id, entry),
        )

    def set_plan(self, run_id: str, plan: Plan) -> None:
        """Replace the plan of a run, for instance when the run is extended."""
        self.change_plan(run_id, lambda _: plan)

    def change_plan(self, run_id: str, changed: Callable[[Plan], Plan]) -> None:
        """Replace the plan as it is stored now by `changed(plan)`; no other process changes it meanwhile."""

        def store(connection: Connection) -> None:
            lock_run(connection, run_id)
            row = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).first()
            if row is None:
                raise run_lookup.make_missing_run_error(connection, run_id, self.where)
            before = codec.load_json(row.plan, Plan, f"the plan of run {run_id}")
            if (plan := changed(before)) is before:
                return
            was_own = signatures.is_own(connection, run_id)
            kept = codec.dump_json(replace(plan, context=strip_unrecorded(plan.context)))
            connection.execute(update(schema.runs).where(schema.runs.c.id == run_id).values(plan=kept))
            checksums.store_checksums(connection, schema.runs, run_id)
            if was_own:
                signatures.sign_run(connection, run_id)

        self.run_transaction(f"storing the plan of run {run_id}", store)

    def set_run_state(self, run_id: str, state: RunState) -> None:
        """Store the state of the run."""
        statement = update(schema.runs).where(schema.runs.c.id == run_id).values(state=RunState(state).value)

        def store(connection: Connection) -> None:
            if connection.execute(statement).rowcount == 0:
                raise run_lookup.make_missing_run_error(connection, run_id, self.where)

        self.change_run(f"storing that run {run_id} is {state}", run_id, store)

    def annotate_run(self, wanted: str, said: Annotations) -> str:
        """Add a name, notes, labels and tags to a run, and return its id; see `run_annotations.add_annotations`."""

        def store(connection: Connection) -> str:
            run_id = run_lookup.resolve_run(connection, wanted, self.where)
            lock_run(connection, run_id)
            with signatures.keep_signed(connection, run_id):
                run_annotations.add_annotations(connection, run_id, said)
            return run_id

        return self.run_transaction(f"annotating run {wanted}", store)

    def remove_annotations(
        self, run_id: str, *, labels: Sequence[str] = (), tags: Sequence[str] = ()
    ) -> None:
        """Remove labels and tags from a run; it need not have them."""
        self.change_run(
            f"annotating run {run_id}",
            run_id,
            lambda connection: run_annotations.remove_annotations(
                connection, run_id, labels=labels, tags=tags
            ),
        )

    def sign_as_own(self, run_id: str) -> None:
        """Sign a run as this user's own, whoever measured it: its annotations and rows as they are now.

        Raises `LedgerError` if its rows are not what was stored.
        """

        def sign(connection: Connection) -> None:
            lock_run(connection, run_id)
            checksums.verify_run(connection, run_id)
            if (origin := run_annotations.read_annotations(connection, run_id).origin) is not None:
                run_annotations.add_annotations(
                    connection, run_id, Annotations(origin=replace(origin, trusted=True))
                )
            signatures.sign_run(connection, run_id)

        self.run_transaction(f"signing run {run_id}", sign)

    def store_ratios(self, run_id: str, found: Sequence[StoredRatio]) -> None:
        """Store the ratios that a run found, in place of those it had found before."""
        self.change_run(
            f"storing the ratios of run {run_id}",
            run_id,
            lambda connection: run_lookup.replace_ratios(connection, run_id, found),
        )

    def copy_to(self, other: Ledger, *, trust: bool = False) -> copying.CopiedRuns:
        """Copy the runs that the `other` ledger does not have; see `copying.copy_runs`.

        Runs that this user did not measure are checked, and stored as imported; with `trust` they may be resumed.
        """
        budget = validation.ReadBudget(
            size=validation.LARGEST_LEDGER, values=validation.MOST_VALUES_OF_LEDGER, seconds=3600.0
        )

        def get_run_origin(run_id: str) -> RunOrigin | None:
            with self.read_transaction(f"reading run {run_id}") as connection:
                row = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).one()
                found = self._find_origin(
                    connection, row, run_annotations.read_annotations(connection, run_id)
                )
                if found is None and not signatures.is_own(connection, run_id):
                    found = RunOrigin(f"the ledger {self.where}")
            if found is None:
                return None
            self.load_run(run_id, budget)
            return replace(found, at=time.time(), trusted=found.trusted or trust)

        return copying.copy_runs(self._store, other._store, get_run_origin)

    # --- reading --------------------------------------------------------------------------------------------

    def resolve_run(self, wanted: str) -> str:
        """Return the full id of the run that `wanted` refers to: an id, its unique beginning or end, or `last`.

        Raises `LedgerError` naming the candidates or the nearest ids.
        """
        with self.read_transaction("looking for a run") as connection:
            return run_lookup.resolve_run(connection, wanted, self.where)

    def resolve_removed(self, connection: Connection, wanted: str) -> str:
        """Return the full id of a run that was removed; see `resolve_run`."""
        return run_lookup.resolve_run(connection, wanted, self.where, removed=True)

    def reclaim_space(self) -> None:
        """Return the space of deleted rows to the filesystem; servers do that by themselves."""
        if self._store.file is not None:
            with (
                explain_errors(self.where, "compacting it"),
                closing(sqlite3.connect(self._store.file, isolation_level=None)) as connection,
            ):
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def load_run(self, wanted: str, budget: ReadBudget | None = None) -> StoredRun:
        """Return the whole run that `wanted` refers to (see `resolve_run`); its cost is charged to the `budget`."""
        with self.read_transaction(f"reading run {wanted}") as connection:
            run, said = self._find_run(connection, wanted)
            run_id = str(run.id)
            if budget is not None:
                budget.charge_amount(measure_run_size(connection, run_id))
            # Checksums are read before the rows: a row that is stored in between then only lacks one. The other way
            # round, it would look as if it were missing.
            known: dict[str, str] | None = None
            if self._has_checksums(connection):
                known = checksums.read_row_checksums(connection, run_id)
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
                select(schema.environments)
                .where(schema.environments.c.run_id == run_id)
                .order_by(schema.environments.c.position)
            ).all()
            if known is not None:
                read = {
                    schema.environments.name: environments,
                    schema.unusable.name: unusable,
                    schema.trials.name: trials,
                }
                checksums.verify_run(connection, run_id, read, known)
            plan = codec.load_json(run.plan, Plan, f"the plan of run {run_id}", budget)
            loaded = StoredRun(
                id=run_id,
                plan=plan,
                environments=tuple(load_environment(row.body, run_id, budget) for row in environments),
                seed=int(run.seed),
                state=self._find_state(run_id, run.state, connection),
                created_at=run.created_at,
                trials=tuple(read_trial(row, budget) for row in trials),
                unusable=tuple(read_left_out(row, plan) for row in unusable),
                origin=self._find_origin(connection, run, said),
            )
        validation.check_run(loaded, foreign=budget is not None)
        return loaded

    def load_head(self, wanted: str) -> RunHead:
        """Return the run that `wanted` refers to without reading any of its trials."""
        left_out = schema.unusable
        with self.read_transaction(f"reading run {wanted}") as connection:
            run, said = self._find_run(connection, wanted)
            run_id = str(run.id)
            rows_out = connection.execute(
                select(left_out, *self._select_digest(connection, left_out))
                .where(left_out.c.run_id == run_id)
                .order_by(left_out.c.platform)
            ).all()
            if self._has_checksums(connection):
                checksums.verify_rows(left_out, run_id, rows_out)
            plan = codec.load_json(run.plan, Plan, f"the plan of run {run_id}")
            unusable = tuple(read_left_out(row, plan) for row in rows_out)
            state, origin = RunState(run.state), self._find_origin(connection, run, said)
        bare = StoredRun(run_id, plan, (), int(run.seed), state, run.created_at, (), unusable, origin)
        validation.check_run(bare, foreign=False)
        return bare.head

    def reload_run(self, known: StoredRun, since: int) -> StoredRun:
        """Return the run as it is now.

        Its blocks before `since` are taken from `known`, as stored trials never change.
        """
        run_id, trials = known.id, schema.trials.c
        with self.read_transaction(f"reading run {run_id}") as connection:
            run = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).first()
            if run is None:
                raise run_lookup.make_missing_run_error(connection, run_id, self.where)
            rows_since = connection.execute(
                select(schema.trials, checksums.select_checksum(schema.trials))
                .where(trials.run_id == run_id, trials.block >= since)
                .order_by(trials.block, trials.position)
            ).all()
            checksums.verify_rows(schema.trials, run_id, rows_since)
            before = tuple(trial for trial in known.trials if trial.block < since)
            return replace(
                known,
                plan=codec.load_json(run.plan, Plan, f"the plan of run {run_id}"),
                state=RunState(run.state),
                trials=before + tuple(read_trial(row) for row in rows_since),
            )

    def _find_run(self, connection: Connection, wanted: str) -> tuple[Row[Any], Annotations]:
        """Return the verified row of the wanted run, and its annotations; a complete id takes one query."""
        run_lookup.check_name(wanted, self.where)
        runs = schema.runs
        statement = select(runs, *self._select_digest(connection, runs))
        run = connection.execute(statement.where(runs.c.id == wanted)).first()
        said = NO_ANNOTATIONS if run is None else run_annotations.read_annotations(connection, wanted)
        if run is None or said.removed is not None:
            run_id = run_lookup.resolve_run(connection, wanted, self.where)
            run = connection.execute(statement.where(runs.c.id == run_id)).one()
            said = run_annotations.read_annotations(connection, run_id)
        if self._has_checksums(connection):
            checksums.verify_rows(runs, str(run.id), [run])
        return run, said

    def _select_digest(self, connection: Connection, table: Table) -> list[Label[Any]]:
        """Return the column to select with rows of the table to verify them; none in a ledger without checksums."""
        if not self._has_checksums(connection):
            return []
        return [checksums.select_checksum(table)]

    def _find_origin(self, connection: Connection, run: Row[Any], remarked: Annotations) -> RunOrigin | None:
        """Return where the run comes from; None if this user measured it. On a server, roles decide who may write."""
        said = remarked.origin
        if not self.is_file:
            return said
        found = signatures.verify_signature(connection, str(run.id))
        if found is SignatureStatus.OWN:
            return said
        return replace(said or RunOrigin(f"the ledger {self.where}"), trusted=False, standing=found)

    def check_name(self, name: str) -> None:
        """Raise `LedgerError` if a run has that name."""
        with self.read_transaction("looking for a run's name") as connection:
            run_annotations.check_name_is_free(connection, name)

    def read_annotations(self, run_id: str) -> Annotations:
        """Return the annotations of a run."""
        with self.read_transaction(f"reading the remarks of run {run_id}") as connection:
            return run_annotations.read_annotations(connection, run_id)

    def list_runs(self, *, removed: bool = False) -> list[RunOverview]:
        """Return all visible runs, oldest first, including those whose plan is damaged; or the `removed` ones."""
        with self.read_transaction("listing the runs") as connection:
            checked = self._has_checksums(connection)
            return run_lookup.list_overviews(connection, self._find_state, removed=removed, checked=checked)

    def find_earlier_ratios(
        self, host: str, what: Collection[str], before: float, most: int = run_lookup.MOST_EARLIER_RUNS
    ) -> list[StoredRatio]:
        """Return the newest ratios that earlier runs of a host found for each question, oldest first."""
        return self._read_visible_ratios(
            lambda connection, gone: run_lookup.find_earlier_ratios(
                connection, host, what, before, most=most, gone=gone
            )
        )

    def read_all_ratios(self) -> list[StoredRatio]:
        """Return all ratios that visible runs found, oldest first."""
        return self._read_visible_ratios(lambda connection, _: run_lookup.read_all_ratios(connection))

    def _read_visible_ratios(
        self, read: Callable[[Connection, Collection[str]], list[StoredRatio]]
    ) -> list[StoredRatio]:
        with self.read_transaction("looking for earlier runs") as connection:
            gone = run_annotations.find_removed_runs(connection)
            found = read(connection, gone)
            said = run_annotations.read_all_annotations(connection)
            named = list(dict.fromkeys(row.run_id for row in found))
            own = signatures.verify_signatures(connection, named) if self.is_file else {}

        def is_ours(run_id: str) -> bool:
            origin = said.get(run_id, NO_ANNOTATIONS).origin
            trusted = origin is None or origin.trusted
            return trusted and own.get(run_id, SignatureStatus.OWN) is SignatureStatus.OWN

        return [row for row in found if row.run_id not in gone and is_ours(row.run_id)]

    def read_last_environments(self, run_ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Return the environment that each of these runs was last started or resumed in, in this order."""
        with self.read_transaction("reading environments") as connection:
            return read_last_environments(connection, run_ids)

    def _has_checksums(self, connection: Connection) -> bool:
        """Return whether the ledger has checksums: one of version 0.1 gets them when it is next written to."""
        return schema.has_table(connection, schema.checks)

    def check_all(self) -> LedgerCheck:
        """Check every row of every run, whether each run can have been measured, and the database's structure."""
        with self.read_transaction("checking the ledger") as connection:
            is_checked = self._has_checksums(connection)
            found = checksums.check_ledger(connection, is_file=self.is_file, is_checked=is_checked)
            gone = run_annotations.find_removed_runs(connection)
            ids = run_lookup.list_run_ids(connection)
        problems, not_own = list(found.problems), 0
        for run_id in ids:
            if run_id in gone or any(run_id in problem for problem in problems):
                continue
            try:
                origin = self.load_run(run_id).origin
            except LedgerError as error:
                problems.append(error.message)
                continue
            standing = SignatureStatus.OWN if origin is None else origin.standing
            not_own += standing in {SignatureStatus.UNSIGNED, SignatureStatus.OTHERS}
            if standing is SignatureStatus.CHANGED:
                problems.append(
                    f"run {run_id} was changed after it had been signed: its rows, names, notes, labels or marks"
                )
        return replace(found, problems=tuple(problems), not_own=not_own)

    def _find_state(self, run_id: str, stored: str, connection: Connection | None = None) -> RunState:
        state = RunState(stored)
        if state is RunState.RUNNING and not self.is_claimed(run_id, connection):
            return RunState.KILLED
        # A process that measures one block does not change the state; only its claim shows that it runs.
        if state in {RunState.CREATED, RunState.INTERRUPTED} and self.is_claimed(run_id, connection):
            return RunState.RUNNING
        return state

    # --- claims ---------------------------------------------------------------------------------------------

    @property
    def _lock_file(self) -> Path | None:
        file = self._store.file
        return None if file is None else file.with_name(file.name + "-claims")

    @contextmanager
    def claim_run(self, run_id: str) -> Iterator[None]:
        """Claim the run for this process inside the block. A dead owner never blocks.

        Raises `TakenError` naming the owner if another process has it.
        """
        owner = f"process {os.getpid()} on {socket.gethostname()}"
        with self._try_claim(run_id) as held:
            if not held:
                with self.read_transaction("asking who executes a run") as connection:
                    row = connection.execute(
                        select(schema.runs.c.owner).where(schema.runs.c.id == run_id)
                    ).first()
                who = (row.owner if row else "") or "another process"
                said = f"run {run_id} is being executed by {who}"
                with self._try_claim(run_id, ()) as shared:
                    if shared:
                        said = f"blocks of run {run_id} are being measured"
                raise TakenError(said, hint="wait for it, or stop that process first")
            statement = update(schema.runs).where(schema.runs.c.id == run_id).values(owner=owner)
            self.change_run(
                f"claiming run {run_id}", run_id, lambda connection: connection.execute(statement)
            )
            yield

    @contextmanager
    def claim_block(self, run_id: str, blocks: Sequence[int]) -> Iterator[int | None]:
        """Claim the first free one of these blocks inside the block, and yield it; None if all are taken.

        Raises `TakenError` if another process executes the run as a whole.
        """
        with self._try_claim(run_id, blocks) as held:
            if not held:
                with self.claim_run(run_id):  # raises, naming the owner
                    pass
            yield held.block

    @contextmanager
    def _try_claim(self, run_id: str, blocks: Sequence[int] | None = None) -> Iterator[claims.HeldClaim]:
        if self._lock_file is not None:
            with claims.hold_claim_in_file(self._lock_file, run_id, self.where, blocks) as held:
                yield held
            return
        claim = claims.ServerClaim(self._engine, run_id, blocks)
        with explain_errors(self.where, f"claiming run {run_id}"):
            held = self.patience.retry_until_done(claim.try_claim, is_transient)
        if claim.is_held:
            self._claims.append(claim)
        try:
            yield held
        except BaseException:
            # The session may be in any state, so it is not used again.
            claim.drop()
            raise
        finally:
            if claim in self._claims:
                self._claims.remove(claim)
            claim.release()

    def is_claimed(self, run_id: str, connection: Connection | None = None) -> bool:
        """Return whether any process, including this one, executes the run now; `connection` is used if given."""
        if self._lock_file is not None:
            return claims.is_claimed_in_file(self._lock_file, run_id)
        if connection is not None:
            return claims.is_claimed_on_server(connection, run_id)
        with self.read_transaction("asking who executes a run") as own:
            return claims.is_claimed_on_server(own, run_id)

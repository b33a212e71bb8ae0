"""Removes, restores and deletes runs, and imports them from elsewhere."""

from __future__ import annotations

import secrets

from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from guestmark.core.errors import LedgerError
from guestmark.core.model import RunState
from guestmark.ledger import checksums, codec, run_annotations, schema, signatures
from guestmark.ledger.model import StoredRun
from guestmark.ledger.rows import add_environment, lock_run, make_run_row, store_left_out
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.schema import comparisons
from guestmark.ledger.store import Ledger

_RUN_TABLES = (schema.checks, schema.trials, schema.unusable, schema.environments)


class RunManager:
    """Operations on whole runs of a ledger. All raise `LedgerError`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def remove_run(self, wanted: str) -> str:
        """Hide a run and return its id; it stays in the ledger until `delete_removed_runs`.

        Raises `LedgerError` for a run that is being executed.
        """
        run_id = self._ledger.resolve_run(wanted)
        if self._ledger.is_claimed(run_id):
            raise LedgerError(f"run {run_id} is being executed", hint="stop it first")
        with self._ledger.write_transaction(f"removing run {run_id}") as connection:
            _set_removed(connection, run_id, hidden=True)
        return run_id

    def restore_run(self, wanted: str) -> str:
        """Restore a run that was removed, and return its id."""
        with self._ledger.write_transaction(f"restoring run {wanted}") as connection:
            run_id = self._ledger.resolve_removed(connection, wanted)
            _set_removed(connection, run_id, hidden=False)
        return run_id

    def delete_removed_runs(self) -> list[str]:
        """Delete the runs that were removed, reclaim their space, and return their ids."""
        with self._ledger.write_transaction("deleting removed runs") as connection:
            gone = sorted(run_annotations.find_removed_runs(connection))
            for run_id in gone:
                _delete_run(connection, run_id)
        self._ledger.reclaim_space()
        return gone

    def import_run(self, run: StoredRun, said: Annotations) -> str | None:
        """Store a run from elsewhere with its annotations and its origin, completely or not at all.

        Return its id, or None if the ledger has it already. If another run has that id, its last letters are replaced.
        """
        state = run.state if run.state not in {RunState.KILLED, RunState.RUNNING} else RunState.INTERRUPTED
        runs = schema.runs
        with self._ledger.write_transaction(f"storing run {run.id}") as connection:
            run_id = run.id
            while found := connection.execute(select(runs).where(runs.c.id == run_id)).first():
                if (found.created_at, found.seed) == (run.created_at, str(run.seed)):
                    return None
                run_id = f"{run.id[:-3]}{secrets.token_hex(2)[:3]}"
            row = make_run_row(run.plan, created_at=run.created_at, seed=run.seed, state=state)
            connection.execute(insert(runs).values(id=run_id, **row))
            for environment in run.environments:
                add_environment(connection, run_id, environment)
            for entry in run.unusable:
                store_left_out(connection, run_id, entry)
            for trial in run.trials:
                connection.execute(insert(schema.trials).values(run_id=run_id, **codec.make_trial_row(trial)))
            for table in (runs, schema.trials):
                checksums.store_checksums(connection, table, run_id)
            run_annotations.annotate_new_run(connection, run_id, said)
            # The signature vouches for the record of the origin, which says that the run is another user's.
            # On a server a signature covers only the plan, and anybody there may delete the record.
            if signatures.signs_all_rows(connection) or said.origin is None or said.origin.trusted:
                signatures.sign_run(connection, run_id)
        return run_id


def _set_removed(connection: Connection, run_id: str, *, hidden: bool) -> None:
    lock_run(connection, run_id)
    with signatures.keep_signed(connection, run_id):
        run_annotations.set_removed(connection, run_id, hidden=hidden)


def _delete_run(connection: Connection, run_id: str) -> None:
    for table in _RUN_TABLES:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    if schema.has_table(connection, schema.attempts):
        connection.execute(delete(schema.attempts).where(schema.attempts.c.run_id == run_id))
    if schema.has_table(connection, comparisons):
        connection.execute(delete(comparisons).where(comparisons.c.run_id == run_id))
    run_annotations.delete_annotations(connection, run_id)
    connection.execute(delete(schema.runs).where(schema.runs.c.id == run_id))

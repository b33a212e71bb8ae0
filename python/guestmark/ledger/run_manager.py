"""Runs as things to handle: put away and brought back, thrown away for good, and taken over from elsewhere."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select

from guestmark.core.errors import LedgerError
from guestmark.core.model import RunState
from guestmark.ledger import checksums, codec, run_annotations, schema, signatures
from guestmark.ledger.rows import add_environment, add_left_out, run_row
from guestmark.ledger.schema import comparisons

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from guestmark.ledger.model import StoredRun
    from guestmark.ledger.run_annotations import Remarks
    from guestmark.ledger.store import Ledger

_OF_A_RUN = (schema.checks, schema.trials, schema.unusable, schema.environments)


class Shelf:
    """Operations on whole runs of a ledger. Raises `LedgerError`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def remove(self, wanted: str) -> str:
        """Puts a run out of sight and returns its id; it stays in the ledger until `vacuum`.

        Raises `LedgerError` for one that is being executed.
        """
        run_id = self._ledger.resolve(wanted)
        if self._ledger.is_claimed(run_id):
            raise LedgerError(f"run {run_id} is being executed", hint="stop it first")
        with (
            self._ledger.writing(f"removing run {run_id}") as connection,
            signatures.kept(connection, run_id),
        ):
            run_annotations.set_removed(connection, run_id, gone=True)
        return run_id

    def restore(self, wanted: str) -> str:
        """Brings back a run that was removed, and returns its id."""
        with self._ledger.writing(f"bringing back run {wanted}") as connection:
            run_id = self._ledger.resolve_removed(connection, wanted)
            with signatures.kept(connection, run_id):
                run_annotations.set_removed(connection, run_id, gone=False)
        return run_id

    def vacuum(self) -> list[str]:
        """Deletes the runs that were removed, gives their room back to the disk, and returns their ids."""
        with self._ledger.writing("deleting removed runs") as connection:
            gone = sorted(run_annotations.removed(connection))
            for run_id in gone:
                _delete(connection, run_id)
        self._ledger.compact()
        return gone

    def add(self, run: StoredRun, said: Remarks) -> str | None:
        """Stores a run from elsewhere with its remarks and its origin, completely or not at all.

        Returns its id, or None when the ledger has it already. An id that another run has is given new letters.
        """
        state = run.state if run.state not in {RunState.KILLED, RunState.RUNNING} else RunState.INTERRUPTED
        runs = schema.runs
        with self._ledger.writing(f"storing run {run.id}") as connection:
            run_id = run.id
            while found := connection.execute(select(runs).where(runs.c.id == run_id)).first():
                if (found.created_at, found.seed) == (run.created_at, str(run.seed)):
                    return None
                run_id = f"{run.id[:-3]}{secrets.token_hex(2)[:3]}"
            row = run_row(run.plan, created_at=run.created_at, seed=run.seed, state=state)
            connection.execute(insert(runs).values(id=run_id, **row))
            for environment in run.environments:
                add_environment(connection, run_id, environment)
            for entry in run.unusable:
                add_left_out(connection, run_id, entry)
            for trial in run.trials:
                connection.execute(insert(schema.trials).values(run_id=run_id, **codec.trial_row(trial)))
            for table in (runs, schema.trials):
                checksums.store(connection, table, run_id)
            taken = {other.name for other in run_annotations.of_runs(connection).values()}
            run_annotations.add(connection, run_id, replace(said, name="") if said.name in taken else said)
            # Of what came from elsewhere the importer's key vouches for the mark that says so.
            signatures.sign(connection, run_id)
        return run_id


def _delete(connection: Connection, run_id: str) -> None:
    for table in _OF_A_RUN:
        connection.execute(delete(table).where(table.c.run_id == run_id))
    if schema.is_made(connection, comparisons):
        connection.execute(delete(comparisons).where(comparisons.c.run_id == run_id))
    run_annotations.forget(connection, run_id)
    connection.execute(delete(schema.runs).where(schema.runs.c.id == run_id))

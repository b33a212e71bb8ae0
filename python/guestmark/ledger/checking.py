"""Looking for damage in a whole ledger."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from guestmark.ledger import checksums, schema
from guestmark.ledger.model import Check


def check(connection: Connection, *, is_file: bool, is_checked: bool) -> Check:
    """Looks at every row of every run, and at the structure of a file."""
    problems = []
    if is_file:
        found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        problems += [f"the database: {line}" for line in found if line != "ok"]
    runs = list(connection.execute(select(schema.runs.c.id).order_by(schema.runs.c.created_at)).scalars())
    if not is_checked:
        return Check(len(runs), 0, tuple(problems), checked=False)
    missing = 0
    for run_id in runs:
        try:
            problems += list(checksums.damage(connection, run_id))
            missing += checksums.unchecked(connection, run_id)
        except DBAPIError as error:  # bytes that are no text, for one
            problems.append(f"run {run_id} cannot be read: {error.orig}")
    return Check(len(runs), missing, tuple(problems), checked=True)

"""Older ledgers, brought up to date in place; what they were stays beside them."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, inspect, select, update
from sqlalchemy.engine import Connection

from guestmark.core.errors import LedgerError
from guestmark.core.model import Plan
from guestmark.ledger import checksums, codec, schema
from guestmark.ledger.variables import recorded


def copied(file: Path, version: int) -> Path:
    """A copy of the ledger as it is now, readable by its owner alone. Raises `sqlite3.Error`, `OSError`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    copy = file.with_name(f"{file.name}.schema-{version}.{stamp}")
    copy.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except BaseException:
        copy.unlink(missing_ok=True)
        raise
    return copy


def upgrade(connection: Connection) -> None:
    """From schema 1 to 2, inside a transaction: rows get checksums, and the values of variables that may be secrets go.

    Plans that are damaged already stay as they are; they get no checksum, which would vouch for them.
    """
    schema.checks.create(connection, checkfirst=True)
    for run in connection.execute(select(schema.runs)).all():
        with suppress(LedgerError):
            plan = codec.load(run.plan, Plan, f"the plan of run {run.id}")
            kept = codec.dump(replace(plan, context=recorded(plan.context)))
            connection.execute(update(schema.runs).where(schema.runs.c.id == run.id).values(plan=kept))
            checksums.store(connection, schema.runs, run.id)
        for table in (schema.environments, schema.unusable, schema.trials):
            checksums.store(connection, table, run.id)


def has_checks(engine: Engine) -> bool:
    """Whether the ledger has been brought up to date."""
    with engine.connect() as connection:
        return bool(inspect(connection).has_table(schema.checks.name))

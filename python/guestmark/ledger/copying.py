"""Runs from one ledger into another: from a file to the server of a lab, or back."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection, Row

from guestmark.core.errors import LedgerError
from guestmark.core.home import default_path, state_directory
from guestmark.ledger import checksums, remarks, schema
from guestmark.ledger.connect import Store, begin_writing
from guestmark.ledger.faults import explained

if TYPE_CHECKING:
    from sqlalchemy import Table

    from guestmark.ledger.model import Origin

_KIND = "made"  # among the remarks of a run
_SIZE = 32  # bytes of a key


def sign(connection: Connection, run_id: str) -> None:
    """Signs the run's plan as it is stored now. Where no key can be kept, the run has no signature."""
    key, table = _key(make=True), schema.remarks
    if key is None:
        return
    row = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).one()
    table.create(connection, checkfirst=True)
    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.kind == _KIND))
    connection.execute(insert(table).values(run_id=run_id, kind=_KIND, key="", value=_signature(key, row)))


def is_own(connection: Connection, file: Path, row: Row[Any]) -> bool:
    """Whether the user of this process made the run of that row of `runs`."""
    table = schema.remarks
    found = None
    if schema.is_made(connection, table):
        statement = select(table.c.value).where(table.c.run_id == row.id, table.c.kind == _KIND)
        found = connection.execute(statement).scalar()
    if found is None:
        return file == default_path().resolve()
    key = _key(make=False)
    return key is not None and hmac.compare_digest(str(found).encode(), _signature(key, row).encode())


def _signature(key: bytes, row: Row[Any]) -> str:
    said = json.dumps([row.id, row.created_at, row.seed, row.plan]).encode()
    return hashlib.blake2b(said, key=key, digest_size=32).hexdigest()


def _key(*, make: bool) -> bytes | None:
    file = state_directory() / "key"
    with contextlib.suppress(OSError):
        if make and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".key.{secrets.token_hex(8)}")
            part.touch(mode=0o600)
            part.write_bytes(secrets.token_bytes(_SIZE))
            with contextlib.suppress(FileExistsError):  # another process was faster
                os.link(part, file)
            part.unlink()
        found = file.read_bytes()
        return found if len(found) == _SIZE else None
    return None


_TABLES: tuple[Table, ...] = (schema.runs, schema.environments, schema.unusable, schema.trials, schema.checks)


@dataclass(frozen=True, slots=True)
class Copied:
    """How many runs and trials were added; how many runs were there already, the same in every bit."""

    runs: int
    trials: int
    there: int


def copy_runs(source: Store, target: Store, origin_of: Callable[[str], Origin | None]) -> Copied:
    """Copies every run that the target does not have, each in one transaction, so that it may be interrupted and
    repeated. One that has gone on since it was copied gets what is missing.

    `origin_of` says where a run of the source comes from, by its id, and raises `LedgerError` for what is no run.
    Raises `LedgerError` for a run that is damaged, and for one that is another one in the target.
    """
    runs = trials = there = 0
    with explained(source.where, "reading its runs"), source.engine.connect() as connection:
        ids = list(
            connection.execute(
                select(schema.runs.c.id).order_by(schema.runs.c.created_at, schema.runs.c.id)
            ).scalars()
        )
    for run_id in ids:
        origin = origin_of(run_id)
        rows = _rows(source, run_id)
        with (
            explained(target.where, f"copying run {run_id}"),
            begin_writing(target.engine) as connection,
        ):
            count = select(func.count()).where(schema.trials.c.run_id == run_id)
            known = int(connection.execute(count).scalar_one())
            before = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).first()
            run = rows[schema.runs.name][0]
            if before is not None and before.created_at != run["created_at"]:
                raise LedgerError(
                    f"run {run_id} is another one in {target.where}",
                    hint="neither was changed; copy into another ledger",
                )
            changed = before is not None and _went_on(connection, before, run)
            added = sum(_added(connection, table, run_id, rows[table.name]) for table in _TABLES)
            checksums.verify(connection, run_id)
            _note_origin(
                connection, run_id, origin, target, is_new=before is None, is_changed=bool(changed or added)
            )
            now = int(connection.execute(count).scalar_one())
        runs += before is None
        there += before is not None and not changed and not added
        trials += now - known
    return Copied(runs, trials, there)


def _note_origin(
    connection: Connection,
    run_id: str,
    origin: Origin | None,
    target: Store,
    *,
    is_new: bool,
    is_changed: bool,
) -> None:
    """Stores where a new run comes from. Raises `LedgerError` where somebody else's would change one that is there."""
    if origin is not None and not origin.trusted and is_changed and not is_new:
        raise LedgerError(
            f"run {run_id} went on in {origin.source}, which is not known to be yours",
            hint="guestmark ledger copy --trust takes it; nothing was changed",
        )
    if origin is not None and is_new:
        remarks.add(connection, run_id, remarks.Remarks(origin=origin))
    elif origin is None and target.file is not None and is_changed:
        sign(connection, run_id)


def _rows(source: Store, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of a run, by table. Raises `LedgerError` when they are not what was stored."""
    found = {}
    with explained(source.where, f"reading run {run_id}"), source.engine.connect() as connection:
        checksums.verify(connection, run_id)
        for table in _TABLES:
            key = table.c.id if table is schema.runs else table.c.run_id
            found[table.name] = [
                dict(row._mapping) for row in connection.execute(select(table).where(key == run_id))
            ]
    return found


def _added(connection: Connection, table: Table, run_id: str, rows: list[dict[str, Any]]) -> int:
    """How many of the rows were not there yet."""
    names = [column.name for column in table.primary_key]
    key = table.c.id if table is schema.runs else table.c.run_id
    columns = [table.c[name] for name in names]
    known = {tuple(row) for row in connection.execute(select(*columns).where(key == run_id))}
    fresh = [row for row in rows if tuple(row[name] for name in names) not in known]
    if fresh:
        connection.execute(insert(table), fresh)
    return len(fresh)


def _went_on(connection: Connection, before: Row[Any], run: dict[str, Any]) -> bool:
    """Whether a run's plan or state has changed since it was copied; they are then as they are now."""
    changing = {name: run[name] for name in ("plan", "state") if getattr(before, name) != run[name]}
    if changing:
        connection.execute(update(schema.runs).where(schema.runs.c.id == run["id"]).values(**changing))
        checksums.store(connection, schema.runs, run["id"])
    return bool(changing)

"""Copies runs from one ledger into another: from a file to the server of a lab, or back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Table, func, insert, select, update
from sqlalchemy.engine import Connection, Row

from guestmark.core.errors import LedgerError
from guestmark.ledger import checksums, run_annotations, schema, signatures
from guestmark.ledger.connect import OpenedStore, begin_writing
from guestmark.ledger.error_advice import explain_errors
from guestmark.ledger.model import RunOrigin
from guestmark.ledger.rows import lock_run

_TABLES: tuple[Table, ...] = (schema.runs, schema.environments, schema.unusable, schema.trials, schema.checks)


@dataclass(frozen=True, slots=True)
class CopiedRuns:
    """How many runs and trials were added, and how many runs were already there, identical."""

    runs: int
    trials: int
    there: int


def copy_runs(
    source: OpenedStore, target: OpenedStore, origin_of: Callable[[str], RunOrigin | None]
) -> CopiedRuns:
    """Copy every run that the target does not have, except removed ones.

    A run that was continued after it was copied gets the missing rows.

    Each run is copied in one transaction, so this may be interrupted and repeated. `origin_of` returns where a run of
    the source comes from, by its id, and raises `LedgerError` for an invalid run. Raises `LedgerError` for a damaged
    run, and for an id that belongs to a different run in the target.
    """
    runs = trials = there = 0
    with explain_errors(source.where, "reading its runs"), source.engine.connect() as connection:
        ids = list(
            connection.execute(
                select(schema.runs.c.id).order_by(schema.runs.c.created_at, schema.runs.c.id)
            ).scalars()
        )
        annotations = run_annotations.read_all_annotations(connection)
        removed = run_annotations.find_removed_runs(connection)
    for run_id in ids:
        if run_id in removed:
            continue
        origin = origin_of(run_id)
        said = annotations.get(run_id, run_annotations.NO_ANNOTATIONS)
        rows = _read_rows(source, run_id)
        with (
            explain_errors(target.where, f"copying run {run_id}"),
            begin_writing(target.engine) as connection,
        ):
            lock_run(connection, run_id)
            count = select(func.count()).where(schema.trials.c.run_id == run_id)
            known = int(connection.execute(count).scalar_one())
            before = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).first()
            run = rows[schema.runs.name][0]
            if before is not None and before.created_at != run["created_at"]:
                raise LedgerError(
                    f"{target.where} has a different run with the id {run_id}",
                    hint="neither was changed; copy into another ledger",
                )
            mine = _read_trial_keys(connection, run_id)
            theirs = {(row["block"], row["cell_id"]) for row in rows[schema.trials.name]}
            if before is not None and mine - theirs:
                if theirs - mine:
                    raise LedgerError(
                        f"run {run_id} was continued in both ledgers",
                        hint="neither was changed; copy into another ledger",
                    )
                # It was continued here, and the source has nothing new.
                there += 1
                continue
            was_own = before is not None and signatures.is_own(connection, run_id)
            changed = before is not None and _update_run(connection, before, run)
            added = sum(_add_missing_rows(connection, table, run_id, rows[table.name]) for table in _TABLES)
            checksums.verify_run(connection, run_id)
            _store_origin(
                connection, run_id, origin, is_new=before is None, is_changed=bool(changed or added)
            )
            if before is None:
                # Its origin was stored above: for this ledger it may be another one.
                run_annotations.annotate_new_run(connection, run_id, replace(said, origin=None))
            if was_own or (before is None and (target.file is not None or origin is None)):
                signatures.sign_run(connection, run_id)
            now = int(connection.execute(count).scalar_one())
        runs += before is None
        there += before is not None and not changed and not added
        trials += now - known
    return CopiedRuns(runs, trials, there)


def _read_trial_keys(connection: Connection, run_id: str) -> set[tuple[int, str]]:
    table = schema.trials.c
    found = connection.execute(select(table.block, table.cell_id).where(table.run_id == run_id))
    return {(row.block, row.cell_id) for row in found}


def _store_origin(
    connection: Connection,
    run_id: str,
    origin: RunOrigin | None,
    *,
    is_new: bool,
    is_changed: bool,
) -> None:
    """Store where a new run comes from. Raises `LedgerError` if another user's copy would change a stored run."""
    if origin is not None and not origin.trusted and is_changed and not is_new:
        raise LedgerError(
            f"run {run_id} was continued in {origin.source}, which is not signed as yours",
            hint="nothing was changed; guestmark ledger copy --trust copies it nevertheless",
        )
    if origin is not None and is_new:
        run_annotations.add_annotations(connection, run_id, run_annotations.Annotations(origin=origin))


def _read_rows(source: OpenedStore, run_id: str) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of a run, by table. Raises `LedgerError` if they are not what was stored."""
    found = {}
    with explain_errors(source.where, f"reading run {run_id}"), source.engine.connect() as connection:
        checksums.verify_run(connection, run_id)
        for table in _TABLES:
            rows = connection.execute(select(table).where(schema.find_run_column(table) == run_id))
            found[table.name] = [dict(row._mapping) for row in rows]
    return found


def _add_missing_rows(connection: Connection, table: Table, run_id: str, rows: list[dict[str, Any]]) -> int:
    """Add the rows that are missing; return how many."""
    columns = list(table.primary_key)
    wanted = select(*columns).where(schema.find_run_column(table) == run_id)
    known = {tuple(row) for row in connection.execute(wanted)}
    fresh = []
    for row in rows:
        if tuple(row[column.name] for column in columns) not in known:
            fresh.append(row)
    if fresh:
        connection.execute(insert(table), fresh)
    return len(fresh)


def _update_run(connection: Connection, before: Row[Any], run: dict[str, Any]) -> bool:
    """Update a run's plan and state; return whether they have changed since the run was copied."""
    changing = {name: run[name] for name in ("plan", "state") if getattr(before, name) != run[name]}
    if changing:
        connection.execute(update(schema.runs).where(schema.runs.c.id == run["id"]).values(**changing))
        checksums.store_checksums(connection, schema.runs, run["id"])
    return bool(changing)

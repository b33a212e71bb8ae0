"""Checksums of a ledger's rows, so that damaged and missing rows are noticed when a run is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Label, String, Table, cast, delete, insert, literal, select
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import DBAPIError

from guestmark.core.errors import LedgerError
from guestmark.ledger import schema
from guestmark.ledger.model import LedgerCheck

_SIZE = 16  # bytes of a digest
_RUN = "run"
# The columns that are covered: all but a run's state and owner, which change while it is measured.
_COVERED: dict[str, tuple[str, ...]] = {
    schema.runs.name: ("id", "name", "created_at", "seed", "plan"),
    schema.environments.name: ("run_id", "position", "body"),
    schema.unusable.name: ("run_id", "platform", "reason", "hint"),
    schema.trials.name: (
        "run_id", "block", "cell_id", "position", "status", "started_at", "duration_s", "body", "console",
    ),
}  # fmt: skip


def name_part(table: str, row: Row[Any] | Any) -> str:
    """Return the name of a row among the checksums of its run."""
    if table == schema.trials.name:
        return f"trial {row.block} {row.cell_id}"
    if table == schema.environments.name:
        return f"environment {row.position}"
    if table == schema.unusable.name:
        return f"unusable {row.platform}"
    return _RUN


def describe_part(part: str) -> str:
    """Return the name of a part in errors."""
    kind, _, rest = part.partition(" ")
    if kind == "trial":
        block, _, cell = rest.partition(" ")
        return f"the trial of cell {cell!r} in block {int(block) + 1}"
    return {_RUN: "the plan", "environment": "the record of the environment"}.get(
        kind, f"the reason why {rest} was left out"
    )


def compute_checksum(table: str, row: Row[Any] | Any) -> str:
    """Return the checksum of a row, which has the table's columns as attributes."""
    digest = hashlib.blake2b(digest_size=_SIZE)
    for column in _COVERED[table]:
        data = _encode_value(getattr(row, column))
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _encode_value(value: Any) -> bytes:
    if isinstance(value, bytes | memoryview):
        return bytes(value)
    return json.dumps(value).encode()


def store_checksums(connection: Connection, table: Table, run_id: str, *conditions: Any) -> None:
    """Compute and store the checksums of the rows of `run_id` in `table`, as the database returns them."""
    key = schema.find_run_column(table)
    for row in connection.execute(select(table).where(key == run_id, *conditions)).all():
        part = name_part(table.name, row)
        delete_checksum(connection, run_id, part)
        connection.execute(
            insert(schema.checks).values(run_id=run_id, part=part, digest=compute_checksum(table.name, row))
        )


def delete_checksum(connection: Connection, run_id: str, part: str) -> None:
    """Delete the checksum of a row that will be replaced."""
    checks = schema.checks
    connection.execute(delete(checks).where(checks.c.run_id == run_id, checks.c.part == part))


# The rows of a run, by their tables.
RowsByTable = Mapping[str, Sequence[Row[Any]]]


def read_checksums(connection: Connection, run_id: str) -> dict[str, str]:
    """Return the checksums of a run, by part."""
    checks = schema.checks
    rows = connection.execute(select(checks.c.part, checks.c.digest).where(checks.c.run_id == run_id))
    return {row.part: row.digest for row in rows}


def read_row_checksums(connection: Connection, run_id: str) -> dict[str, str]:
    """Return the checksums of a run except for its own row's, which changes while it is measured."""
    return {part: digest for part, digest in read_checksums(connection, run_id).items() if part != _RUN}


def find_damage(
    connection: Connection,
    run_id: str,
    read: RowsByTable | None = None,
    before: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield a sentence for each part of the run that is not as it was stored.

    `read` holds its rows if they were read already, `before` the checksums that were read before these rows.
    """
    if before is None:
        before = read_checksums(connection, run_id)
    known = dict(before)
    stored = _read_rows_of_run(connection, run_id)
    if read is not None:
        stored = _pair_with_tables(read)
    for table, row in stored:
        part = name_part(table, row)
        digest = known.pop(part, None)
        if digest is not None and digest != compute_checksum(table, row):
            yield describe_damage(run_id, part)
    for part in known:
        yield f"{describe_part(part)} of run {run_id} is missing"


def find_damaged_plans(connection: Connection) -> set[str]:
    """Return the runs whose plan is not what was stored; trials are not checked."""
    checks = schema.checks
    joined = select(schema.runs, checks.c.digest).join(checks, checks.c.run_id == schema.runs.c.id)
    rows = connection.execute(joined.where(checks.c.part == _RUN)).all()
    return {row.id for row in rows if row.digest != compute_checksum(schema.runs.name, row)}


def count_unchecked_rows(connection: Connection, run_id: str) -> int:
    """Return how many rows of the run have no checksum: an older version wrote them."""
    known = set(
        connection.execute(select(schema.checks.c.part).where(schema.checks.c.run_id == run_id)).scalars()
    )
    return sum(name_part(table, row) not in known for table, row in _read_rows_of_run(connection, run_id))


def verify_run(
    connection: Connection,
    run_id: str,
    read: RowsByTable | None = None,
    before: Mapping[str, str] | None = None,
) -> None:
    """Raise `LedgerError` for the first damaged part of the run; see `find_damage`."""
    for sentence in find_damage(connection, run_id, read, before):
        raise _make_damage_error(sentence)


def select_checksum(table: Table) -> Label[Any]:
    """Return a column `digest` to select with the table's rows: their checksums, NULL for rows without one.

    Row and checksum are read in one statement: a row that was replaced in between would not match its checksum.
    """
    checks = schema.checks.c
    key = schema.find_run_column(table)
    found = select(checks.digest).where(checks.run_id == key, checks.part == _select_part(table))
    return found.scalar_subquery().label("digest")


def _select_part(table: Table) -> ColumnElement[str]:
    """Return `name_part` as an SQL expression."""
    if table is schema.trials:
        return literal("trial ") + cast(table.c.block, String) + literal(" ") + table.c.cell_id
    if table is schema.unusable:
        return literal("unusable ") + table.c.platform
    return literal(_RUN)


def verify_rows(table: Table, run_id: str, read: Iterable[Row[Any]]) -> None:
    """Raise `LedgerError` for the first damaged row of these, which were selected with `select_checksum`."""
    for row in read:
        if row.digest is not None and row.digest != compute_checksum(table.name, row):
            raise _make_damage_error(describe_damage(run_id, name_part(table.name, row)))


def describe_damage(run_id: str, part: str) -> str:
    """Return the sentence for a row that is not what was stored."""
    return f"{describe_part(part)} of run {run_id} is damaged: it is not what was stored"


def _make_damage_error(sentence: str) -> LedgerError:
    return LedgerError(
        sentence, hint="`guestmark runs --check` lists all damage; restore the ledger from a backup"
    )


def _read_rows_of_run(connection: Connection, run_id: str) -> Iterable[tuple[str, Row[Any]]]:
    for table in (schema.runs, schema.environments, schema.unusable, schema.trials):
        key = schema.find_run_column(table)
        for row in connection.execute(select(table).where(key == run_id)):
            yield table.name, row


def _pair_with_tables(read: RowsByTable) -> Iterable[tuple[str, Row[Any]]]:
    for table, rows in read.items():
        for row in rows:
            yield table, row


def check_ledger(connection: Connection, *, is_file: bool, is_checked: bool) -> LedgerCheck:
    """Check every row of every run, and the structure of a file."""
    problems = []
    if is_file:
        found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        problems += [f"the database: {line}" for line in found if line != "ok"]
    runs = list(connection.execute(select(schema.runs.c.id).order_by(schema.runs.c.created_at)).scalars())
    if not is_checked:
        return LedgerCheck(len(runs), 0, tuple(problems), checked=False)
    missing = 0
    for run_id in runs:
        try:
            problems += list(find_damage(connection, run_id))
            missing += count_unchecked_rows(connection, run_id)
        except DBAPIError as error:
            # A text column may hold bytes that are not valid text.
            problems.append(f"run {run_id} cannot be read: {error.orig}")
    return LedgerCheck(len(runs), missing, tuple(problems), checked=True)

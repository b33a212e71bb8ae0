"""Signs runs in a file with the user's own key, and verifies that nothing else has changed them.

A signature covers every row: the checksums of the run, its environments, what is left out and the trials; how many of
each there are; and the rows without a checksum (annotations, ratios, attempts, the run's state and owner) as they are.
Whatever `Ledger` writes is signed again in the same transaction, if the run was signed before. So a run is the user's
own only as long as nothing but the user's own guestmark has changed it. Without a signature, with one of another key,
or with one that does not fit, it is not.

On a server, roles decide who may write; only the plan is signed there, to recognise the user's own runs when they are
copied.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import Table, delete, insert, select
from sqlalchemy.engine import Connection

from guestmark.core.home import find_state_directory
from guestmark.ledger import run_annotations, schema, signing_key
from guestmark.ledger.model import SignatureStatus

# The kind of a signature's row in the table of annotations.
KIND = "signature"
# A keyed hash of the plan, which versions 0.2 and 0.3 stored.
_EARLIER = "made"
_OF_RUN, _OF_PLAN = b"guestmark-run/1\n", b"guestmark-plan/1\n"
_AT_ONCE = 500  # ids in one statement
_COUNTED = (schema.environments.name, schema.unusable.name, schema.trials.name)
_BESIDE: tuple[Table, ...] = (schema.remarks, schema.comparisons, schema.attempts)


class _Signature(msgspec.Struct, forbid_unknown_fields=True):
    """A signature as it is stored; `rows` is the digest of the checksums, which a list of runs then need not read."""

    key: str
    rows: str
    signature: str


def signs_all_rows(connection: Connection) -> bool:
    """Return whether signatures cover all rows of a run: in files they do, on servers they do not."""
    return connection.dialect.name == "sqlite"


def sign_run(connection: Connection, run_id: str) -> None:
    """Sign the run as it is stored now; on a server only its plan."""
    table = schema.remarks
    table.create(connection, checkfirst=True)
    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.kind.in_((KIND, _EARLIER))))
    if signs_all_rows(connection):
        rows = _digest_rows(connection, run_id)
        message = _make_run_message(run_id, rows, _digest_heads(connection, [run_id]).get(run_id, ""))
    else:
        rows, message = "", _make_plan_message(connection, run_id)
    made = _Signature(signing_key.read_public_key(), rows, signing_key.sign_message(message))
    value = msgspec.json.encode(made).decode()
    connection.execute(insert(table).values(run_id=run_id, kind=KIND, key="", value=value))


@contextmanager
def keep_signed(connection: Connection, run_id: str) -> Iterator[None]:
    """Sign the run again after the block if it was signed before."""
    own = signs_all_rows(connection) and is_own(connection, run_id)
    yield
    if own:
        sign_run(connection, run_id)


def verify_signature(connection: Connection, run_id: str) -> SignatureStatus:
    """Return the status of a run's signature."""
    found = verify_signatures(connection, [run_id])[run_id]
    if found is not SignatureStatus.OWN:
        return found
    made = _read_signatures(connection, [run_id]).get(run_id)
    if made is not None and made.rows != _digest_rows(connection, run_id):
        return SignatureStatus.CHANGED
    return found


def verify_signatures(connection: Connection, run_ids: Sequence[str]) -> dict[str, SignatureStatus]:
    """Return the status of several runs' signatures, without comparing the checksums of their rows."""
    stored, own = _read_signatures(connection, run_ids), signing_key.read_public_key()
    heads = _digest_heads(connection, [run_id for run_id in run_ids if run_id in stored])
    found = {}
    for run_id in run_ids:
        made = stored.get(run_id)
        if made is None:
            found[run_id] = _verify_keyed_hash(connection, run_id)
        elif made.key != own:
            found[run_id] = SignatureStatus.OTHERS
        else:
            message = _make_run_message(run_id, made.rows, heads.get(run_id, ""))
            fits = signing_key.has_signed(made.key, message, made.signature)
            found[run_id] = SignatureStatus.OWN if fits else SignatureStatus.CHANGED
    return found


def is_own(connection: Connection, run_id: str) -> bool:
    """Return whether the user's own key has signed the run as it is now; on a server, its plan."""
    if signs_all_rows(connection):
        return verify_signature(connection, run_id) is SignatureStatus.OWN
    made = _read_signatures(connection, [run_id]).get(run_id)
    if made is None or made.key != signing_key.read_public_key():
        return False
    return signing_key.has_signed(made.key, _make_plan_message(connection, run_id), made.signature)


def _make_run_message(run_id: str, rows: str, head: str) -> bytes:
    return _OF_RUN + json.dumps([run_id, rows, head]).encode()


def _make_plan_message(connection: Connection, run_id: str) -> bytes:
    row = connection.execute(select(schema.runs).where(schema.runs.c.id == run_id)).one()
    return _OF_PLAN + json.dumps([row.id, row.created_at, row.seed, row.plan]).encode()


def _digest_rows(connection: Connection, run_id: str) -> str:
    """Return a digest of the checksums of all rows that have one, and of how many rows there are."""
    digest = hashlib.blake2b(digest_size=32)
    tables = _list_tables(connection)
    if schema.checks.name in tables:
        own = "SELECT part, digest FROM checks WHERE run_id = ? ORDER BY part"
        digest.update(_serialise_rows(_fetch_rows(connection, own, [run_id])))
    counts = ", ".join(f"(SELECT count(*) FROM {table} WHERE run_id = ?1)" for table in _COUNTED)
    digest.update(_serialise_rows(_fetch_rows(connection, f"SELECT {counts}", [run_id])))
    return digest.hexdigest()


def _digest_heads(connection: Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """Return digests of each run's rows without checksums, by id; runs that do not exist are absent."""
    found: dict[str, Any] = {}
    tables = _list_tables(connection)
    for these in _split_ids(run_ids):
        named = f"run_id IN ({', '.join('?' * len(these))})"
        runs = f"SELECT id AS run_id, state, owner FROM runs WHERE {named.replace('run_id', 'id')}"
        for run_id, rows in _group_by_run(_fetch_rows(connection, runs, these)):
            found[run_id] = hashlib.blake2b(_serialise_rows(rows), digest_size=32)
        for table in _BESIDE:
            if table.name not in tables:
                continue
            columns = ", ".join(column.name for column in table.columns)
            key = ", ".join(column.name for column in table.primary_key)
            others = f" AND kind <> '{KIND}'" if table is schema.remarks else ""
            wanted = f"SELECT {columns} FROM {table.name} WHERE {named}{others} ORDER BY {key}"
            for run_id, rows in _group_by_run(_fetch_rows(connection, wanted, these)):
                if run_id in found:
                    found[run_id].update(table.name.encode() + _serialise_rows(rows))
    return {run_id: digest.hexdigest() for run_id, digest in found.items()}


def _fetch_rows(connection: Connection, statement: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return rows as SQLite has them, without SQLAlchemy: each write of a run reads its checksums twice."""
    link: Any = connection.connection.driver_connection
    found: list[tuple[Any, ...]] = link.execute(statement, values).fetchall()
    return found


def _list_tables(connection: Connection) -> set[str]:
    return {
        name for (name,) in _fetch_rows(connection, "SELECT name FROM sqlite_master WHERE type = 'table'", [])
    }


def _group_by_run(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, list[tuple[Any, ...]]]]:
    """Group rows by their first column, the run's id, by which they are sorted."""
    for run_id, own in itertools.groupby(rows, key=lambda row: row[0]):
        yield run_id, list(own)


def _serialise_rows(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Serialise rows so that bytes never equal text with the same digits: SQLite's columns hold any type."""
    return json.dumps(rows, default=lambda value: {"bytes": value.hex()}).encode()


def _read_signatures(connection: Connection, run_ids: Sequence[str]) -> dict[str, _Signature]:
    table = schema.remarks
    found: dict[str, _Signature] = {}
    if not schema.has_table(connection, table):
        return found
    for these in _split_ids(run_ids):
        wanted = select(table.c.run_id, table.c.value).where(table.c.run_id.in_(these), table.c.kind == KIND)
        for row in connection.execute(wanted):
            # A malformed signature counts as another key's.
            found[row.run_id] = _Signature("", "", "")
            with suppress(msgspec.MsgspecError, TypeError):
                found[row.run_id] = msgspec.json.decode(row.value, type=_Signature)
    return found


def _split_ids(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (run_ids[at : at + _AT_ONCE] for at in range(0, len(run_ids), _AT_ONCE))


def _verify_keyed_hash(connection: Connection, run_id: str) -> SignatureStatus:
    """Return the status of a run without a signature, for which versions 0.2 and 0.3 stored a keyed hash."""
    table, runs = schema.remarks, schema.runs
    if not schema.has_table(connection, table):
        return SignatureStatus.UNSIGNED
    marks = select(table.c.kind, table.c.value).where(
        table.c.run_id == run_id, table.c.kind.in_((_EARLIER, run_annotations.IMPORTED))
    )
    found = {row.kind: str(row.value) for row in connection.execute(marks)}
    row = connection.execute(select(runs).where(runs.c.id == run_id)).first()
    if row is None or _EARLIER not in found or run_annotations.IMPORTED in found:
        return SignatureStatus.UNSIGNED
    with suppress(OSError, ValueError):
        key = (find_state_directory() / "key").read_bytes()
        said = json.dumps([row.id, row.created_at, row.seed, row.plan]).encode()
        hashed = hashlib.blake2b(said, key=key, digest_size=32).hexdigest()
        if key and hmac.compare_digest(found[_EARLIER].encode(), hashed.encode()):
            return SignatureStatus.OWN
    return SignatureStatus.OTHERS

"""What people say of runs: a name, notes, labels and tags; and which runs they have removed.

Kept beside the runs, in a table that is made when first needed, so that ledgers of any age are alike.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import delete, insert, select

from guestmark.core.errors import LedgerError
from guestmark.core.redaction import redact
from guestmark.ledger.model import Origin, Standing
from guestmark.ledger.schema import is_made
from guestmark.ledger.schema import remarks as table

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

NAME, NOTE, LABEL, TAG, REMOVED, IMPORTED = "name", "note", "label", "tag", "removed", "imported"
_PLACE = "place"
_OF_PEOPLE = (NAME, NOTE, LABEL, TAG, REMOVED, IMPORTED)  # the others are for programs


@dataclass(frozen=True, slots=True)
class Remarks:
    """What is said of one run. A run that was `removed` (Unix time) is out of sight until the ledger is vacuumed."""

    name: str = ""
    notes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    removed: float | None = None
    origin: Origin | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """Kind, key and value of each."""
        found = [(NAME, "", self.name)] if self.name else []
        found += [(NOTE, f"{number:06}", note) for number, note in enumerate(self.notes)]
        found += [(LABEL, key, value) for key, value in self.labels.items()]
        found += [(TAG, tag, "") for tag in self.tags]
        found += [(IMPORTED, "", json.dumps(_of_origin(self.origin)))] if self.origin is not None else []
        return found


NOTHING = Remarks()


def of_runs(connection: Connection) -> dict[str, Remarks]:
    """Those of every run that has any."""
    if not is_made(connection, table):
        return {}
    rows: dict[str, list[tuple[str, str, str]]] = {}
    wanted = select(table).where(table.c.kind.in_(_OF_PEOPLE))
    statement = wanted.order_by(table.c.run_id, table.c.kind, table.c.key)
    for row in connection.execute(statement):
        rows.setdefault(row.run_id, []).append((row.kind, row.key, row.value))
    return {run_id: _read(found) for run_id, found in rows.items()}


def of_run(connection: Connection, run_id: str) -> Remarks:
    """Those of one run."""
    if not is_made(connection, table):
        return NOTHING
    own = table.c.run_id == run_id, table.c.kind.in_(_OF_PEOPLE)
    statement = select(table).where(*own).order_by(table.c.kind, table.c.key)
    return _read([(row.kind, row.key, row.value) for row in connection.execute(statement)])


def removed(connection: Connection) -> set[str]:
    """The ids of runs that are out of sight."""
    if not is_made(connection, table):
        return set()
    return set(connection.execute(select(table.c.run_id).where(table.c.kind == REMOVED)).scalars())


def add(connection: Connection, run_id: str, more: Remarks) -> None:
    """Adds to what is said of a run; a name, and labels of the same name, are replaced. Raises `LedgerError` for a
    name that another run has."""
    table.create(connection, checkfirst=True)
    check_free(connection, more.name, run_id)
    known = of_runs(connection)
    first = len(known.get(run_id, NOTHING).notes)
    for kind, key, said in more.rows():
        value = redact(said)
        place = f"{first + int(key):06}" if kind == NOTE else key
        _remove(connection, run_id, kind, place)
        connection.execute(insert(table).values(run_id=run_id, kind=kind, key=place, value=value))


def check_free(connection: Connection, name: str, run_id: str = "") -> None:
    """Raises `LedgerError` for a name that another run has."""
    others = [other for other, said in of_runs(connection).items() if said.name == name and other != run_id]
    if name and others:
        raise LedgerError(f"run {others[0]} is called {name!r} already", hint="give this one another name")


def take_away(
    connection: Connection, run_id: str, *, labels: Sequence[str] = (), tags: Sequence[str] = ()
) -> None:
    """Takes labels and tags from a run; those it does not have are not errors."""
    table.create(connection, checkfirst=True)
    for kind, keys in ((LABEL, labels), (TAG, tags)):
        for key in keys:
            _remove(connection, run_id, kind, key)


def set_removed(connection: Connection, run_id: str, *, gone: bool) -> None:
    """Puts a run out of sight, or back."""
    table.create(connection, checkfirst=True)
    _remove(connection, run_id, REMOVED, "")
    if gone:
        connection.execute(insert(table).values(run_id=run_id, kind=REMOVED, key="", value=repr(time.time())))


def seen_at(connection: Connection, run_id: str, place: str) -> str:
    """The digest of what was last seen of a machine that measures blocks of the run; empty: nothing."""
    if not is_made(connection, table):
        return ""
    own = table.c.run_id == run_id, table.c.kind == _PLACE, table.c.key == place
    return str(connection.execute(select(table.c.value).where(*own)).scalar() or "")


def set_seen_at(connection: Connection, run_id: str, place: str, digest: str) -> None:
    """Keeps it, in place of what was seen before."""
    table.create(connection, checkfirst=True)
    _remove(connection, run_id, _PLACE, place)
    connection.execute(insert(table).values(run_id=run_id, kind=_PLACE, key=place, value=digest))


def forget(connection: Connection, run_id: str) -> None:
    """Deletes what is said of a run that is deleted."""
    if is_made(connection, table):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def _remove(connection: Connection, run_id: str, kind: str, key: str) -> None:
    here = (table.c.run_id == run_id, table.c.kind == kind, table.c.key == key)
    connection.execute(delete(table).where(*here))


def _read(rows: Sequence[tuple[str, str, str]]) -> Remarks:
    gone = next((float(value) for kind, _, value in rows if kind == REMOVED), None)
    return Remarks(
        name=next((value for kind, _, value in rows if kind == NAME), ""),
        notes=tuple(value for kind, _, value in rows if kind == NOTE),
        labels={key: value for kind, key, value in rows if kind == LABEL},
        tags=tuple(key for kind, key, _ in rows if kind == TAG),
        removed=gone,
        origin=next((_origin(value) for kind, _, value in rows if kind == IMPORTED), None),
    )


def _of_origin(origin: Origin) -> dict[str, object]:
    return {name: value for name, value in asdict(origin).items() if name != "standing"}  # which is found out


def _origin(stored: str) -> Origin:
    """As it was stored; a run with a record that cannot be read is still from elsewhere."""
    try:
        return replace(msgspec.json.decode(stored, type=Origin), standing=Standing.OWN)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return Origin("a source that the ledger no longer knows")

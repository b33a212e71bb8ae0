"""The annotations of runs: a name, notes, labels and tags; and which runs were removed.

They are stored beside the runs, in a table that is created when first needed, so that all other tables are the same in
ledgers of every version.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import msgspec
from sqlalchemy import delete, insert, select
from sqlalchemy.engine import Connection

from guestmark.core.errors import LedgerError
from guestmark.core.redaction import redact_text
from guestmark.ledger.model import RunOrigin, SignatureStatus
from guestmark.ledger.schema import has_table
from guestmark.ledger.schema import remarks as table

NAME, NOTE, LABEL, TAG, REMOVED, IMPORTED = "name", "note", "label", "tag", "removed", "imported"
_PLACE = "place"
# Kinds that users see; signatures and the like are internal.
_SHOWN_KINDS = (NAME, NOTE, LABEL, TAG, REMOVED, IMPORTED)


@dataclass(frozen=True, slots=True)
class Annotations:
    """Annotations of one run. A run that was `removed` (Unix time) is hidden until the ledger is vacuumed."""

    name: str = ""
    notes: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    removed: float | None = None
    origin: RunOrigin | None = None

    def rows(self) -> list[tuple[str, str, str]]:
        """Return kind, key and value of each annotation."""
        found = []
        if self.name:
            found.append((NAME, "", self.name))
        # The keys of notes keep their order.
        for number, note in enumerate(self.notes):
            found.append((NOTE, f"{number:06}", note))
        for key, value in self.labels.items():
            found.append((LABEL, key, value))
        for tag in self.tags:
            found.append((TAG, tag, ""))
        if self.origin is not None:
            found.append((IMPORTED, "", json.dumps(_dump_origin(self.origin))))
        return found


NO_ANNOTATIONS = Annotations()


def read_all_annotations(connection: Connection) -> dict[str, Annotations]:
    """Return the annotations of every run that has any, by its id."""
    if not has_table(connection, table):
        return {}
    rows: dict[str, list[tuple[str, str, str]]] = {}
    wanted = select(table).where(table.c.kind.in_(_SHOWN_KINDS))
    statement = wanted.order_by(table.c.run_id, table.c.kind, table.c.key)
    for row in connection.execute(statement):
        rows.setdefault(row.run_id, []).append((row.kind, row.key, row.value))
    return {run_id: _parse_rows(found) for run_id, found in rows.items()}


def read_annotations(connection: Connection, run_id: str) -> Annotations:
    """Return the annotations of one run."""
    if not has_table(connection, table):
        return NO_ANNOTATIONS
    own = table.c.run_id == run_id, table.c.kind.in_(_SHOWN_KINDS)
    statement = select(table).where(*own).order_by(table.c.kind, table.c.key)
    return _parse_rows([(row.kind, row.key, row.value) for row in connection.execute(statement)])


def find_removed_runs(connection: Connection) -> set[str]:
    """Return the ids of runs that were removed."""
    if not has_table(connection, table):
        return set()
    return set(connection.execute(select(table.c.run_id).where(table.c.kind == REMOVED)).scalars())


def add_annotations(connection: Connection, run_id: str, more: Annotations) -> None:
    """Add annotations to a run; its name, and labels with the same key, are replaced.

    Raises `LedgerError` for a name that another run has.
    """
    table.create(connection, checkfirst=True)
    check_name_is_free(connection, more.name, run_id)
    known = read_all_annotations(connection)
    first = len(known.get(run_id, NO_ANNOTATIONS).notes)
    for kind, key, said in more.rows():
        value = redact_text(said)
        place = f"{first + int(key):06}" if kind == NOTE else key
        _delete_row(connection, run_id, kind, place)
        connection.execute(insert(table).values(run_id=run_id, kind=kind, key=place, value=value))


def annotate_new_run(connection: Connection, run_id: str, said: Annotations) -> None:
    """Add the annotations that a run had elsewhere; without its name, if another run has that."""
    if said.name in {other.name for other in read_all_annotations(connection).values()}:
        said = replace(said, name="")
    add_annotations(connection, run_id, said)


def check_name_is_free(connection: Connection, name: str, run_id: str = "") -> None:
    """Raise `LedgerError` for a name that another run has."""
    if not name:
        return
    for other, known in read_all_annotations(connection).items():
        if known.name == name and other != run_id:
            raise LedgerError(f"run {other} is already named {name!r}", hint="choose another name")


def remove_annotations(
    connection: Connection, run_id: str, *, labels: Sequence[str] = (), tags: Sequence[str] = ()
) -> None:
    """Remove labels and tags from a run; it need not have them."""
    table.create(connection, checkfirst=True)
    for kind, keys in ((LABEL, labels), (TAG, tags)):
        for key in keys:
            _delete_row(connection, run_id, kind, key)


def set_removed(connection: Connection, run_id: str, *, hidden: bool) -> None:
    """Hide a run, or show it again."""
    table.create(connection, checkfirst=True)
    _delete_row(connection, run_id, REMOVED, "")
    if hidden:
        connection.execute(insert(table).values(run_id=run_id, kind=REMOVED, key="", value=repr(time.time())))


def read_machine_digest(connection: Connection, run_id: str, place: str) -> str:
    """Return the digest of the last environment of a machine that measures blocks of the run; empty if unknown."""
    if not has_table(connection, table):
        return ""
    own = table.c.run_id == run_id, table.c.kind == _PLACE, table.c.key == place
    return str(connection.execute(select(table.c.value).where(*own)).scalar() or "")


def store_machine_digest(connection: Connection, run_id: str, place: str, digest: str) -> None:
    """Store the digest of a machine's environment, in place of the one before."""
    table.create(connection, checkfirst=True)
    _delete_row(connection, run_id, _PLACE, place)
    connection.execute(insert(table).values(run_id=run_id, kind=_PLACE, key=place, value=digest))


def delete_annotations(connection: Connection, run_id: str) -> None:
    """Delete all annotations of a run that is deleted."""
    if has_table(connection, table):
        connection.execute(delete(table).where(table.c.run_id == run_id))


def _delete_row(connection: Connection, run_id: str, kind: str, key: str) -> None:
    here = (table.c.run_id == run_id, table.c.kind == kind, table.c.key == key)
    connection.execute(delete(table).where(*here))


def _parse_rows(rows: Sequence[tuple[str, str, str]]) -> Annotations:
    name, notes, labels, tags = "", [], {}, []
    removed: float | None = None
    origin: RunOrigin | None = None
    for kind, key, value in rows:
        if kind == NAME:
            name = value
        elif kind == NOTE:
            notes.append(value)
        elif kind == LABEL:
            labels[key] = value
        elif kind == TAG:
            tags.append(key)
        elif kind == REMOVED:
            removed = float(value)
        elif kind == IMPORTED:
            origin = _load_origin(value)
    return Annotations(name, tuple(notes), labels, tuple(tags), removed, origin)


def _dump_origin(origin: RunOrigin) -> dict[str, object]:
    # The standing is not stored, as the signature shows it each time.
    return {name: value for name, value in asdict(origin).items() if name != "standing"}


def _load_origin(stored: str) -> RunOrigin:
    """Return the origin as it was stored; a run whose record cannot be read is still not the user's own."""
    try:
        return replace(msgspec.json.decode(stored, type=RunOrigin), standing=SignatureStatus.OWN)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return RunOrigin("a source that the ledger no longer knows")

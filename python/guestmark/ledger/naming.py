"""Which run is meant: by its id, its beginning or end, the name it was given, or `last`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sqlalchemy import select

from guestmark.core.errors import LedgerError
from guestmark.core.home import LATEST
from guestmark.ledger import remarks, schema

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from guestmark.ledger.remarks import Remarks


def resolve(connection: Connection, wanted: str, where: str, *, removed: bool = False) -> str:
    """The id of a run that is in sight, or of one that was removed. Raises `LedgerError` naming the nearest ids."""
    statement = select(schema.runs.c.id).order_by(schema.runs.c.created_at)
    gone = remarks.removed(connection)
    everything = [str(run_id) for run_id in connection.execute(statement).scalars()]
    ids = [run_id for run_id in everything if (run_id in gone) == removed]
    if wanted == LATEST and ids:
        return ids[-1]
    said = remarks.of_runs(connection)
    found = _meant(wanted, ids, said)
    if len(found) > 1:
        raise LedgerError(
            f"{wanted!r} may be any of {len(found)} runs: {', '.join(found[-5:])}", hint="give more of the id"
        )
    if found:
        return found[0]
    if not removed and _meant(wanted, sorted(gone), said):
        raise LedgerError(f"run {wanted} was removed", hint=f"guestmark rm --undo {wanted} brings it back")
    if removed:
        raise LedgerError(
            f"there is no removed run {wanted!r} in the ledger {where}",
            hint="guestmark runs --removed lists those that can be brought back"
            if ids
            else "none can be brought back; guestmark vacuum deletes for good",
        )
    raise missing(connection, wanted, where, ids)


def _meant(wanted: str, ids: Sequence[str], said: Mapping[str, Remarks]) -> list[str]:
    """The run of that id, else those of that name, else those whose ids begin or end so."""
    if not wanted or wanted in ids:
        return [wanted] if wanted else []
    named = [run_id for run_id in ids if run_id in said and said[run_id].name == wanted]
    return named or [run_id for run_id in ids if run_id.startswith(wanted) or run_id.endswith(wanted)]


def missing(connection: Connection, wanted: str, where: str, ids: Sequence[str] | None = None) -> LedgerError:
    """The error for a run that is not there, with the nearest ids."""
    if ids is None:
        ids = [str(run_id) for run_id in connection.execute(select(schema.runs.c.id)).scalars()]
    near = get_close_matches(wanted, ids, n=3, cutoff=0.5) or ids[-3:]
    hint = f"nearest: {', '.join(near)}; `guestmark runs` lists all" if near else "it holds no runs yet"
    return LedgerError(f"there is no run {wanted!r} in the ledger {where}", hint=hint)

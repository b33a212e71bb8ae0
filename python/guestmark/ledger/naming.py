"""Which run is meant: by its id, its beginning or end, the name it was given, or `last`."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sqlalchemy import select

from guestmark.core.errors import LedgerError
from guestmark.ledger import remarks, schema

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def resolve(connection: Connection, wanted: str, where: str, *, removed: bool = False) -> str:
    """The id of a run that is in sight, or of one that was removed. Raises `LedgerError` naming the nearest ids."""
    statement = select(schema.runs.c.id).order_by(schema.runs.c.created_at)
    gone = remarks.removed(connection)
    ids = [str(run_id) for run_id in connection.execute(statement).scalars() if (run_id in gone) == removed]
    if wanted == "last" and ids:
        return ids[-1]
    if wanted in ids:
        return wanted
    said = remarks.of_runs(connection)
    found = [run_id for run_id in ids if wanted and run_id in said and said[run_id].name == wanted]
    found = found or [
        run_id for run_id in ids if wanted and (run_id.startswith(wanted) or run_id.endswith(wanted))
    ]
    if len(found) > 1:
        raise LedgerError(
            f"{wanted!r} may be any of {len(found)} runs: {', '.join(found[-5:])}", hint="give more of the id"
        )
    if found:
        return found[0]
    if not removed and wanted in gone:
        raise LedgerError(f"run {wanted} was removed", hint=f"guestmark rm --undo {wanted} brings it back")
    raise missing(wanted, ids, where)


def missing(wanted: str, ids: Sequence[str], where: str) -> LedgerError:
    """The error for a run that is not there."""
    near = get_close_matches(wanted, ids, n=3, cutoff=0.5) or ids[-3:]
    hint = f"nearest: {', '.join(near)}; `guestmark runs` lists all" if near else "it holds no runs yet"
    return LedgerError(f"there is no run {wanted!r} in the ledger {where}", hint=hint)

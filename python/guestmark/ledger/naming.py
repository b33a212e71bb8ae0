"""Which run a user means: an id, its unique beginning or end, or `last`."""

from __future__ import annotations

from difflib import get_close_matches

from sqlalchemy import select
from sqlalchemy.engine import Connection

from guestmark.core.errors import LedgerError
from guestmark.ledger import schema


def resolve(connection: Connection, wanted: str, where: str) -> str:
    """The full id. Raises `LedgerError` naming the candidates or the nearest ids."""
    ids = list(connection.execute(select(schema.runs.c.id).order_by(schema.runs.c.created_at)).scalars())
    if wanted == "last" and ids:
        return str(ids[-1])
    if wanted in ids:
        return wanted
    found = [run_id for run_id in ids if wanted and (run_id.startswith(wanted) or run_id.endswith(wanted))]
    if len(found) > 1:
        raise LedgerError(
            f"{wanted!r} may be any of {len(found)} runs: {', '.join(found[-5:])}",
            hint="give more of the id",
        )
    if not found:
        raise missing(connection, wanted, where, ids)
    return str(found[0])


def missing(connection: Connection, wanted: str, where: str, ids: list[str] | None = None) -> LedgerError:
    """The error for a run that is not there, with the nearest ids."""
    if ids is None:
        ids = list(connection.execute(select(schema.runs.c.id)).scalars())
    near = get_close_matches(wanted, ids, n=3, cutoff=0.5) or ids[-3:]
    hint = f"nearest: {', '.join(near)}; `guestmark runs` lists all" if near else "it holds no runs yet"
    return LedgerError(f"there is no run {wanted!r} in the ledger {where}", hint=hint)

"""Which runs in a file this user made: those with a signature by a key that no file can bring along.

A ledger or a bundle that was downloaded looks like one's own, and a run's plan holds commands. The key is in the user's
state directory. Runs of older versions have no signature; they count as the user's own at the ledger's default place.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, insert, inspect, select

from guestmark.core.home import home
from guestmark.ledger import schema
from guestmark.ledger.location import default_path

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Row

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
    if inspect(connection).has_table(table.name):
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
    base = os.environ.get("XDG_STATE_HOME", "")
    file = (Path(base) if base.startswith("/") else home() / ".local/state") / "guestmark" / "key"
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

"""How many more connections a ledger's server takes, before many machines ask for theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from guestmark.ledger.store import Ledger

EACH, WATCHING = 2, 2  # connections of a machine that measures, and of whoever keeps a fleet going
_SPARE = 20  # for people who look at runs meanwhile, and the server's owner
# Everybody may read these; who else is connected is shown to few.
_ASK = """SELECT current_setting('max_connections')::int,
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
  - (SELECT sum(numbackends)::int FROM pg_stat_database)"""


@dataclass(frozen=True, slots=True)
class Room:
    """`free` of a server's `most` connections are left, and so many are `needed`."""

    most: int
    free: int
    needed: int

    @property
    def is_enough(self) -> bool:
        """Whether every machine gets its connections."""
        return self.free >= self.needed

    @property
    def advised(self) -> int:
        """What to set `max_connections` to."""
        return self.most - self.free + self.needed + _SPARE


def room_for(ledger: Ledger, machines: int) -> Room | None:
    """The room on the ledger's server for so many machines; None when the ledger is a file."""
    if ledger.is_file:
        return None

    def ask(connection: Connection) -> tuple[int, int]:
        most, free = connection.execute(text(_ASK)).one()
        return int(most), int(free) + 1  # this very connection ends

    most, free = ledger.write("asking how many connections the server takes", ask)
    return Room(most, free, EACH * machines + WATCHING)

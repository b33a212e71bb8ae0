"""The servers by name."""

from guestmark.databases.base import Database
from guestmark.databases.mariadb import MariaDB
from guestmark.databases.postgresql import PostgreSQL

KINDS: dict[str, type[Database]] = {kind.name: kind for kind in (MariaDB, PostgreSQL)}

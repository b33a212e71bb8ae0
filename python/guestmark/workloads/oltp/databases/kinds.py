"""The servers by name."""

from guestmark.workloads.oltp.databases.base import Database
from guestmark.workloads.oltp.databases.mariadb import MariaDB
from guestmark.workloads.oltp.databases.postgresql import PostgreSQL

KINDS: dict[str, type[Database]] = {kind.name: kind for kind in (MariaDB, PostgreSQL)}

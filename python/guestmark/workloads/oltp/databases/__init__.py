"""Database servers under test: installation, start, queries and shutdown of each, and loaded data directories."""

from guestmark.workloads.oltp.databases.base import Database
from guestmark.workloads.oltp.databases.mariadb import MariaDB
from guestmark.workloads.oltp.databases.postgresql import PostgreSQL

KINDS: dict[str, type[Database]] = {kind.name: kind for kind in (MariaDB, PostgreSQL)}

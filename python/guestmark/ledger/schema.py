"""Tables of the ledger."""

from weakref import WeakKeyDictionary

from sqlalchemy import (
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
)
from sqlalchemy.engine import Connection
from sqlalchemy.pool import Pool

# "gmrk" in ASCII; it tells a ledger from any other SQLite database.
APPLICATION_ID = 0x676D726B
SCHEMA_VERSION = 2

metadata = MetaData()
# Execution option: take SQLite's write lock at the beginning, not at the first write.
WRITING = "guestmark_writing"
_KNOWN_TABLES: WeakKeyDictionary[Pool, set[str]] = WeakKeyDictionary()


def find_run_column(table: Table) -> Column[str]:
    """Return the column of a table that holds the id of the run that a row belongs to."""
    if table is runs:
        return table.c.id
    return table.c.run_id


def has_table(connection: Connection, table: Table) -> bool:
    """Return whether the database has the table; tables are never removed, so one that was seen is remembered."""
    seen = _KNOWN_TABLES.setdefault(connection.engine.pool, set())
    if table.name in seen:
        return True
    found = inspect(connection).has_table(table.name)
    # A transaction that writes may be rolled back, and the table with it.
    if found and not connection.get_execution_options().get(WRITING):
        seen.add(table.name)
    return found


schema = Table("guestmark_schema", metadata, Column("version", Integer, primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    # Text, as seeds may exceed 64 bits.
    Column("seed", Text, nullable=False),
    Column("state", String(64), nullable=False),
    # Shown when the run is claimed, but never trusted.
    Column("owner", Text, nullable=False, default=""),
    Column("plan", Text, nullable=False),
)

environments = Table(
    "environments",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
)

unusable = Table(
    "unusable",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("platform", String(255), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("hint", Text, nullable=False),
)

# Ratios, derived from trials and found without reading these; see `ledger.run_lookup`. Created only when
# first needed, so that ledgers of all versions are alike.
comparisons = Table(
    "comparisons",
    MetaData(),
    Column("run_id", String(64), primary_key=True),
    Column("cell_id", String(255), primary_key=True),
    Column("host", String(64), nullable=False),
    # A digest of the question that the ratio answers.
    Column("what", String(64), nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("log_ratio", Float(53), nullable=False),
    Column("low", Float(53), nullable=False),
    Column("high", Float(53), nullable=False),
    Column("blocks", Integer, nullable=False),
    Column("typical", Float(53), nullable=False),
    Index("comparisons_by_question", "host", "what", "created_at"),
)

# Annotations of runs; see `ledger.run_annotations`. Created when first needed, as `comparisons` is.
remarks = Table(
    "remarks",
    MetaData(),
    Column("run_id", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("value", Text, nullable=False),
)

# Which machine began which trial; see `ledger.attempts`. Created when first needed, as `comparisons` is.
attempts = Table(
    "attempts",
    MetaData(),
    Column("run_id", String(64), primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False),
    Column("cell_id", String(255), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("token", String(64), nullable=False),
    Column("machine", String(255), nullable=False),
    Column("begun_at", Float(53), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("refused", Integer, nullable=False),
)

# One trial is one row, so that it is stored completely or not at all.
trials = Table(
    "trials",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False),
    Column("cell_id", String(255), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("duration_s", Float(53), nullable=False),
    Column("body", Text, nullable=False),
    Column("console", LargeBinary, nullable=False),
)

# Checksums of all other rows as they were stored; see `ledger.checksums`.
checks = Table(
    "checks",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("part", String(512), primary_key=True),
    Column("digest", String(64), nullable=False),
)

"""Tables of the ledger. The only module of the ledger that imports SQLAlchemy when it is itself imported."""

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

APPLICATION_ID = 0x676D726B  # "gmrk": tells a ledger from any other SQLite database
SCHEMA_VERSION = 2

metadata = MetaData()
WRITING = "guestmark_writing"  # execution option: take SQLite's write lock at once, not on the first write
_KNOWN_TABLES: WeakKeyDictionary[Pool, set[str]] = WeakKeyDictionary()


def has_table(connection: Connection, table: Table) -> bool:
    """Whether the database has the table; one that was seen is not asked for again, as none is ever removed."""
    seen = _KNOWN_TABLES.setdefault(connection.engine.pool, set())
    if table.name in seen:
        return True
    found = inspect(connection).has_table(table.name)
    if found and not connection.get_execution_options().get(
        WRITING
    ):  # which may be undone, and the table with it
        seen.add(table.name)
    return found


schema = Table("guestmark_schema", metadata, Column("version", Integer, primary_key=True))

runs = Table(
    "runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("seed", Text, nullable=False),  # text: seeds may exceed 64 bits
    Column("state", String(64), nullable=False),
    Column("owner", Text, nullable=False, default=""),  # shown when the run is claimed; never trusted
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

# Made of trials, to be found without reading them; see `ledger.run_lookup`. Not made with the others, so that ledgers
# of any age are alike.
comparisons = Table(
    "comparisons",
    MetaData(),
    Column("run_id", String(64), primary_key=True),
    Column("cell_id", String(255), primary_key=True),
    Column("host", String(64), nullable=False),
    Column("what", String(64), nullable=False),  # digest of the question that the ratio answers
    Column("created_at", Float(53), nullable=False),
    Column("log_ratio", Float(53), nullable=False),
    Column("low", Float(53), nullable=False),
    Column("high", Float(53), nullable=False),
    Column("blocks", Integer, nullable=False),
    Column("typical", Float(53), nullable=False),
    Index("comparisons_by_question", "host", "what", "created_at"),
)

# What people say of runs; see `ledger.run_annotations`. Made when first needed, as `comparisons` is.
remarks = Table(
    "remarks",
    MetaData(),
    Column("run_id", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("value", Text, nullable=False),
)

# Who began which trial; see `ledger.attempts`. Made when first needed, as `comparisons` is.
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

# What every other row was when it was stored; see `ledger.checksums`.
checks = Table(
    "checks",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("part", String(512), primary_key=True),
    Column("digest", String(64), nullable=False),
)

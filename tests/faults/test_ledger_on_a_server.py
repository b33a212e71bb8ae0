"""A ledger of an older version on PostgreSQL: brought up to date once, whoever comes first, with nothing lost."""

import lzma
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, insert, make_url, select, text, update

from guestmark.core.errors import LedgerError
from guestmark.ledger import open_ledger, schema
from guestmark.ledger.postgres import make_server_engine
from tests.framework import at_once
from tests.framework.databases import bare_server, installed

OLD = Path(__file__).parents[1] / "ledger_0_1" / "ledger.sqlite.xz"
TABLES = (schema.runs, schema.environments, schema.unusable, schema.trials)
pytestmark = pytest.mark.skipif(not installed("postgresql"), reason="postgresql is not installed")


@pytest.fixture
def url() -> Iterator[str]:
    """An empty database on a server of its own."""
    with bare_server("postgresql") as server:
        socket = Path(server.database.locate_socket(server.data))
        # The socket is named after the port, which is not PostgreSQL's own.
        yield f"postgresql://sysbench@/postgres?host={socket.parent}&port={socket.suffix.removeprefix('.')}"


@pytest.fixture
def old(url: str, tmp_path: Path) -> str:
    """The ledger that version 0.1 has left, as that version had it on a server."""
    file = tmp_path / "old.sqlite"
    file.write_bytes(lzma.decompress(OLD.read_bytes()))
    engine = make_server_engine(make_url(url))
    with closing(sqlite3.connect(file)) as source, engine.begin() as target:
        source.row_factory = sqlite3.Row
        schema.metadata.create_all(target, tables=[schema.schema, *TABLES])
        target.execute(insert(schema.schema).values(version=1))
        for table in TABLES:
            rows = [dict(row) for row in source.execute(f"select * from {table.name}")]
            if rows:
                target.execute(insert(table), rows)
    engine.dispose()
    return url


@pytest.mark.long
def test_it_is_upgraded_once_by_however_many_come_at_once(old: str, tmp_path: Path) -> None:
    assert at_once.failures(lambda: open_ledger(old).close(), 6) == []
    with open_ledger(tmp_path / "old.sqlite") as file, open_ledger(old) as server:
        assert server.check_all().problems == ()
        assert server.check_all().checked == file.check_all().checked > 0
        assert [run.id for run in server.list_runs()] == [run.id for run in file.list_runs()]
        for run in file.list_runs():
            here, there = file.load_run(run.id), server.load_run(run.id)
            assert here.plan == there.plan
            assert here.trials == there.trials


def test_a_role_that_may_not_upgrade_it_is_told_who_may(old: str) -> None:
    engine = make_server_engine(make_url(old))
    with engine.begin() as link:
        link.execute(text("CREATE ROLE bench LOGIN"))
        link.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO bench"))
    engine.dispose()
    with pytest.raises(LedgerError, match="may not upgrade it") as told:
        open_ledger(old.replace("sysbench@", "bench@"))
    assert "as its owner" in told.value.hint


@pytest.mark.long
def test_what_is_damaged_afterwards_is_noticed(old: str) -> None:
    open_ledger(old).close()
    engine = make_server_engine(make_url(old))
    with engine.begin() as connection:
        found = connection.execute(select(schema.trials)).first()
        assert found is not None
        connection.execute(
            update(schema.trials)
            .where(schema.trials.c.run_id == found.run_id)
            .values(duration_s=schema.trials.c.duration_s + 1)
        )
    engine.dispose()
    with open_ledger(old, writable=False) as opened:
        assert opened.check_all().problems
        with pytest.raises(LedgerError, match="is damaged"):
            opened.load_run(found.run_id)


@pytest.mark.long
def test_an_upgrade_that_is_cut_short_leaves_the_old_one(old: str) -> None:
    """All of it is one transaction: a row that cannot be read is the fault, and the next attempt does it."""
    engine = make_server_engine(make_url(old))
    with engine.begin() as connection:
        connection.execute(text("create view checks as select 1 as run_id"))
    with pytest.raises(LedgerError):
        open_ledger(old).close()
    with engine.begin() as connection:
        assert connection.execute(select(schema.schema.c.version)).scalar() == 1
        connection.execute(text("drop view checks"))
    open_ledger(old).close()
    with engine.begin() as connection:
        assert connection.execute(select(schema.schema.c.version)).scalar() == schema.SCHEMA_VERSION
        connection.execute(delete(schema.checks))
    engine.dispose()

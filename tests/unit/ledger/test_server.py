"""What a server's URL means: libpq's parameters, variables and password files."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy.engine import make_url

from guestmark.core.errors import LedgerError
from guestmark.ledger.postgres import is_transient, read_parameters


def parameters(url: str, **environment: str) -> dict[str, str]:
    return read_parameters(make_url(url), {"PGPASSFILE": "/nonexistent", **environment})


def test_the_url_comes_before_variables_and_they_before_defaults() -> None:
    found = parameters(
        "postgresql://me@db/lab?sslmode=require", PGHOST="other", PGPORT="5433", PGSSLMODE="disable"
    )
    assert (found["host"], found["port"], found["user"], found["dbname"]) == ("db", "5433", "me", "lab")
    assert found["sslmode"] == "require"
    assert parameters("postgresql://me@/")["dbname"] == "me"
    assert parameters("postgresql:///lab?host=/run/postgresql")["host"] == "/run/postgresql"


@pytest.mark.parametrize("query", ["sslmode=perhaps", "colour=red", "port=x"])
def test_what_cannot_be_meant_is_refused(query: str) -> None:
    with pytest.raises(LedgerError):
        parameters(f"postgresql://me@/lab?{query}")


def test_passwords_come_from_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    file = tmp_path / "pgpass"
    file.write_text("# lab\nother:*:*:*:no\ndb:*:lab:me:a\\:b\\\\c\ndb:*:*:*:later\n")
    file.chmod(0o600)
    assert parameters("postgresql://me@db/lab", PGPASSFILE=str(file))["password"] == "a:b\\c"
    assert parameters("postgresql://you@db/lab", PGPASSFILE=str(file))["password"] == "later"
    assert parameters("postgresql://me:mine@db/lab", PGPASSFILE=str(file))["password"] == "mine"
    file.write_text("db:*:lab:us\\\\:ends\ndb:*:lab:\\*:star\ndb:*:lab:me:mine\n")
    assert parameters("postgresql://us%5C@db/lab", PGPASSFILE=str(file))["password"] == "ends"
    assert parameters("postgresql://*@db/lab", PGPASSFILE=str(file))["password"] == "star"
    assert parameters("postgresql://me@db/lab", PGPASSFILE=str(file))["password"] == "mine"
    file.chmod(0o644)
    assert "password" not in parameters("postgresql://me@db/lab", PGPASSFILE=str(file))


@pytest.mark.parametrize(
    ("constraint", "again"), [("pg_type_typname_nsp_index", True), ("trials_pkey", False), (None, False)]
)
def test_a_table_that_another_driver_says_is_being_made_is_there_the_next_time(
    constraint: str | None, again: bool
) -> None:
    """As psycopg words it: attributes in place of the fields of the protocol's message."""

    class UniqueError(Exception):
        sqlstate = "23505"
        diag = SimpleNamespace(constraint_name=constraint)

    assert is_transient(UniqueError("duplicate key value violates unique constraint")) is again

"""What a lab's ledger says when its server cannot be reached, or refuses: a line that is wrong, a line to do."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from guestmark.core.errors import LedgerError
from guestmark.ledger import error_advice, open_ledger
from tests.framework.ledgers import PLAN
from tests.framework.postgresql import Server, postgresql


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a role `bench` that has a password and may do nothing, and one that may only read."""
    with postgresql() as running:
        access = running.directory / "data/pg_hba.conf"
        access.write_text("host all bench 127.0.0.1/32 scram-sha-256\n" + access.read_text())
        with open_ledger(running.url) as ledger, ledger._engine.begin() as link:
            link.execute(text("CREATE ROLE bench LOGIN PASSWORD 'right'"))
            link.execute(text("CREATE ROLE reader LOGIN"))
            link.execute(text("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"))
            link.execute(text("SELECT pg_reload_conf()"))
        yield running


@pytest.fixture(autouse=True)
def password_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where passwords are looked for; empty."""
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    return tmp_path / "pgpass"


def refused(url: str) -> LedgerError:
    """The error of opening it."""
    with pytest.raises(LedgerError) as caught, open_ledger(url):
        pass
    error = caught.value
    assert "\n" not in error.message + error.hint
    assert "{" not in error.message
    return error


@pytest.mark.parametrize(
    ("part", "said", "advice"),
    [
        ("bench:wrong@127.0.0.1:PORT/postgres", 'authentication failed for user "bench"', "~/.pgpass"),
        (
            "bench@127.0.0.1:PORT/postgres",
            "asks for a password for the role 'bench'",
            "put it into ~/.pgpass",
        ),
        ("bench:right@127.0.0.1:PORT/postgres", "permission denied for table", "ledger role ROLE | psql"),
        ("postgres@127.0.0.1:PORT/nowhere", 'database "nowhere" does not exist', "createdb"),
        ("nobody@127.0.0.1:PORT/postgres", 'role "nobody" does not exist', "pg_hba.conf"),
        ("postgres@127.0.0.1:PORT/postgres?sslmode=require", "does not support it", "ssl = on"),
        ("postgres@127.0.0.1:1/postgres", r"\(connection refused\)", "is running and listens"),
        ("postgres@nowhere.invalid/postgres", r"\(its host name has no address\)", "host's name"),
        ("postgres@127.0.0.1:many/postgres", "not a database URL", "e.g. postgresql://"),
        ("postgres@/postgres?host=/nowhere", "no such socket", "unix_socket_directories"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(server: Server, part: str, said: str, advice: str) -> None:
    error = refused(f"postgresql://{part.replace('PORT', str(server.port))}")
    assert re.search(said, error.message)
    assert advice in error.hint


def test_a_password_file_that_is_not_used_is_named(server: Server, password_file: Path) -> None:
    url = f"postgresql://bench@127.0.0.1:{server.port}/postgres"
    password_file.write_text("other:*:*:*:right\n")
    password_file.chmod(0o600)
    assert "has no line for this server" in refused(url).hint
    password_file.write_text("*:*:*:*:right\n")
    password_file.chmod(0o644)
    assert f"chmod 600 {password_file}" in refused(url).hint
    password_file.chmod(0o600)
    assert "permission denied" in refused(url).message  # the password was right


def test_no_password_is_shown() -> None:
    for secret in ("bench:geheim@127.0.0.1:1/x", "bench@127.0.0.1:1/x?password=geheim", "bench:geheim@h:p/x"):
        assert "geheim" not in refused(f"postgresql://{secret}").message


def test_who_takes_a_connection_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guestmark.ledger.postgres.CONNECT_S", 0.5)
    monkeypatch.setattr(error_advice, "CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = refused(f"postgresql://bench@127.0.0.1:{silent.getsockname()[1]}/x?sslmode=disable")
    assert "no answer within 0.5 s" in error.message


def test_a_server_that_may_only_be_read_is_read(server: Server) -> None:
    """As a standby is: the ledger is shown, and a run is refused."""
    with open_ledger(server.url) as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
    with (server.directory / "data/postgresql.conf").open("a") as settings:
        settings.write("default_transaction_read_only = on\n")
    server.stop(signal.SIGINT)
    server.start()
    with open_ledger(server.url, writable=False) as ledger:
        assert ledger.load_run(run_id).id == run_id
        with pytest.raises(LedgerError, match="read-only transaction") as caught:
            ledger.create_run(PLAN, {}, 1)
    assert "name the primary server" in caught.value.hint

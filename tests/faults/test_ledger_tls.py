"""A lab's ledger over TLS: what libpq's parameters say is kept to, against a server with a certificate of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from guestmark.core.errors import LedgerError
from guestmark.ledger import open_ledger
from tests.framework.ledgers import PLAN
from tests.framework.postgresql import Server, postgresql

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="install the package openssl")


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is signed by itself, and its key."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=lab",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that speaks TLS."""
    with postgresql() as running:
        certificate, key = _certificate(tmp_path_factory.mktemp("tls"), "server")
        for file in (certificate, key):
            shutil.copy(file, running.directory / file.name)
        mine = running.directory / key.name
        mine.chmod(0o600)
        if os.getuid() == 0:
            shutil.chown(mine, "postgres")
        with (running.directory / "data/postgresql.conf").open("a") as settings:
            settings.write(
                f"ssl = on\nssl_cert_file = '{running.directory}/server.crt'\nssl_key_file = '{mine}'\n"
            )
        running.stop()
        running.start()
        yield running


def _is_encrypted(url: str) -> bool:
    with open_ledger(url) as ledger:
        ledger.create_run(PLAN, {}, 1)
        asked = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        return bool(
            ledger.run_transaction("asking for TLS", lambda connection: connection.execute(asked).scalar())
        )


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
def test_a_certificate_that_is_known_is_accepted(server: Server, mode: str) -> None:
    assert _is_encrypted(f"{server.url}?sslmode={mode}&sslrootcert={server.directory}/server.crt")


@pytest.mark.parametrize("mode", ["verify-ca", "verify-full"])
def test_another_certificate_is_refused(server: Server, tmp_path: Path, mode: str) -> None:
    other, _ = _certificate(tmp_path, "other")
    with pytest.raises(LedgerError) as told:
        _is_encrypted(f"{server.url}?sslmode={mode}&sslrootcert={other}")
    assert "certificate" in told.value.message.lower()
    assert "\n" not in told.value.message


def test_another_name_is_refused_where_names_are_checked(server: Server) -> None:
    url = server.url.replace("127.0.0.1", "localhost")
    root = f"sslrootcert={server.directory}/server.crt"
    assert _is_encrypted(f"{url}?sslmode=verify-ca&{root}")
    with pytest.raises(LedgerError, match=r"not accepted: [Hh]ostname mismatch") as told:
        _is_encrypted(f"{url}?sslmode=verify-full&{root}")
    assert "the host's name" in told.value.hint


def test_no_encryption_is_had_by_saying_so(server: Server) -> None:
    assert not _is_encrypted(f"{server.url}?sslmode=disable")

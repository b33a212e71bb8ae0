"""Secrets that guestmark is given: in no ledger, bundle, document, page, log or crash file, and on no screen."""

import base64
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.cli import error_report
from guestmark.core import redaction
from guestmark.core.redaction import (
    GONE,
    drop_password,
    redact_text,
    redact_url,
    redact_words,
    register_secret,
)
from guestmark.ledger import open_ledger
from guestmark.ledger.connect import connect_ledger
from tests.framework.command_line import CommandLine
from tests.framework.marks import long
from tests.framework.postgresql import Server, postgresql

SECRET = "s3cr@t:+hunter/2"
SPELLINGS = (SECRET, quote(SECRET), quote(SECRET, safe=""))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with postgresql() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_known", set())


def holds(text: str) -> bool:
    return any(spelling in text for spelling in SPELLINGS)


def with_secret(url: str) -> str:
    return url.replace("postgres@", f"postgres:{quote(SECRET, safe='')}@")


@pytest.mark.parametrize(
    "way",
    [
        "option",
        *(long(way) for way in ("PGPASSWORD", "equals", "parameter", "variable", "passfile")),
    ],
)
def test_nothing_that_is_stored_or_printed_has_the_password(
    guestmark: CommandLine, server: Server, tmp_path: Path, way: str
) -> None:
    """A command that fails after it has printed its environment, documents of every kind, and copies of the run."""
    url, env, options = with_secret(server.url), {}, []
    match way:
        case "option":
            options = ["--ledger", url]
        case "equals":
            options = [f"--ledger={url}"]
        case "parameter":
            options = ["--ledger", f"{server.url}?password={quote(SECRET, safe='')}"]
        case "variable":
            env["GUESTMARK_LEDGER"] = url
        case "PGPASSWORD":
            env |= {"PGPASSWORD": SECRET, "GUESTMARK_LEDGER": server.url}
        case "passfile":
            escaped = SECRET.replace("\\", "\\\\").replace(":", "\\:")
            (tmp_path / "pgpass").write_text(f"*:*:*:*:{escaped}\n")
            (tmp_path / "pgpass").chmod(0o600)
            env |= {"PGPASSFILE": str(tmp_path / "pgpass"), "GUESTMARK_LEDGER": server.url}
    document, page, bundle = (str(tmp_path / name) for name in ("a.json", "a.html", "b.html"))
    env["COPY"] = SECRET
    said = [
        guestmark(
            "exec", "--on", "host", "-r", "2", "--null", "none", "--json", document, "--html", page,
            "--note", f"stored in {url}", *options,
            "--", "sh", "-c", "env >&2; exit 3", env=env,
        )
    ]  # fmt: skip
    assert said[0].status == 3
    for words in (
        ("show", "last", "--details"),
        ("runs", "--json"),
        ("export", "last"),
        ("export", "last", "--bundle", bundle, "--consoles", "--host-name"),
        ("runs", "--check"),
        ("resume", "last", "--blocks", "3"),
    ):
        said.append(guestmark(*words, *options, env=env))
    said.append(guestmark("import", url, "--ledger", str(tmp_path / "imported"), env=env))
    said.append(guestmark("ledger", "copy", url, str(tmp_path / "copied"), env=env))
    said.append(guestmark("runs", "--ledger", url.replace(str(server.port), "1x"), env=env))
    said.append(guestmark("doctor", "--json", env=env))
    for result in said:
        assert not holds(result.stdout + result.stderr)
    for file in (document, page, bundle):
        assert not holds(Path(file).read_text())
    packed = json.loads(re.findall(r'id="guestmark-bundle">(.*?)</script>', Path(bundle).read_text())[0])
    assert not holds(zlib.decompress(base64.b64decode(packed["data"])).decode())
    for where in (server.url, str(tmp_path / "imported"), str(tmp_path / "copied")):
        with open_ledger(where, writable=False) as ledger:
            run = ledger.load_run("last")
            assert run.trials
            assert any(GONE in trial.console + trial.reason for trial in run.trials)
            assert not holds(repr(run))
            assert not holds(repr(ledger.read_annotations(run.id)))
    for kept in (tmp_path / "state").rglob("*"):
        assert not kept.is_file() or not holds(kept.read_bytes().decode(errors="replace"))


def test_a_campaign_keeps_no_password(guestmark: CommandLine, server: Server) -> None:
    url = with_secret(server.url)
    made = guestmark(
        "campaign", "both", "--sides", "a,b", "--verify", "true", "--switch", "true", "--blocks", "1",
        "--ledger", url, "--", "true",
    )  # fmt: skip
    state = next(Path(guestmark.environment["XDG_STATE_HOME"]).rglob("both.json"))
    assert not holds(made.stdout + made.stderr + state.read_text())
    assert drop_password(url) in state.read_text()


def test_a_crash_file_is_its_users_alone_and_has_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    url = f"postgresql://me:{quote(SECRET, safe='')}@h/db"
    monkeypatch.setattr("sys.argv", ["guestmark", "runs", "--ledger", url, f"--x=postgresql://me:{SECRET}@h"])
    register_secret(SECRET)
    assert (
        error_report.report_error(RuntimeError(f"no way to {url} with {SECRET!r}")) == error_report.BUG_STATUS
    )
    (file,) = (tmp_path / "guestmark").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert not holds(file.read_text())
    assert not holds(capsys.readouterr().err)


_PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=4, max_size=20)


@given(_PASSWORDS, st.sampled_from(["--ledger={}", "{}", "-x{}", "see {}"]))
def test_no_url_on_a_command_line_keeps_its_password(password: str, form: str) -> None:
    """However it is spelled: whole or quoted, in a word of its own or behind an option."""
    for spelled in (password, quote(password, safe="")):
        for url in (f"postgresql://me:{spelled}@h:5/db", f"postgresql+pg8000://me:{spelled}@/x?host=/run"):
            (word,) = redact_words([form.format(url)])
            assert word.count(GONE) == 1
            assert word.startswith(form.partition("{}")[0] + "postgresql")
            assert f"me:{GONE}@" in word
            assert redact_url(url).endswith(url.rpartition("@")[2])
            assert drop_password(url) == url.replace(f":{spelled}@", "@", 1)


@given(_PASSWORDS)
def test_what_is_known_is_nowhere(password: str) -> None:
    register_secret(password)
    try:
        for spelled in (password, quote(password, safe="")):
            assert spelled not in redact_text(f"a {spelled} b {spelled}") or spelled in f"a {GONE} b {GONE}"
    finally:
        redaction._known.clear()


def test_words_of_no_url_are_left_alone() -> None:
    for text in (
        "a:b@c",
        "https://example.org/x?y=1",
        "mail me@example.org",
        "ssh:user@host/kvm",
        "12:30 // @",
    ):
        assert redact_text(text) == text
        assert redact_words([text]) == [text]
    assert redact_text("fails at postgresql://me:x@h/db.") == "fails at postgresql://me:***@h/db."
    assert redact_text("postgresql://h/db?password=x&host=y") == "postgresql://h/db?password=***&host=y"


def test_the_passwords_of_libpqs_variables_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    assert redact_text(f"x{SECRET}y") == "x***y"
    monkeypatch.delenv("PGPASSWORD")
    assert redact_text(f"x{SECRET}y") == f"x{SECRET}y"


def test_a_url_that_is_opened_makes_its_password_known(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"driver|connect"):
        connect_ledger("postgresql+no://me:openses@h/db", writable=True, busy_timeout_s=1)
    assert redact_text("openses") == GONE
    assert os.environ.get("PGPASSWORD") is None

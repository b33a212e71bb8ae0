"""What goes wrong is said in a sentence that is true, with a command that works."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError
from guestmark.core.platform_spec import parse_platform
from tests.framework import PACKAGES
from tests.framework.command_line import CommandLine
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import wait_until

_BYTES = os.fsdecode(b"\xff\xfe")


@pytest.fixture
def server() -> Iterator[Server]:
    with postgresql() as made:
        yield made


@pytest.mark.parametrize(
    "words",
    [
        ("show", _BYTES),
        ("resume", _BYTES),
        ("export", _BYTES),
        ("compare", _BYTES, "last"),
        ("rm", _BYTES),
        ("rm", "--undo", _BYTES),
        ("edit", _BYTES, "--tag", "x"),
        ("history", _BYTES),
        ("gate", _BYTES),
        ("ledger", "sign", _BYTES),
        ("block", _BYTES),
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_a_run_that_no_ledger_can_name_is_not_there(guestmark: CommandLine, words: tuple[str, ...]) -> None:
    """The ledger is healthy, and is not called damaged."""
    assert guestmark("exec", "-q", "-r", "1", "--", "true").status == 0
    found = guestmark(*words)
    assert found.status not in {0, 70}, found.stderr
    assert "run" in found.stderr
    assert "there is no" in found.stderr or "not be" in found.stderr
    assert "backup" not in found.stderr
    assert guestmark("runs", "--check").status == 0


def test_the_command_that_continues_an_imported_run_works(guestmark: CommandLine, tmp_path: Path) -> None:
    theirs = CommandLine(tmp_path / "theirs")
    process = theirs.start("exec", "--on", "host", "-r", "50", "--", "sleep", "0.2")
    assert wait_until(theirs.ledger.exists, 30)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    bundle = tmp_path / "b.html"
    assert theirs("export", "last", "--bundle", str(bundle)).status == 0
    assert guestmark("import", str(bundle)).status == 0
    for shown in (guestmark("show", "last"), guestmark("show", "last", "--details")):
        (command,) = (
            line.partition("guestmark resume ")[2]
            for line in shown.stdout.splitlines()
            if line.startswith("Continue: ")
        )
        assert command.endswith(" --trust")
    assert guestmark("resume", *command.split(), "--blocks", "3").status in {0, 2}
    done = guestmark("resume", *command.split())
    assert done.status == 0, done.stderr


@pytest.mark.long
def test_one_interruption_ends_a_run_whose_server_is_gone(guestmark: CommandLine, server: Server) -> None:
    process = guestmark.start(
        "exec", "--on", "host", "-r", "200", "--ledger", server.url, "--", "sleep", "0.2"
    )
    time.sleep(6)
    server.stop(signal.SIGKILL)
    time.sleep(4)
    begin = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert time.monotonic() - begin < 30
    assert b"stopping" in said
    assert process.returncode not in {0, 70}


@pytest.mark.parametrize("name", ["tcg/tcg/tcg/tcg/tcg", "tcg/kvm/kvm/kvm", "ssh:lab1/kvm/kvm/kvm/kvm"])
def test_guests_inside_each_other_have_an_end(name: str) -> None:
    with pytest.raises(UsageError, match="nested guests are too many"):
        parse_platform(name)
    assert parse_platform("ssh:lab1/tcg/tcg/kvm").is_nested


def test_an_installation_that_is_changed_under_a_run_is_no_bug(tmp_path: Path) -> None:
    package = tmp_path / "site"
    shutil.copytree(
        PACKAGES / "guestmark", package / "guestmark", ignore=shutil.ignore_patterns("__pycache__")
    )
    # What was copied has to be older than the process, by a clock of 10 ms.
    time.sleep(0.1)
    code = (
        "import sys, time; from guestmark.cli import error_report; print('ready', flush=True); sys.stdin.readline()\n"
        "sys.exit(error_report.report_error(ImportError('no such module')))"
    )
    for changed in (False, True):
        with subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(package), "XDG_STATE_HOME": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            if changed:
                time.sleep(0.1)
                (package / "guestmark" / "library.py").touch()
            _, said = process.communicate(b"\n")
        assert (b"were changed while it ran" in said) == changed
        assert (b"this is a bug" in said) != changed

"""A tour that cannot begin says why; one that is interrupted says how to go on."""

import signal
import time

import pytest

from tests.framework.command_line import CommandLine
from tests.framework.known import known


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "host"], "a tour compares guests with the host"),
        (["--on", "tcq"], "tcq"),
        (["--blocks", "0"], "--blocks"),
        (["somewhere"], "somewhere"),
    ],
)
def test_wrong_command_lines(guestmark: CommandLine, arguments: list[str], said: str) -> None:
    result = guestmark("tour", *arguments)
    assert result.status == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_no_guest_at_all(guestmark: CommandLine) -> None:
    """The programs of the hypervisors are not found: nothing is measured, and what to install is said."""
    result = guestmark("tour", "--on", "tcg,uml", env={"PATH": "/nowhere"})
    assert result.status != 0
    assert "no guest can be started here" in result.stderr
    assert "qemu" in result.stderr
    assert "block" not in result.stderr
    assert not guestmark.ledger.exists()


@pytest.mark.long
@pytest.mark.usefixtures("guests_known")
@pytest.mark.timeout(200)
def test_an_interrupted_tour(guestmark: CommandLine) -> None:
    process = guestmark.start("tour", "--on", "uml")
    seen = b""
    deadline = time.monotonic() + 150
    while b"block 1 " not in seen and time.monotonic() < deadline and process.poll() is None:
        seen += known(process.stderr).readline()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=40)
    assert process.returncode == 130, seen + stderr
    text = stdout.decode()
    assert "What virtualization costs here" in text
    assert "interrupted" in text
    assert "guestmark resume" in text
    assert b"Traceback" not in stderr
    assert "interrupted" in guestmark("runs").stdout

"""`guestmark shell` in scripts: input from pipes and files, output to them, and its end as exit status."""

import os
import pty
import subprocess
import sys

import pytest

from tests.framework.command_line import CommandLine

SCRIPT = b"echo out; echo err >&2; test -t 0 || echo no terminal; exit 7\n"


def shell(
    guestmark: CommandLine, *arguments: str, limit_s: float = 60, redirect: str = "", given: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """`guestmark shell`, started by a shell that may redirect its standard streams."""
    command = ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "-m", "guestmark", "shell"]
    return subprocess.run(
        [*command, *arguments],
        input=given,
        env={**guestmark.environment, "SHELL": "/bin/sh"},
        cwd=guestmark.folder,
        capture_output=True,
        timeout=limit_s,
        check=False,
    )


@pytest.mark.parametrize("platform", ["host", "uml"])
@pytest.mark.parametrize("source", ["pipe", "file"])
def test_commands_are_read_from(guestmark: CommandLine, platform: str, source: str) -> None:
    (guestmark.folder / "script").write_bytes(SCRIPT)
    ended = shell(guestmark, "--on", platform, given=SCRIPT, redirect="<script" if source == "file" else "")
    assert ended.stdout == b"out\nno terminal\n"  # once, and no echo of the commands
    assert ended.stderr == b"err\n"
    assert ended.returncode == 7


def test_input_that_nobody_reads_does_not_hold_up_the_end(guestmark: CommandLine) -> None:
    """More than any buffer on the way takes."""
    ended = shell(guestmark, "--on", "uml", "--", "sh", "-c", "sleep 1; echo done", given=bytes(64 << 20))
    assert (ended.stdout, ended.stderr, ended.returncode) == (b"done\n", b"", 0)


def test_much_goes_in_and_comes_out_at_the_same_time(guestmark: CommandLine) -> None:
    data = os.urandom(1 << 20) * 24
    ended = shell(guestmark, "--on", "host", "--", "cat", given=data)
    assert ended.returncode == 0
    assert ended.stdout == data


@pytest.mark.parametrize(
    ("redirect", "stdout", "status"),
    [("<&-", b"in:\nout\n", 0), (">&-", b"", 0), ("<&- >&- 2>&-", b"", 0), ("2>&-", b"in:\nout\n", 0)],
)
def test_streams_that_are_closed(guestmark: CommandLine, redirect: str, stdout: bytes, status: int) -> None:
    ended = shell(
        guestmark,
        "--on",
        "host",
        "--",
        "sh",
        "-c",
        "echo in: $(cat); echo out; echo err >&2",
        redirect=redirect,
    )
    assert (ended.stdout, ended.returncode) == (stdout, status)


def test_a_killed_command_is_a_status(guestmark: CommandLine) -> None:
    assert shell(guestmark, "--on", "host", "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_a_reader_that_goes_away_ends_it(guestmark: CommandLine) -> None:
    process = guestmark.start("shell", "--on", "host", "--", "yes")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_terminals_at_both_ends_give_a_terminal(guestmark: CommandLine) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "guestmark", "shell", "--on", "host", "--", "sh", "-c", "tty; exit 3"],
        env=guestmark.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    assert process.wait(30) == 3
    assert b"/dev/pts/" in os.read(ours, 4096)
    os.close(ours)

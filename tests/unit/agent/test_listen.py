"""A server beside a command, and the relay that is one: what a guest's connection by vsock is answered by."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from guestmark.core.own_program import find_agent_binary
from tests.framework.processes import alive, children, wait_until

ECHO = (sys.executable, "-c", "import os\nwhile data := os.read(0, 4096): os.write(1, data.upper())")
AGENT = str(find_agent_binary())


@pytest.fixture(name="at")
def _at(tmp_path: Path) -> Iterator[Path]:
    """Paths of sockets are short: they are relative to here."""
    before = Path.cwd()
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def started(words: Sequence[str], pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen([AGENT, "listen", *words], pass_fds=pass_fds)


def connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    assert wait_until(Path(name).exists)
    connection.connect(name)
    return connection


def test_a_server_answers_beside_the_command_that_was_started(at: Path) -> None:
    script = "test -S one && test -S two && echo $$ > pid; exec sleep 60"
    command = started(["one", *ECHO, "--", AGENT, "listen", "two", *ECHO, "--", "sh", "-c", script])
    try:
        assert wait_until((at / "pid").exists)
        for name in ("one", "two"):
            with connected(name) as connection:
                connection.sendall(b"hello")
                assert connection.recv(16) == b"HELLO"
        # It is the same process, so that whoever has started it can end it.
        assert wait_until(lambda: (at / "pid").read_text() == f"{command.pid}\n")
    finally:
        command.kill()
        command.wait()


@pytest.mark.parametrize("connects", [False, True])
def test_servers_end_with_the_command(at: Path, connects: bool) -> None:
    server = ("sh", "-c", "echo $$ > server; exec sleep 60")
    command = started(["one", *server, "--", "sleep", "60"])
    connection = connected("one") if connects else None
    assert not connects or wait_until(lambda: (at / "server").exists() and (at / "server").read_text())
    assert wait_until(lambda: children(command.pid))
    (pid,) = children(command.pid)
    command.send_signal(signal.SIGKILL)
    command.wait()
    assert wait_until(lambda: not alive(pid))
    if connection:
        assert connection.recv(1) == b""
        connection.close()


def test_a_relay_joins_a_connection_to_an_inherited_stream(at: Path) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(10)
    words = ["one", AGENT, "relay", str(theirs.fileno()), "--", "sleep", "60"]
    command = started(words, pass_fds=[theirs.fileno()])
    theirs.close()
    large = os.urandom(1 << 20)
    try:
        with connected("one") as connection:
            for sender, receiver in ((ours, connection), (connection, ours)):
                for start in range(0, len(large), 1 << 16):
                    piece = large[start : start + (1 << 16)]
                    sender.sendall(piece)
                    got = b""
                    while len(got) < len(piece):
                        got += receiver.recv(len(piece) - len(got))
                    assert got == piece
    finally:
        command.kill()
        command.wait()
    assert ours.recv(1) == b""
    ours.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["listen", "one", "--", "true"], "usage: guestmark-agent listen"),
        (["listen", "one", "true"], "usage: guestmark-agent listen"),
        (["listen", "no/such/place", "true", "--", "true"], "no/such/place: No such file"),
        (["listen", "one", "true", "--", "no-such-program"], "no-such-program: No such file"),
        (["relay"], "usage: guestmark-agent relay FD"),
        (["relay", "2"], "usage: guestmark-agent relay FD"),
        (["relay", "77"], "Bad file descriptor"),
    ],
)
@pytest.mark.usefixtures("at")
def test_what_cannot_be_is_one_line(words: Sequence[str], said: str) -> None:
    done = subprocess.run([AGENT, *words], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 125
    assert said in done.stderr
    assert done.stderr.count("\n") == 1

"""The connection to a server's socket that goes through the agent, with a real socket on the other side."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.workloads.oltp.databases.base import Link


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    _, transport = start_host_agent()
    with Agent(transport) as agent:
        yield agent


def serve(path: Path, answers: list[bytes]) -> threading.Thread:
    """Answers each message of one connection with one of `answers`, then closes it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def work() -> None:
        with listener, listener.accept()[0] as connection:
            for answer in answers:
                if not connection.recv(1 << 16):
                    return
                connection.sendall(answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_bytes_go_both_ways_until_the_server_closes(agent: Agent, tmp_path: Path) -> None:
    answer = bytes(range(256)) * 512
    server = serve(tmp_path / "s", [b"\0\xff\n", answer])
    link = Link(agent, str(tmp_path / "s"), {})
    link.sendall(b"one")
    assert link.recv(1) == b"\0"
    assert link.recv(10) == b"\xff\n"
    stream = link.makefile("rwb")
    stream.write(b"two")
    stream.flush()
    assert stream.read(len(answer)) == answer
    assert stream.read(1) == b""
    server.join(10)
    with pytest.raises(OSError, match="is closed"):
        link.sendall(b"three")


def test_a_socket_that_is_not_there(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"none: No such file"):
        Link(agent, str(tmp_path / "none"), {})


def test_a_server_that_does_not_answer(agent: Agent, tmp_path: Path) -> None:
    server = serve(tmp_path / "s", [b"answer"])
    link = Link(agent, str(tmp_path / "s"), {})
    link.settimeout(0.2)
    with pytest.raises(TimeoutError):
        link.recv(1)
    link.close()
    server.join(10)
    assert not server.is_alive()

"""Captures at both ends of a network name the cause that was planted, on this host and in a guest."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from guestmark.capture.verdict import find_main_cause
from guestmark.core.errors import WorkloadError
from guestmark.platforms.base import HasNetwork
from guestmark.workloads.common import both_ends
from guestmark.workloads.common.both_ends import capture_both_ends
from tests.framework import guests
from tests.framework.marks import long
from tests.framework.processes import wait_until

PORT = 40111
SERVER = """
import socket, sys, time
mode = sys.argv[1]
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if mode == "small":
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
listener.bind(("0.0.0.0", {port}))
listener.listen()
print("ready", flush=True)
peer, _ = listener.accept()
if mode == "slow":
    while peer.recv(100):
        time.sleep(0.03)
        peer.sendall(b"answer")
while peer.recv(100_000 if mode == "reader" else 1000):
    if mode == "reader":
        time.sleep(0.02)
"""
CLIENT = """
import socket, sys
mode = sys.argv[1]
peer = socket.create_connection((sys.argv[2], {port}))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if mode == "slow":
    for _ in range(20):
        peer.sendall(b"question")
        peer.recv(100)
else:
    peer.sendall(bytes({{"reader": 8_000_000, "small": 400_000}}[mode]))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
"""
LIMIT = 60.0


@pytest.mark.skipif(
    shutil.which("dumpcap") is None and shutil.which("tcpdump") is None, reason="no tool captures"
)
@pytest.mark.parametrize("mode", ["slow", "reader", "small"])
@pytest.mark.parametrize(("platform", "network"), [("host", "veth"), long("tcg", "tap"), long("uml", "tap")])
def test_the_planted_cause_is_named(
    platform: str, network: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests capture at the same time, so files of this one have a name of theirs.
    token, numbers = f"{mode}{os.getpid()}", itertools.count()
    named = SimpleNamespace(token_hex=lambda _: f"{token}-{next(numbers)}")
    monkeypatch.setattr(both_ends, "secrets", named)
    if platform == "uml" and mode == "small":
        pytest.skip("UML's own path is as narrow as the smallest buffer, so neither is the main cause")
    # A program that does not read is the server itself; its buffer is to blame only if it does.
    causes = {"slow": "server", "reader": "server", "small": "server_receive_buffer"}
    with guests.start(platform, network=network) as machine:
        assert isinstance(machine, HasNetwork)
        net = machine.network
        assert net is not None
        server = net.peer.background(["python3", "-c", SERVER.format(port=PORT), mode])
        assert server.wait(LIMIT, lambda output: b"ready" in output)
        with capture_both_ends(machine.agent, net.peer, [PORT]) as ends:
            words = ["python3", "-c", CLIENT.format(port=PORT), mode, net.peer_address]
            result = machine.agent.exec(words, timeout_s=LIMIT)
            assert result.ok, result.stderr
        assert ends.causes is not None
        main = find_main_cause(ends.causes)
        assert main is not None
        assert main.cause == causes[mode], ends.description
        assert not list(Path("/tmp").glob(f"*{token}*"))


def test_without_a_connection_there_is_no_cause() -> None:
    with guests.start("host", network="veth") as machine:
        assert isinstance(machine, HasNetwork)
        assert machine.network is not None
        with (
            pytest.raises(WorkloadError, match="both ends"),
            capture_both_ends(machine.agent, machine.network.peer, [PORT]),
        ):
            pass


@pytest.mark.skipif(
    shutil.which("dumpcap") is None and shutil.which("tcpdump") is None, reason="no tool captures"
)
def test_nothing_is_left_of_captures_whose_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import time\nfrom tests.framework.guests import start\n"
        "from guestmark.workloads.common.both_ends import capture_both_ends\n"
        "with start('host', network='veth') as machine:\n"
        "    with capture_both_ends(machine.agent, machine.network.peer, [40111]):\n"
        "        print('ready', flush=True); time.sleep(60)\n"
    )

    def list_files() -> list[Path]:
        # Without a directory of its own an end would write here.
        shared = [path for path in Path("/tmp").glob("guestmark-capture-*") if path.is_file()]
        return [*shared, *tmp_path.glob("**/guestmark-capture-*")]

    before = list_files()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        assert len(list_files()) > len(before)
        owner.kill()
    assert wait_until(lambda: list_files() == before, 20)

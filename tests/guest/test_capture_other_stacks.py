"""Captures of servers whose TCP is not Linux's: lwIP, smoltcp and gVisor's netstack, each over a device of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import Connection
from guestmark.capture.verdict import list_cause_shares
from tests.framework import CHECKOUT
from tests.framework import traffic as ct
from tests.framework.frame_relay import relaying

pytestmark = pytest.mark.long
_SOURCES = CHECKOUT / "tests/stacks"
_DEVICE, _NEAR_DEVICE, _PORT = "far0", "near0", 9000
_NEAR, _FAR = "10.9.0.1/24", "10.9.0.2"
_QUESTION = 64
# Newer kernels have it in every network namespace, and runsc takes such a one for the machine's own.
_IN_SANDBOX = 'mount -t tmpfs none /proc/sys/net/core && exec "$@"'
_SERVER = """
import socket, sys, time
listener = socket.create_server(("", int(sys.argv[1])))
print("ready", flush=True)
while True:
    peer, _ = listener.accept()
    with peer:
        while peer.recv(64, socket.MSG_WAITALL):
            time.sleep(int(sys.argv[2]) / 1000)
            peer.sendall(b"a" * int(sys.argv[3]))
"""


@dataclass(frozen=True)
class Scenario:
    """A server answers `turns` questions with `reply` bytes after `server_ms`.

    The client asks after `client_ms`, and reads `read` bytes at once, `read_ms` apart. Each way takes `way_ms`; of the
    server's packets with data, the share `loss` is lost.
    """

    cause: str
    turns: int = 8
    reply: int = 3000
    server_ms: int = 0
    client_ms: int = 0
    way_ms: int = 0
    read: int = 65536
    read_ms: int = 0
    loss: float = 0.0
    share: float = 0.7


SCENARIOS = {
    "a server that thinks": Scenario("server", server_ms=150),
    "a server that thinks for long": Scenario("server", turns=5, server_ms=1500),
    "a client that thinks": Scenario("client", client_ms=150),
    "a client that reads slowly": Scenario(
        "client", turns=1, reply=3_000_000, read=20_000, read_ms=20, share=0.5
    ),
    "a long way": Scenario("latency", turns=10, reply=1000, way_ms=40),
    "a way that loses": Scenario("recovery", turns=6, reply=30_000, way_ms=5, loss=0.15, share=0.5),
}


def _ip(*words: str) -> None:
    ct.run("ip", *words)


@contextlib.contextmanager
def _started(command: list[str], **environment: str) -> Iterator[None]:
    """A server that says when it is ready, as long as the block runs."""
    # The input is a pipe, as runsc gives what it gets to another user: this host's /dev/null, for instance.
    with subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                if line == b"ready\n":
                    break
                said.append(line)
            else:
                pytest.fail(b"".join(said).decode())
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _lwip(folder: Path, words: list[str]) -> Iterator[None]:
    ct.need("gcc")
    program = folder / "lwip"
    done = subprocess.run(
        ["gcc", "-O1", "-I/usr/include/lwip", "-o", program, _SOURCES / "lwip.c", "-llwip"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"apt-get install liblwip-dev\n{done.stderr}"
    _ip("tuntap", "add", _DEVICE, "mode", "tap")
    with _started([str(program), *words], PRECONFIGURED_TAPIF=_DEVICE):
        yield


@contextlib.contextmanager
def _smoltcp(folder: Path, words: list[str]) -> Iterator[None]:
    program, _ = (CHECKOUT / ".setup/stacks").read_text().split()
    _ip("tuntap", "add", _DEVICE, "mode", "tap")
    with _started([str(CHECKOUT / program), _DEVICE, *words]):
        yield


@contextlib.contextmanager
def _netstack(folder: Path, words: list[str]) -> Iterator[None]:
    ct.need("runsc")
    python = shutil.which("python3", path="/usr/bin:/bin")
    assert python is not None
    with subprocess.Popen(["unshare", "--net", "sleep", "120"]) as holder:
        try:
            own = f"/proc/{holder.pid}/ns/net"
            before = os.readlink("/proc/thread-self/ns/net")
            while os.readlink(own) == before:
                time.sleep(0.01)
            _ip("link", "add", _DEVICE, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
            for line in (f"addr add {_FAR}/24 dev eth0", "link set lo up", "link set eth0 up"):
                ct.run("nsenter", f"--net={own}", "ip", *line.split())
            bundle = folder / "bundle"
            bundle.mkdir()
            process = {
                "user": {"uid": 0, "gid": 0}, "args": [python, "-c", _SERVER, *words], "env": ["PATH=/usr/bin:/bin"],
                "cwd": "/",
            }  # fmt: skip
            kinds = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
            config = {
                "ociVersion": "1.0.2", "process": process, "root": {"path": "/", "readonly": True},
                "linux": {"namespaces": [*kinds, {"type": "network", "path": own}]},
            }  # fmt: skip
            (bundle / "config.json").write_text(json.dumps(config))
            command = [
                "nsenter", f"--net={own}", "unshare", "--mount", "sh", "-c", _IN_SANDBOX, "sh", "runsc",
                f"--root={folder}/state", "--ignore-cgroups", "--network=sandbox", "--gso=false", "--platform=ptrace",
            ]  # fmt: skip
            name = f"gm{os.getpid()}"
            try:
                with _started([*command, "run", f"--bundle={bundle}", name]):
                    yield
            finally:
                subprocess.run([*command, "delete", "--force", name], check=False, capture_output=True)
        finally:
            holder.kill()


STACKS: dict[str, Callable[[Path, list[str]], contextlib.AbstractContextManager[None]]] = {
    "lwIP": _lwip,
    "smoltcp": _smoltcp,
    "netstack": _netstack,
}


def _converse(scenario: Scenario) -> None:
    with socket.socket() as own:
        own.settimeout(60)
        if scenario.read_ms:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40_000)
        own.connect((_FAR, _PORT))
        for _ in range(scenario.turns):
            time.sleep(scenario.client_ms / 1000)
            own.sendall(b"q" * _QUESTION)
            left = scenario.reply
            while left:
                got = len(own.recv(min(left, scenario.read)))
                assert got
                left -= got
                time.sleep(scenario.read_ms / 1000)


def _captured(stack: str, scenario: Scenario, folder: Path) -> dict[str, Connection]:
    """The connection as it was captured at either end."""
    ct.need("dumpcap")
    words = [str(_PORT), str(scenario.server_ms), str(scenario.reply)]
    paths = {device: folder / f"{device}.pcapng" for device in (_NEAR_DEVICE, _DEVICE)}
    with contextlib.ExitStack() as kept:
        kept.enter_context(ct.own_network())
        kept.enter_context(STACKS[stack](folder, words))
        _ip("link", "set", _DEVICE, "up")
        kept.enter_context(relaying(_NEAR_DEVICE, _DEVICE, scenario.way_ms / 1000, scenario.loss))
        _ip("addr", "add", _NEAR, "dev", _NEAR_DEVICE)
        _ip("link", "set", _NEAR_DEVICE, "up")
        with contextlib.ExitStack() as dumps:
            for device, path in paths.items():
                dumps.enter_context(ct.dumping(path, device=device))
            _converse(scenario)
    seen = {device: analyse_file(path).connections for device, path in paths.items()}
    return {device: one for device, all_of in seen.items() for one in all_of if one.server.port == _PORT}


@pytest.mark.skipif(os.getuid() != 0, reason="making devices takes root")
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_who_is_slow_is_told_of_another_stack(name: str, stack: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    captured = _captured(stack, scenario, tmp_path)
    assert set(captured) == {_NEAR_DEVICE, _DEVICE}
    for device, found in captured.items():
        shares = {part.cause: round(part.share, 3) for part in list_cause_shares(found.causes)}
        said = f"{device}: {shares}, {found.confidence}"
        assert max(shares, key=lambda cause: shares[cause]) == scenario.cause, said
        assert shares[scenario.cause] >= scenario.share, said
        if not scenario.loss:
            # lwIP acknowledges after 250 ms, and Linux repeats after 200.
            assert shares.get("recovery", 0.0) <= 0.05, said

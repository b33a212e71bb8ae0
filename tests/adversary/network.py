"""What root on a machine with a network reaches beyond its peer: `python -m tests.adversary.network PLATFORM LEVEL`.

Everything happens in a network namespace of its own, in which "this host" has addresses as clouds and laboratories give
them, and servers that say what has arrived. The program prints that as JSON; nothing of the real network is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from guestmark.agent.client import Agent
from guestmark.platforms.base import HasNetwork
from tests.framework.guests import start

# Of this host: any network's, the cloud's metadata, the resolver of user-mode networks, loopback, and what the peers of
# both networks have.
ADDRESSES = ("192.0.2.1", "169.254.169.254", "10.0.2.3", "10.0.6.1", "127.0.0.1")
ABSTRACT = "guestmark-adversary"
_CLONE_NEWNET = 0x40000000
_SETTLES_S = 0.5
# Runs on the machine, or on the peer: tries each address by TCP and UDP, the last one as its own.
_ATTEMPTS = """
import socket, subprocess, sys
name, gateway, port, *addresses = sys.argv[1:]
for words in (["default", "via", gateway], ["169.254.0.0/16", "via", gateway], ["192.0.2.0/24", "via", gateway]):
    subprocess.run(["ip", "route", "add", *words], capture_output=True)
def say(kind, address):
    return f"{name} {kind} {address}".encode()
for address in addresses:
    try:
        with socket.create_connection((address, int(port)), 0.5) as stream:
            stream.sendall(say("tcp", address))
    except OSError:
        pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(say("udp", address), (address, int(port)))
    except OSError:
        pass
try:
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(chr(0) + "guestmark-adversary")
        stream.sendall(say("abstract", ""))
except OSError:
    pass
"""


@contextlib.contextmanager
def listen(found: set[str]) -> Iterator[int]:
    """Listens on every address of this host, and collects what is said there; yields the port."""
    tcp = socket.create_server(("0.0.0.0", 0))
    port = tcp.getsockname()[1]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("0.0.0.0", port))
    local = socket.socket(socket.AF_UNIX)
    local.bind("\0" + ABSTRACT)
    local.listen()
    over = threading.Event()

    def collect() -> None:
        with selectors.DefaultSelector() as selector:
            for end in (tcp, udp, local):
                selector.register(end, selectors.EVENT_READ)
            while not over.is_set():
                for key, _ in selector.select(0.05):
                    if key.fileobj is udp:
                        found.add(udp.recv(100).decode())
                        continue
                    listener = tcp if key.fileobj is tcp else local
                    with listener.accept()[0] as stream:
                        stream.settimeout(1)
                        found.add(stream.recv(100).decode())

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield port
        time.sleep(_SETTLES_S)
    finally:
        over.set()
        thread.join()
        for end in (tcp, udp, local):
            end.close()


def attempt(agent: Agent, name: str, gateway: str, port: int) -> None:
    """Tries everything on one end."""
    words = ["python3", "-c", _ATTEMPTS, name, gateway, str(port), *ADDRESSES]
    done = agent.exec(words, timeout_s=60)
    assert done.ok, done.stderr


def main() -> int:
    """Prints what was reached, by whom and how."""
    platform, level = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
        print("it needs root, for a network namespace", file=sys.stderr)
        return 1
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES[:-1]:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    found: set[str] = set()
    with listen(found) as port:
        words = [sys.executable, "-c", _ATTEMPTS, "host", "127.0.0.1", str(port), *ADDRESSES]
        subprocess.run(words, check=True)
        # The second network has the same addresses as the first.
        with start(platform, network=level) as machine, start("host", network="veth") as other:
            assert isinstance(machine, HasNetwork)
            assert isinstance(other, HasNetwork)
            network, beside = machine.network, other.network
            assert network is not None
            assert beside is not None
            attempt(machine.agent, "machine", network.peer_address, port)
            attempt(network.peer, "peer", network.machine_address or network.peer_address, port)
    print(json.dumps(sorted(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

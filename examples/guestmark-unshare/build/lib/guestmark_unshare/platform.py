"""How its machines are started and attested."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.keeper import keeper
from guestmark.core.errors import AttestationError, GuestmarkError, MachineError
from guestmark.core.machine_facts import HostMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import Layer, parse_platform
from guestmark.platforms.affinity import placed, starting
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.host.platform import Host

_WITHIN = ("unshare", "--user", "--map-current-user", "--mount", "--uts", "--ipc")
_SPACES = ("user", "mnt", "uts", "ipc")
_READY_S = 10.0
_STOP_S = 2.0


class Unshared(Host):
    """The host in namespaces; attested by comparing them with this process's own."""

    def attest(self) -> HostMachine:
        """Raises `AttestationError` when a namespace is that of this process."""
        for space in _SPACES:
            if _namespace("self", space) == _namespace(str(self.pid), space):
                raise AttestationError(f"the {space} namespace is the host's own")
        return super().attest()


def _namespace(pid: str, space: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{space}")


class UnsharePlatform:
    """Every trial gets an agent in fresh namespaces."""

    def __init__(self, layer: Layer) -> None:
        self.name = str(layer)

    @contextlib.contextmanager
    def start(self, cell: Cell) -> Iterator[Unshared]:
        """Starts an agent; leaving the context ends it with everything it runs."""
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            seat = stack.enter_context(placed(cell, emulator=False))
            try:
                with starting():
                    process, transport = start_host_agent(_WITHIN, hold=(keeper().lifeline,))
            except OSError as error:
                raise MachineError(f"unshare cannot be started: {error.strerror}") from error
            stack.callback(_stop, process)
            agent = Agent(transport)
            stack.callback(agent.close)
            agent.hello(timeout_s=_READY_S)
            ready = {"ready": time.monotonic() - begin}
            yield Unshared(agent, (*_WITHIN, "guestmark-agent"), ready, seat=seat, pid=process.pid)

    def probe(self) -> Usable | Unusable:
        """Starts one and attests it."""
        try:
            with self.start(Cell("probe", WorkloadSpec("probe"), parse_platform(self.name))) as machine:
                machine.attest()
                return Usable(machine.phases["ready"])
        except GuestmarkError as error:
            return Unusable(error.message, error.hint)


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

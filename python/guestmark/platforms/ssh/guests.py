"""`ssh:DEST/tcg`, `ssh:DEST/uml` and so on: guests on another machine that share its root.

The machine's agent runs the hypervisor in the background, as an outer guest's agent does. The hypervisor's lines are
named pipes in the agent's private directory. Each is carried to this host by a separate ssh connection, so that the
control plane talks to the guest's agent and monitor directly. Kernel, initramfs and agent are copied from this host;
the root is that machine's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from guestmark.agent.binary import build_supervise_command
from guestmark.agent.client import Agent
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.agent.results import CallError, CommandError
from guestmark.core.context import Caller
from guestmark.core.errors import AttestationError, MachineError, PlatformUnusableError, UsageError
from guestmark.core.machine_facts import RemoteGuestMachine
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.disks.image import Image
from guestmark.platforms import registry
from guestmark.platforms.base import Unusable, Usable
from guestmark.platforms.guest import Guest, GuestPlatform, GuestWithin
from guestmark.platforms.place import HypervisorProcess, Line, Place, SerialLine
from guestmark.platforms.probe import NO_FACTORS, probe_by_start
from guestmark.platforms.qemu.accelerators import ACCELERATORS
from guestmark.platforms.qemu.nested.outer import remove_outer_factors, start_nested_outer
from guestmark.platforms.qemu.nested.place import InnerProcess, OuterPlace, PortStream
from guestmark.platforms.ssh.platform import Remote, SshPlatform
from guestmark.setting.disk import Disks
from guestmark.setting.machine import MEMORY, PLACEMENT

_PIECE = 1 << 20
_FILE_S = 600.0
_STOP_S = 5.0
_CONNECT_S = 60.0
# Bytes that a login may print before the line begins.
_CHATTER = 256 << 10
_GREETING = b"guestmark-line"
# A pipe that is opened for both directions does not wait for another process and does not break when that ends. The
# line ends when its input from this host ends.
_LINE = f"echo; echo {_GREETING.decode()}; exec 3<&0; cat 0<> {{pipe}}.out & cat <&3 1<> {{pipe}}.in; kill $!"
# One byte signals the hypervisor's script that all lines are connected.
_QEMU = """
cd {scratch} && echo $$ > pid
exec 3<> {agent}.in
until [ "$(head -c1 <&3)" = G ]; do sleep 0.02; done
exec "$@" 3<&- < /dev/null > {console}.out 2>&1
"""
_UML = """
cd {scratch} && echo $$ > pid
exec 3<> {agent}.in
until [ "$(head -c1 <&3)" = G ]; do sleep 0.02; done
exec "$@" 0<> {agent}.in 3<&- 4<> {agent}.out > {console}.out 2>&1
"""


class RemotePlace(OuterPlace):
    """A machine that is reached over ssh and holds one guest at a time. `close` ends its lines."""

    def __init__(self, remote: Remote) -> None:
        super().__init__(cast("Guest", _RemoteAsGuest(remote)), self._open_line)
        self._remote = remote
        self._directory = Path(remote.scratch)
        self._connections: list[_Connection] = []

    def close(self) -> None:
        """Ends the connections that carry the lines."""
        for connection in self._connections:
            connection.close()

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """Returns a hypervisor's process with a separate directory in the agent's directory."""
        self._count += 1
        scratch = self._directory / f"{name}-{self._count}"
        return InnerProcess(self, scratch, traces=confinement.memory_file)

    def make_line(self, name: str) -> Line:
        """Returns two named pipes on the machine."""
        line = _Pipes(self.connect_port(name), self.locate_port(name))
        if name == "agent":
            self._channel = line
        return line

    def make_serial_line(self) -> SerialLine:
        """Returns the agent's pipes."""
        self._channel = line = _SerialPipes(self.connect_port("agent"))
        return line

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Raises `PlatformUnusableError` for a cell with disks, which are not supported on other machines."""
        if cell.view(Disks):
            raise PlatformUnusableError(
                f"{cell.platform}: disks of another machine are not supported",
                hint="measure a workload that needs no disk",
            )
        return contextlib.nullcontext(())

    def locate_file(self, path: Path) -> str:
        """Copies the file into the agent's directory, which is removed at the end; returns its path there."""
        copy = str(self._directory / f"{len(path.name)}-{path.name}")
        with self.hold_agent() as agent:
            agent.write_file(copy, _read_pieces(path), timeout_s=_FILE_S)
        return copy

    def tsc_khz(self) -> int | None:
        """Returns the rate that the agent's binary reports there.

        The binary's file has been removed by now, but the agent's process still has it open.
        """
        with self.hold_agent() as agent:
            done = agent.exec([f"/proc/{agent.hello().pid}/exe", "tsc"], timeout_s=10.0)
        text = done.stdout.strip()
        return int(text) if text.isdigit() else None

    def choose_environment(self) -> Mapping[str, str] | None:
        """Returns None: hypervisors get the agent's environment, which is that of the user there."""
        return None

    def locate_port(self, name: str) -> str:
        """Returns the common path of a line's pipes, without `.in` and `.out`."""
        return f"{self._directory}/inner-{name}"

    def _open_line(self, name: str) -> socket.socket:
        pipe = shlex.quote(self.locate_port(name))
        with self.hold_agent() as agent:
            made = agent.exec(["sh", "-c", f"mkfifo {pipe}.in {pipe}.out"], timeout_s=10.0)
        if made.status != 0:
            errors = made.stderr.decode(errors="replace").strip()
            raise MachineError(f"{self._remote.session.dest} cannot create pipes for a guest: {errors}")
        session = self._remote.session
        connection = _Connection(session.way, _LINE.format(pipe=pipe))
        self._connections.append(connection)
        if not connection.wait_for_greeting(time.monotonic() + _CONNECT_S):
            raise MachineError(
                f"{session.dest} refuses a further connection; a guest there needs three",
                hint=f"check MaxSessions and MaxStartups of its sshd, and try: ssh {session.dest} true",
            )
        return connection.socket


@dataclass(slots=True)
class _RemoteAsGuest:
    """The members of an outer guest that a place needs, for a machine that guestmark did not start."""

    remote: Remote

    @property
    def agent(self) -> Agent:
        return self.remote.agent

    @property
    def process(self) -> _RemoteAsGuest:
        return self

    def is_running(self) -> bool:
        """Returns whether the connection to its agent is open."""
        return not self.remote.agent.closed

    def console(self) -> str:
        """Returns the output of ssh."""
        return self.remote.console()


class _Connection:
    """A shell script on the machine whose standard streams are a socket here."""

    def __init__(self, way: Sequence[str], script: str) -> None:
        self.socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = [*way, f"exec /bin/sh -c {shlex.quote(script)}"]
        try:
            self._process = subprocess.Popen(
                build_supervise_command(command, lifeline_fd=lifeline),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                pass_fds=(lifeline,),
                start_new_session=True,
            )
        finally:
            os.close(lifeline)
            theirs.close()

    def wait_for_greeting(self, deadline: float) -> bool:
        """Waits until the script runs, and skips what the login printed before.

        Reads byte by byte, because the following bytes belong to the guest.
        """
        before = bytearray()
        while not before.endswith(b"\n" + _GREETING + b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or len(before) > _CHATTER:
                return False
            self.socket.settimeout(left)
            try:
                byte = self.socket.recv(1)
            except OSError:
                return False
            if not byte:
                return False
            before += byte
        self.socket.settimeout(None)
        return True

    def close(self) -> None:
        """Ends the script by closing its input."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        os.close(self._lifeline)
        self._process.wait()


class _Pipes(PortStream):
    """Named pipes that QEMU on the other machine opens."""

    script = _QEMU

    def __init__(self, end: socket.socket, path: str) -> None:
        super().__init__(end)
        self._path = path

    def format_chardev(self, name: str) -> str:
        """Returns the option with the path to which QEMU adds `.in` and `.out`."""
        return f"pipe,id={name},path={self._path.replace(',', ',,')}"


class _SerialPipes(PortStream):
    """A serial line of UML on the other machine."""

    script = _UML

    def format_serial(self) -> str:
        """Returns the descriptors that the script opens."""
        return "fd:0,fd:4"


def _read_pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece


_READY_S = 300.0
_UML_PROGRAM = ("linux.uml", "user-mode-linux")
_PROBE_MEMORY = "256M"


class RemoteGuestPlatform:
    """Guests on the machine of the outermost layer; each trial has its own."""

    def __init__(self, spec: PlatformSpec) -> None:
        for layer in spec.layers[1:]:
            if layer.is_foreign:
                raise PlatformUnusableError(
                    "guests of another architecture are not supported on other machines",
                    hint=f"measure {layer} here",
                )
        self.name = str(spec)
        self._spec = spec
        self._outer = cast("SshPlatform", registry.get_layer_platform(spec.outer))
        self._inner = cast("GuestPlatform", registry.get_layer_platform(spec.inner))

    @contextlib.contextmanager
    def start(self, cell: Cell, deadline_s: float | None = None) -> Iterator[RemoteGuest]:
        """Boots the guest there and yields it; see `Platform.start`."""
        if PLACEMENT in cell.levels:
            raise UsageError(
                f"{self.name} does not support placement", hint="placement is for machines on this host"
            )
        with self._outer.start(cell, deadline_s) as remote, contextlib.ExitStack() as stack:
            deadline = time.monotonic() + (deadline_s or _READY_S)
            self._check_program(remote)
            own = RemotePlace(remote)
            stack.callback(own.close)
            with self._name_machine_in_errors():
                place: OuterPlace = own
                for layer in range(1, len(self._spec.layers) - 1):
                    place = start_nested_outer(
                        stack, place, cell, layer, max(1.0, deadline - time.monotonic())
                    )
                of_machine = {factor.name for factor in self._spec.outer.description.accepted_factors}
                left_s = max(1.0, deadline - time.monotonic())
                made = self._inner.start(remove_outer_factors(cell, of_machine), left_s, place=place)
                with made as guest:
                    yield RemoteGuest(guest, remote, place, own)

    def probe(
        self, deadline_s: float | None = None, factors: Mapping[str, str] = NO_FACTORS
    ) -> Usable | Unusable:
        """Boots a guest there and attests it; if that fails, the error is the reason."""
        cell = Cell("probe", WorkloadSpec("probe"), self._spec, {MEMORY.name: _PROBE_MEMORY, **factors})
        return probe_by_start(self, deadline_s or _READY_S, cell)

    def _check_program(self, remote: Remote) -> None:
        layer = self._spec.layers[1]
        emulator = layer.architecture.emulator
        name, package = (emulator.name, emulator.package) if layer.kind in ACCELERATORS else _UML_PROGRAM
        try:
            remote.agent.which(name, path=remote.caller().env.get("PATH"))
        except CommandError as error:
            raise PlatformUnusableError(
                f"{name} is not installed on {self._spec.outer.dest}",
                hint=f"install the package {package} there",
            ) from error

    @contextlib.contextmanager
    def _name_machine_in_errors(self) -> Iterator[None]:
        """Adds to an error which machine it came from."""
        try:
            yield
        except CallError:
            raise
        except MachineError as error:
            kind = AttestationError if isinstance(error, AttestationError) else MachineError
            raise kind(
                f"on {self._spec.outer}: {error.message}",
                hint=error.hint,
                console=error.console,
                phases=error.phases,
            ) from error


class RemoteGuest(GuestWithin):
    """A guest on another machine. Its commands see that machine's files, and its user's environment."""

    def __init__(self, inner: Guest, remote: Remote, place: Place, own: RemotePlace) -> None:
        super().__init__(inner)
        self.place = place
        self._remote = remote
        # The place whose agent may be called by one thread at a time.
        self._own = own
        self._scratch = ""

    @property
    def command_line(self) -> tuple[str, ...]:
        """The command line of ssh, then `/` and the hypervisor's."""
        return (*self._remote.command_line, "/", *self.inner.command_line)

    @property
    def vmm_pid(self) -> int | None:
        """None, because the hypervisor is not a process of this host."""
        return None

    @property
    def scratch(self) -> str:
        """A directory in the guest for files that are copied there."""
        if not self._scratch:
            self._scratch = f"/tmp/guestmark-{secrets.token_hex(8)}"
            self.agent.mkdir(self._scratch, mode=0o700)
        return self._scratch

    def caller(self) -> Caller:
        """Returns the machine's user, who is root in the guest."""
        with self._own.hold_agent():
            return self._remote.caller()

    def attest(self) -> RemoteGuestMachine:
        """Attests the guest from the machine that it runs on, and that machine itself."""
        found = self.inner.attest()
        with self._own.hold_agent():
            return RemoteGuestMachine(**msgspec.structs.asdict(found), on=self._remote.attest())

    def console(self) -> str:
        """Returns the output of the guest and its hypervisor."""
        return self.inner.console()

    def vmm_stats(self) -> Mapping[str, float]:
        """Returns counters of its hypervisor's process, read on that machine."""
        return self.inner.vmm_stats()

    def counters(self) -> Mapping[str, float]:
        """Returns its hypervisor's counters, read on that machine."""
        return self.inner.counters()

    def remarks(self) -> list[str]:
        """Returns remarks about the machine that it runs on."""
        with self._own.hold_agent():
            return self._remote.remarks()

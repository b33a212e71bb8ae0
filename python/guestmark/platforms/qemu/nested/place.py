"""An outer guest as the place where an inner guest's hypervisor runs.

No other part of guestmark runs there: the outer guest's agent runs the inner hypervisor in the background, and three
ports of the outer guest are the inner guest's channel, monitor and console, which its hypervisor opens as files. So
starting an inner guest takes only the time of its hypervisor and its boot, and this host's control plane talks to the
inner agent directly.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from guestmark.agent.background import Background
from guestmark.agent.binary import PROGRAM as AGENT
from guestmark.agent.binary import read_tsc_khz
from guestmark.agent.client import Agent
from guestmark.agent.confinement import HYPERVISOR, STOPS_FILE, Confinement
from guestmark.agent.frames import Transport
from guestmark.agent.results import CallError
from guestmark.core.errors import AgentError, MachineError, PlatformUnusableError
from guestmark.core.model import Cell
from guestmark.disks.image import Image
from guestmark.platforms.guest import Guest
from guestmark.platforms.place import (
    FileIdentity,
    HelperProgram,
    HypervisorProcess,
    InheritedLine,
    Line,
    SerialLine,
    find_last_line,
)
from guestmark.platforms.process import Console, SupervisedProcess
from guestmark.platforms.qemu.nested.images import make_images
from guestmark.setting.disk import Role

_PEER = "peer"
PORTS = ("agent", "monitor", "console", _PEER)
_DIRECTORY = "/run/guestmark"
# Sent on the inner agent's port once all ports are connected.
_GO = b"G"
_TICK_S = 0.05
_MOMENT_S = 0.0005
# How much later than the notice of its end a hypervisor's last output may arrive.
_LAST_WORDS_S = 0.3
_STOP_S = 10.0
_ANSWER_S = 60.0
_SETUP = """
mount -o remount,size=95% /dev/shm
mkdir -p {directory}
for port in /sys/class/virtio-ports/*; do
    read -r name < "$port/name" && ln -sf "/dev/${{port##*/}}" "{directory}/$name"
done
[ ! -e /dev/kvm ] || echo kvm
"""
# The inner hypervisor opens the ports itself. A port can be opened only once, and reads end of file while its other end
# is not connected, so the script first waits for the byte that reports that all are connected.
_QEMU = """
cd {scratch} && echo $$ > pid
until [ "$(head -c1 < {agent})" = G ]; do sleep 0.02; done
exec "$@" < /dev/null > {console} 2>&1
"""
# UML needs pipes; the copying processes become children of the agent, so that UML has only children that it started.
_UML = """
cd {scratch} && echo $$ > pid && mkfifo in out
exec 3<> {agent}
until [ "$(head -c1 <&3)" = G ]; do sleep 0.02; done
(cat <&3 > in &)
(cat < out >&3 &)
exec "$@" 3<&- < in 4> out > {console} 2>&1
"""
# A program beside the hypervisor inherits the port as this descriptor.
_INHERITED = 3
_BESIDE = f"""
cd {{scratch}} && echo $$ > pid
exec {_INHERITED}<> {{agent}}
until [ "$(head -c1 <&{_INHERITED})" = G ]; do sleep 0.02; done
exec "$@" < /dev/null > {{console}} 2>&1
"""


class OuterPlace:
    """A started outer guest that holds one inner guest at a time.

    `connect` returns this host's end of a port, by name. The agent may be called only inside `hold_agent()`, because
    while an inner hypervisor runs, a thread waits on the same connection for the notice of its exit.
    """

    def __init__(self, guest: Guest, connect: Callable[[str], socket.socket]) -> None:
        self.guest = guest
        self.has_kvm = False
        # Sources by content and size; all inner guests share them.
        self.sources: dict[tuple[str, int], Path] = {}
        self.templates: dict[str, Path] = {}
        # Images of this host that are disks of the outer guest.
        self.attached: Mapping[Role, Image] = {}
        self._connect = connect
        self._lock = threading.RLock()
        self._count = 0
        self._channel: PortStream | None = None

    def set_up(self) -> None:
        """Enlarges the memory filesystem for images and inner guests, and names the ports."""
        with self.hold_agent() as agent:
            done = agent.exec(
                ["sh", "-c", _SETUP.format(directory=_DIRECTORY)], timeout_s=agent.stretch_limit(60)
            )
        if done.status != 0:
            errors = done.stderr.decode(errors="replace").strip()
            raise MachineError(
                f"the outer guest cannot be prepared for inner guests: {errors}", console=self.guest.console()
            )
        self.has_kvm = b"kvm" in done.stdout

    @contextlib.contextmanager
    def hold_agent(self) -> Iterator[Agent]:
        """Yields the outer guest's agent, for calls by one thread at a time."""
        with self._lock:
            yield self.guest.agent

    def is_alive(self) -> bool:
        """Returns whether the outer guest still responds."""
        if not self.guest.process.is_running() or self.guest.agent.closed:
            return False
        try:
            with self.hold_agent() as agent:
                agent.read_clock(timeout_s=5.0)
        except AgentError:
            return False
        return True

    # --- the contract of a place

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """Returns a hypervisor's process with a separate directory in the outer guest."""
        self._count += 1
        scratch = Path(_DIRECTORY, f"{name}-{self._count}")
        return InnerProcess(self, scratch, traces=confinement.memory_file)

    def make_line(self, name: str) -> Line:
        """Returns a port of the outer guest. The agent's also carries the byte that starts a waiting hypervisor."""
        port = _Port(self.connect_port(name), self.locate_port(name))
        if name == "agent":
            self._channel = port
        return port

    def make_inherited_line(self) -> InheritedLine:
        """Returns the agent's port."""
        self._channel = port = _InheritedPort(self.connect_port("agent"))
        return port

    def make_serial_line(self) -> SerialLine:
        """Returns the agent's port."""
        self._channel = port = _SerialPort(self.connect_port("agent"))
        return port

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Creates images in the outer guest's memory."""
        return make_images(self, cell)

    def link_image(self, image: Path, scratch: Path, name: str) -> str:
        """Returns the image's own path, which has no special characters, because guestmark names these images."""
        return str(image)

    def read(self, path: str) -> str:
        """Reads a file through the outer guest's agent; undecodable bytes are replaced."""
        return self.read_bytes(path).decode(errors="replace")

    def read_bytes(self, path: str) -> bytes:
        """Reads a file through the outer guest's agent, whose errors become `OSError`."""
        try:
            with self.hold_agent() as agent:
                return agent.read_file(path)
        except CallError as error:
            raise OSError(error.errno or errno.EIO, error.message) from error
        except AgentError as error:
            raise OSError(errno.EIO, error.message) from error

    def read_links(self, directory: str) -> list[str]:
        """Returns the targets of all links below a directory, using `find` in the outer guest."""
        with self.hold_agent() as agent:
            done = agent.exec(
                ["find", directory, "-type", "l", "-printf", "%l\\n"], timeout_s=agent.stretch_limit(60)
            )
        return done.stdout.decode(errors="replace").splitlines()

    def list_descendants(self, pid: int) -> list[int]:
        """Returns the descendants from the outer guest's /proc; those that end meanwhile may be missing."""
        found: list[int] = []
        with contextlib.suppress(OSError):
            for child in self.read(f"/proc/{pid}/task/{pid}/children").split():
                found += [int(child), *self.list_descendants(int(child))]
        return found

    def start_helper(self, command: Sequence[str]) -> HelperProgram:
        """Has the outer guest's agent run the program in the background."""
        with self.hold_agent() as agent:
            return _OuterHelper(self, agent.background(command))

    def identify_file(self, path: Path) -> FileIdentity:
        """Returns the numbers that `stat` prints in the outer guest."""
        with self.hold_agent() as agent:
            done = agent.exec(["stat", "--format=%d %r %i", str(path)], timeout_s=agent.stretch_limit(60))
        if done.status != 0:
            raise OSError(errno.ENOENT, done.stderr.decode(errors="replace").strip())
        return FileIdentity(*map(int, done.stdout.split()))

    def locate_file(self, path: Path) -> str:
        """Returns the path itself: the outer guest has this host's files."""
        return str(path)

    def tsc_khz(self) -> int | None:
        """Returns the rate of this host's counter; emulated processors get the same rate at any depth of nesting."""
        return read_tsc_khz()

    def ask_agent(self, words: Sequence[str]) -> bytes:
        """Has the outer guest's agent execute its own binary; returns the output."""
        with self.hold_agent() as agent:
            done = agent.exec([AGENT, *words], timeout_s=_ANSWER_S, question=True)
        if not done.ok:
            raise MachineError(f"the agent's command {words[0]} failed: {find_last_line(done.stderr)}")
        return done.stdout

    @contextlib.contextmanager
    def start_peer(self, joint: Sequence[str]) -> Iterator[tuple[Agent, int]]:
        """Has the outer guest's agent start another agent, which serves on a separate port."""
        port = self.connect_port(_PEER)
        with self.hold_agent() as agent:
            serve = [AGENT, "serve", f"--channel=virtio:inner-{_PEER}"]
            background = agent.background([AGENT, "network", "make", *joint, "--", *serve])
        with contextlib.ExitStack() as stack:
            stack.callback(self._stop_peer, background, port)
            deadline = time.monotonic() + _ANSWER_S
            # A serving agent sends the first message.
            while not select.select([port], [], [], _MOMENT_S)[0]:
                if not self.poll_background(background) or time.monotonic() > deadline:
                    raise PlatformUnusableError(
                        f"the network cannot be set up inside {self.guest.cell.platform}: "
                        f"{find_last_line(bytes(background.output))}",
                        hint="its kernel needs tun, vhost_net for network=vhost, and vhost_vsock for network=vsock",
                    )
            peer = Agent(Transport.of_socket(port))
            stack.callback(peer.close)
            yield peer, peer.hello(timeout_s=_ANSWER_S).pid

    def _stop_peer(self, background: Background, port: socket.socket) -> None:
        """Ends a peer, and with it the network."""
        with contextlib.suppress(AgentError):
            if not self.guest.agent.closed:
                with self.hold_agent():
                    background.send_signal(9)
                    background.wait(_STOP_S)
        port.close()

    # --- for processes, helpers and ports, which are below

    def choose_environment(self) -> Mapping[str, str] | None:
        """Returns the environment of hypervisors; None for the agent's own."""
        return _list_inner_environment()

    def connect_port(self, name: str) -> socket.socket:
        """Returns this host's end of a port. Raises `MachineError` if the outer guest has ended."""
        try:
            return self._connect(name)
        except OSError as error:
            raise MachineError(
                f"the outer guest's port {name} cannot be reached: {error.strerror}",
                console=self.guest.console(),
            ) from error

    def locate_port(self, name: str) -> str:
        """Returns the path of a port in the outer guest."""
        return f"{_DIRECTORY}/inner-{name}"

    def take_channel(self) -> PortStream:
        """Returns this host's end of the agent's line that was created last."""
        channel, self._channel = self._channel, None
        assert channel is not None, "an inner guest needs a channel to its agent"
        return channel

    def poll_background(self, background: Background) -> bool:
        """Waits briefly for messages of the outer agent; returns whether `background` still runs.

        Raises `AgentError` if the outer guest has ended.
        """
        agent = self.guest.agent
        if agent.closed or not self.guest.process.is_running():
            raise AgentError("the outer guest has ended")
        select.select([agent.fileno()], [], [], _TICK_S)
        if self._lock.acquire(timeout=_TICK_S):
            try:
                while background.is_running and agent.receive_background(time.monotonic() + _MOMENT_S):
                    pass
            finally:
                self._lock.release()
        return background.is_running


class InnerProcess:
    """An inner guest's hypervisor, run by the outer guest's agent; the counterpart of `SupervisedProcess`.

    Times are on this host's clock; the process id and the scratch directory are the outer guest's.
    """

    def __init__(self, place: OuterPlace, scratch: Path, *, traces: bool = False) -> None:
        self.scratch = scratch
        # True for User-Mode Linux, which traces its guest's programs.
        self._traces = traces
        self.writable: tuple[Path, ...] = ()
        self.groups: tuple[Path, ...] = ()
        self.helpers: dict[str, SupervisedProcess] = {}
        self.command: tuple[str, ...] = ()
        self.started_at = 0.0
        self._place = place
        self._console: Console | None = None
        self._console_socket: socket.socket | None = None
        self._channel: socket.socket | None = None
        self._background: Background | None = None
        self._ended = threading.Event()
        self._ended_at = 0.0
        self._stopping = False
        self._pid: int | None = None
        with place.hold_agent() as agent:
            agent.mkdir(str(scratch), parents=True)

    def start(
        self,
        command: Sequence[str],
        pass_fds: Sequence[int] = (),
        *,
        writable: Iterable[Path] = (),
        within: Sequence[str] = (),
    ) -> None:
        """Starts the hypervisor. Raises `MachineError` if the outer guest refuses.

        It may write to all of the outer guest, which is thrown away, whatever is in `writable`; `within` is run there.
        """
        assert not pass_fds, "descriptors cannot be passed to another machine"
        self.command = tuple(command)
        place = self._place
        self._console_socket = place.connect_port("console")
        self._console = Console(os.dup(self._console_socket.fileno()))
        channel = place.take_channel()
        self._channel = channel.own_socket()
        script = channel.script.format(
            scratch=shlex.quote(str(self.scratch)),
            agent=place.locate_port("agent"),
            console=place.locate_port("console"),
        )
        self.started_at = time.monotonic()
        with place.hold_agent() as agent:
            started = ["sh", "-c", script, "guestmark", *within, *command]
            if self._traces:
                started = [AGENT, "traces", f"--stops={self.scratch / STOPS_FILE}", "--", *started]
            self._background = agent.background(started, env=place.choose_environment())
        self._channel.send(_GO)
        threading.Thread(target=self._watch_end, name="inner guest", daemon=True).start()

    @property
    def console(self) -> Console:
        """The collected output."""
        assert self._console is not None, "not started"
        return self._console

    def is_running(self) -> bool:
        """Returns whether the hypervisor still runs, as far as this host knows."""
        return self._background is not None and not self._ended.is_set()

    def pid(self) -> int | None:
        """Returns the hypervisor's process id in the outer guest."""
        if self._pid is None and self.is_running():
            with contextlib.suppress(OSError, ValueError):
                self._pid = int(self._place.read(f"{self.scratch}/pid"))
        return self._pid if self.is_running() else None

    def wait(self, timeout_s: float) -> int | None:
        """Returns the exit status (128 + signal); None if it still runs after `timeout_s`."""
        assert self._background is not None, "not started"
        if not self._ended.wait(timeout_s):
            return None
        ended = self._background.ended
        if ended is None:
            return 125
        if ended.signal is not None:
            return 128 + ended.signal
        return ended.status

    def end_after(self, order: Callable[[], None], timeout_s: float) -> tuple[float, float | None]:
        """Calls `order`; returns the time of the call, and when the notice of the hypervisor's end arrived."""
        ordered = time.monotonic()
        order()
        if not self._ended.wait(timeout_s):
            return ordered, None
        return ordered, self._ended_at

    def stop(self) -> None:
        """Ends the hypervisor and removes its scratch directory in the outer guest. May be called twice."""
        self._stopping = True
        place = self._place
        with contextlib.suppress(AgentError):
            if self._background is not None and not self._ended.is_set():
                with place.hold_agent() as agent:
                    self._background.send_signal(9)
                if not self._ended.wait(_STOP_S):
                    # The outer guest does not respond, so it must not be used again.
                    agent.close()
            if not place.guest.agent.closed:
                with place.hold_agent() as agent:
                    agent.remove(str(self.scratch), recursive=True)
        for end in (self._console_socket, self._channel):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
        self._console_socket = self._channel = None
        if self._console is not None:
            self._console.wait_for_end()

    def _watch_end(self) -> None:
        assert self._background is not None
        with contextlib.suppress(AgentError):
            while self._place.poll_background(self._background):
                pass
        self._ended_at = time.monotonic()
        self._ended.set()
        if not self._stopping:
            time.sleep(_LAST_WORDS_S)
            # This end of a port stays open even if the other end was closed, so a thread that waits for an answer would
            # wait forever.
            for end in (self._channel, self._console_socket):
                if end is not None:
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)


def _list_inner_environment() -> dict[str, str]:
    """Returns this process's variables for inner hypervisors, so that they are the same programs as here."""
    return {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}


class _OuterHelper:
    """A helper program in the outer guest; see `HelperProgram`."""

    def __init__(self, place: OuterPlace, background: Background) -> None:
        self._place = place
        self._background = background

    def is_running(self) -> bool:
        """Waits briefly for the notice of the program's end, which arrives with the agent's answers."""
        with self._place.hold_agent():
            self._background.wait(_MOMENT_S)
        return self._background.is_running

    def end_by_signal(self, number: int, timeout_s: float) -> str:
        """Signals the program through the outer guest's agent."""
        with self._place.hold_agent():
            self._background.send_signal(number)
            if not self._background.wait(timeout_s):
                self._background.send_signal(9)
                self._background.wait(timeout_s)
        return self._background.read_text()


class PortStream:
    """A stream over a port of the outer guest; `script` starts the hypervisor at its other end."""

    script: str

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.fds: tuple[int, ...] = ()

    def own_socket(self) -> socket.socket:
        """Returns this host's end of the port."""
        return self._socket

    def transport(self) -> Transport:
        """Returns a transport over this host's end of the port."""
        return Transport.of_socket(self._socket)

    def close_inherited(self) -> None:
        """Does nothing, as nothing was inherited."""

    def close(self) -> None:
        """Closes this host's end; the port itself remains."""
        self._socket.close()


class _Port(PortStream):
    """A port that QEMU in the outer guest opens as a character device."""

    script = _QEMU

    def __init__(self, end: socket.socket, path: str) -> None:
        super().__init__(end)
        self._path = path

    def format_chardev(self, name: str) -> str:
        """Returns the option for the port's path.

        QEMU finds no pair of pipes at that path and therefore opens it as one file for both directions.
        """
        return f"pipe,id={name},path={self._path}"


class _InheritedPort(PortStream):
    """A port that is inherited by a program that is started with the hypervisor in the outer guest."""

    script = _BESIDE
    descriptor = _INHERITED


class _SerialPort(PortStream):
    """A port that is a serial line of UML in the outer guest."""

    script = _UML

    def format_serial(self) -> str:
        """Returns the descriptors that the script opens."""
        return "fd:0,fd:4"

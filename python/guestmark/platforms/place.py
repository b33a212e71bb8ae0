"""The place where a hypervisor runs: this host, or (`qemu.nested.place`) an outer guest."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable

from guestmark.agent.binary import read_tsc_khz
from guestmark.agent.client import Agent
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.agent.frames import Transport
from guestmark.core.errors import MachineError
from guestmark.core.model import Cell
from guestmark.core.own_program import find_agent_binary
from guestmark.disks import processes
from guestmark.disks.image import Image, make_images
from guestmark.platforms.process import Console, SupervisedProcess
from guestmark.setting.disk import Disks

# With the default size of socket buffers, bulk transfers through the channel would measure system calls.
_CHANNEL_BUFFER = 4 << 20
_SMALL_BYTES = 16 << 20
_ANSWER_S = 30.0


def open_plain_file(path: Path | str) -> BinaryIO:
    """Opens for reading a file that an untrusted program may have created.

    Raises `OSError` for all but regular files: a link leads elsewhere, a pipe may block forever, a device never ends.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def read_plain_file(path: Path | str, at_most: int = _SMALL_BYTES) -> bytes:
    """Returns the content of a small file that `open_plain_file` accepts. Raises `OSError` for other files."""
    with open_plain_file(path) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"more than {at_most} bytes", str(path))
    return content


class FileIdentity(NamedTuple):
    """Numbers that identify a file on its machine."""

    device: int
    # Device number of a device file; 0 for a regular file.
    special: int
    inode: int


class HypervisorProcess(Protocol):
    """The process of one hypervisor; on this host, a `SupervisedProcess`."""

    scratch: Path
    command: tuple[str, ...]
    started_at: float
    # The files and directories of the host that it may change.
    writable: tuple[Path, ...]
    # Its control groups on this host.
    groups: tuple[Path, ...]
    # Processes that it cannot run without; it is ended as soon as one of them ends.
    helpers: dict[str, SupervisedProcess]

    @property
    def console(self) -> Console:
        """The collected output."""

    def start(
        self,
        command: Sequence[str],
        pass_fds: Sequence[int] = (),
        *,
        writable: Iterable[Path] = (),
        within: Sequence[str] = (),
    ) -> None:
        """Starts `command`, which can change only what is `writable`. Raises `MachineError`.

        `within` is a prefix that executes the command after it, for instance in a namespace.
        """

    def is_running(self) -> bool:
        """Returns whether the process still runs."""

    def pid(self) -> int | None:
        """Returns its process id, in the place where it runs."""

    def wait(self, timeout_s: float) -> int | None:
        """Waits for the process and returns its exit status; None if it still runs after `timeout_s`."""

    def end_after(self, order: Callable[[], None], timeout_s: float) -> tuple[float, float | None]:
        """Calls `order` and waits for the process's end; returns both times, None for no end in `timeout_s`."""

    def stop(self) -> None:
        """Stops it with everything that belongs to it."""


class Stream(Protocol):
    """A stream between this process and a hypervisor that is about to be started."""

    # Descriptors that the hypervisor inherits.
    fds: tuple[int, ...]

    def transport(self) -> Transport:
        """Returns a transport over this process's end, for an agent's client."""

    def close_inherited(self) -> None:
        """Closes this process's copies of inherited descriptors, once the hypervisor has been started."""

    def close(self) -> None:
        """Closes everything. May be called twice."""


class Line(Stream, Protocol):
    """A stream that is a character device of QEMU."""

    def format_chardev(self, name: str) -> str:
        """Returns the argument of QEMU's `-chardev` for the id `name`."""

    def own_socket(self) -> socket.socket:
        """Returns this process's end of the socket, for QEMU's monitor."""


class InheritedLine(Stream, Protocol):
    """A stream for a program that is started beside the hypervisor by the same command."""

    @property
    def descriptor(self) -> int:
        """The descriptor's number in that program."""


class SerialLine(Stream, Protocol):
    """A stream that is a serial line of User-Mode Linux."""

    def format_serial(self) -> str:
        """Returns what follows `ssl0=` on UML's command line."""


class HelperProgram(Protocol):
    """A helper program that runs in the background."""

    def is_running(self) -> bool:
        """Returns whether it still runs."""

    def end_by_signal(self, number: int, timeout_s: float) -> str:
        """Sends a signal, waits for the program to exit and returns its output; kills it after `timeout_s`."""


class Place(Protocol):
    """This host or an outer guest; all process ids and paths are those of the place."""

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """Returns a hypervisor's process, which is not started yet.

        In an outer guest, which is thrown away, it is not confined.
        """

    def make_line(self, name: str) -> Line:
        """Returns a stream for QEMU: `agent` or `monitor`."""

    def make_inherited_line(self) -> InheritedLine:
        """Returns a stream for the agent of a hypervisor that has no option for it."""

    def make_serial_line(self) -> SerialLine:
        """Returns a stream for UML."""

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Creates fresh images of the cell's disks; leaving the context removes them."""

    def link_image(self, image: Path, scratch: Path, name: str) -> str:
        """Returns a name for an image, relative to `scratch`, without characters that are special to UML."""

    def read(self, path: str) -> str:
        """Returns the content of a small text file. Raises `OSError`."""

    def read_bytes(self, path: str) -> bytes:
        """Returns the content of a small regular file. Raises `OSError` for other files, too."""

    def read_links(self, directory: str) -> list[str]:
        """Returns the targets of the links in a directory. Raises `OSError`."""

    def list_descendants(self, pid: int) -> list[int]:
        """Returns all descendants of a process."""

    def start_helper(self, command: Sequence[str]) -> HelperProgram:
        """Starts a program in the background."""

    def identify_file(self, path: Path) -> FileIdentity:
        """Returns the numbers that identify a file in the place. Raises `OSError`."""

    def locate_file(self, path: Path) -> str:
        """Returns the path of this host's file in the place."""

    def tsc_khz(self) -> int | None:
        """Returns the rate of the place's time-stamp counter; None if it is unknown."""

    def ask_agent(self, words: Sequence[str]) -> bytes:
        """Returns the output of a command of the agent's binary in the place. Raises `MachineError` if it fails."""


@runtime_checkable
class PlaceOfPeers(Place, Protocol):
    """A place in which an agent there creates networks, because descriptors cannot be passed into it."""

    def start_peer(self, joint: Sequence[str]) -> AbstractContextManager[tuple[Agent, int]]:
        """Starts a peer in a network namespace created with the options `joint`; yields its agent and process id.

        Raises `PlatformUnusableError` if the place does not support such a network.
        """


def make_channel() -> tuple[socket.socket, socket.socket]:
    """Returns a connected pair of sockets: this process's, and the one that the hypervisor inherits."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _CHANNEL_BUFFER)
    return ours, theirs


def find_last_line(said: bytes) -> str:
    """Returns the last line that the agent's binary has printed on standard error."""
    lines = said.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
    return lines[-1].removeprefix("guestmark-agent: ")


class Socketpair:
    """A connected pair of sockets."""

    def __init__(self) -> None:
        self._ours, self._theirs = make_channel()
        self.fds: tuple[int, ...] = (self._theirs.fileno(),)

    @property
    def descriptor(self) -> int:
        """The descriptor number of the inherited socket."""
        return self.fds[0]

    def format_chardev(self, name: str) -> str:
        """Returns the option for the inherited socket."""
        return f"socket,id={name},fd={self.descriptor}"

    def own_socket(self) -> socket.socket:
        """Returns this process's end of the pair."""
        return self._ours

    def transport(self) -> Transport:
        """Returns a transport over this process's end of the pair."""
        return Transport.of_socket(self._ours)

    def close_inherited(self) -> None:
        """Closes the end that the hypervisor has inherited."""
        self._theirs.close()

    def close(self) -> None:
        """Closes both ends."""
        self._ours.close()
        self._theirs.close()


class Pipes:
    """Two pipes, for UML.

    UML reads one byte with each system call, which is faster from a pipe than from a socket, and it loses bytes if
    megabytes are queued in a large socket buffer.
    """

    def __init__(self) -> None:
        self._to_guest, self._from_us = _open_pipe()
        self._from_guest, self._to_us = _open_pipe()
        self.fds: tuple[int, ...] = (self._to_guest.fileno(), self._to_us.fileno())

    def format_serial(self) -> str:
        """Returns the descriptors of the pipes that UML reads from and writes to."""
        return f"fd:{self.fds[0]},fd:{self.fds[1]}"

    def transport(self) -> Transport:
        """Returns a transport over the two pipes."""
        return Transport(self._from_guest.fileno(), self._from_us.fileno(), self._from_us.close)

    def close_inherited(self) -> None:
        """Closes the two ends that UML has inherited."""
        self._to_guest.close()
        self._to_us.close()

    def close(self) -> None:
        """Closes all four ends."""
        for end in (self._to_guest, self._to_us, self._from_us, self._from_guest):
            end.close()


class ThisHost:
    """This host, where hypervisors run under a supervisor."""

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """Returns a hypervisor's process under a supervisor, which ends it when this process ends."""
        return SupervisedProcess(name, confinement)

    def make_line(self, name: str) -> Line:
        """Returns a pair of sockets."""
        return Socketpair()

    def make_inherited_line(self) -> InheritedLine:
        """Returns a pair of sockets."""
        return Socketpair()

    def make_serial_line(self) -> SerialLine:
        """Returns two pipes."""
        return Pipes()

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Creates the images on this host."""
        return make_images(cell.view(Disks))

    def link_image(self, image: Path, scratch: Path, name: str) -> str:
        """Creates a symbolic link in `scratch`, because paths on this host may contain any character."""
        (scratch / name).symlink_to(image)
        return name

    def read(self, path: str) -> str:
        """Reads the file directly; undecodable bytes are replaced."""
        return self.read_bytes(path).decode(errors="replace")

    def read_bytes(self, path: str) -> bytes:
        """Reads the file directly."""
        return read_plain_file(path)

    def read_links(self, directory: str) -> list[str]:
        """Returns the targets of a directory's entries, or of the path itself if it is a link."""
        path = Path(directory)
        if path.is_symlink():
            return [str(path.readlink())]
        return [str(entry.readlink()) for entry in path.iterdir()]

    def list_descendants(self, pid: int) -> list[int]:
        """Reads this host's /proc."""
        return processes.list_descendants(pid)

    def start_helper(self, command: Sequence[str]) -> HelperProgram:
        """Starts a child of this process."""
        return _LocalHelper(command)

    def identify_file(self, path: Path) -> FileIdentity:
        """Reads the file's status."""
        found = path.stat()
        return FileIdentity(found.st_dev, found.st_rdev, found.st_ino)

    def locate_file(self, path: Path) -> str:
        """Returns the path itself."""
        return str(path)

    def tsc_khz(self) -> int | None:
        """Returns this host's rate."""
        return read_tsc_khz()

    def ask_agent(self, words: Sequence[str]) -> bytes:
        """Runs the agent's binary on this host."""
        done = subprocess.run(
            [str(find_agent_binary()), *words],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise MachineError(f"the agent's command {words[0]} failed: {find_last_line(done.stderr)}")
        return done.stdout


class _LocalHelper:
    """A helper program on this host. Its output has to fit into a pipe, which is read only at the end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def is_running(self) -> bool:
        """Polls the child, and reaps it if it has ended."""
        return self._process.poll() is None

    def end_by_signal(self, number: int, timeout_s: float) -> str:
        """Signals the child and reads what it has printed."""
        self._process.send_signal(number)
        try:
            said, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        return said.decode(errors="replace")


HERE = ThisHost()


def _open_pipe() -> tuple[io.FileIO, io.FileIO]:
    """Opens a pipe whose ends are closed when they are garbage-collected."""
    read_fd, write_fd = os.pipe()
    return io.FileIO(read_fd, "r"), io.FileIO(write_fd, "w")

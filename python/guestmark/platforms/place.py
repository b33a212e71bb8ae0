"""Where a hypervisor is started: on this host, or (`nested_place`) in an outer guest that this host has started."""

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
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol

from guestmark.agent.binary import read_tsc_khz
from guestmark.agent.confinement import HYPERVISOR, Confinement
from guestmark.agent.frames import Transport
from guestmark.disks import processes
from guestmark.disks.image import make_images
from guestmark.platforms.process import Console, SupervisedProcess
from guestmark.setting.disk import Disks

if TYPE_CHECKING:
    from guestmark.core.model import Cell
    from guestmark.disks.image import Image

_CHANNEL_BUFFER = 4 << 20
_SMALL_BYTES = 16 << 20


def open_plain_file(path: Path | str) -> BinaryIO:
    """A file that another program may have put there, opened to be read: a plain one.

    Raises `OSError` for anything else: a link leads elsewhere, a pipe may wait for ever, a device never ends.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return file


def read_plain_file(path: Path | str, at_most: int = _SMALL_BYTES) -> bytes:
    """What is in a small file of the kind of `given`. Raises `OSError` for others, and for a larger one."""
    with open_plain_file(path) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, f"more than {at_most} bytes", str(path))
    return content


class FileIdentity(NamedTuple):
    """What tells a file from others."""

    device: int
    special: int  # the device that it is; 0 for a plain file
    inode: int


class HypervisorProcess(Protocol):
    """One hypervisor; see `SupervisedProcess`, which is the one on this host."""

    scratch: Path
    command: tuple[str, ...]
    started_at: float
    writable: tuple[Path, ...]  # what it may change of the host
    groups: tuple[Path, ...]  # control groups of this host that it is in
    helpers: dict[str, SupervisedProcess]  # without which it cannot live

    @property
    def console(self) -> Console:
        """The collected output."""

    def start(
        self, command: Sequence[str], pass_fds: Sequence[int] = (), *, writable: Iterable[Path] = ()
    ) -> None:
        """Starts `command`, which can change only what is `writable`. Raises `MachineError`."""

    def is_running(self) -> bool:
        """Whether it is still there."""

    def pid(self) -> int | None:
        """Process id, where it runs."""

    def wait(self, timeout_s: float) -> int | None:
        """Exit status; None when it is still running."""

    def end_after(self, order: Callable[[], None], timeout_s: float) -> tuple[float, float | None]:
        """Calls `order`; returns when it was given and when the process ended, or None if not by `timeout_s`."""

    def stop(self) -> None:
        """Stops it with everything that belongs to it."""


class Stream(Protocol):
    """Bytes between us and a hypervisor that is about to be started."""

    fds: tuple[int, ...]  # that its process inherits

    def transport(self) -> Transport:
        """Our end, for an agent."""

    def close_inherited(self) -> None:
        """Closes our copies of what the process inherited, once it has been started."""

    def close(self) -> None:
        """Closes everything. May be called twice."""


class Line(Stream, Protocol):
    """A character device of QEMU."""

    def format_chardev(self, name: str) -> str:
        """The `-chardev` of QEMU whose id is `name`."""

    def own_socket(self) -> socket.socket:
        """Our end, for QEMU's monitor."""


class InheritedLine(Stream, Protocol):
    """A stream for a program that is started beside the hypervisor, by the same command."""

    @property
    def descriptor(self) -> int:
        """Its number there."""


class SerialLine(Stream, Protocol):
    """A serial line of User-Mode Linux."""

    def format_serial(self) -> str:
        """What stands behind `ssl0=`."""


class HelperProgram(Protocol):
    """A helper program that runs in the background."""

    def is_running(self) -> bool:
        """Whether it is still running."""

    def end_by_signal(self, number: int, timeout_s: float) -> str:
        """Sends a signal, waits for the program to exit and returns its output; kills it after `timeout_s`."""


class Place(Protocol):
    """This host or an outer guest. Processes and paths are those there."""

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """A hypervisor to be. Inside an outer guest it is not confined: that is thrown away."""

    def make_line(self, name: str) -> Line:
        """A stream for QEMU: `agent` or `monitor`."""

    def make_inherited_line(self) -> InheritedLine:
        """A stream for the agent, where the hypervisor has none that could be told."""

    def make_serial_line(self) -> SerialLine:
        """A stream for UML."""

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Fresh images of the cell's disks."""

    def link_image(self, image: Path, scratch: Path, name: str) -> str:
        """A name for an image, relative to `scratch`, without characters that are special to UML."""

    def read(self, path: str) -> str:
        """Content of a small text file. Raises `OSError`."""

    def read_bytes(self, path: str) -> bytes:
        """Bytes of a small plain file. Raises `OSError`, for others, too."""

    def read_links(self, directory: str) -> list[str]:
        """Where the links in a directory lead. Raises `OSError`."""

    def list_descendants(self, pid: int) -> list[int]:
        """All descendants of a process."""

    def start_helper(self, command: Sequence[str]) -> HelperProgram:
        """Starts a program."""

    def identify_file(self, path: Path) -> FileIdentity:
        """By which its kernel tells a file that is there from others. Raises `OSError`."""

    def locate_file(self, path: Path) -> str:
        """Where a file of this host is found there."""

    def tsc_khz(self) -> int | None:
        """The rate of the time-stamp counter there, where it is known."""


def make_channel() -> tuple[socket.socket, socket.socket]:
    """A connected pair: ours, and the one the hypervisor inherits. Buffers are large, for bulk transfers."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _CHANNEL_BUFFER)
    return ours, theirs


class Socketpair:
    """A connected pair of sockets."""

    def __init__(self) -> None:
        self._ours, self._theirs = make_channel()
        self.fds: tuple[int, ...] = (self._theirs.fileno(),)

    @property
    def descriptor(self) -> int:
        """Of the socket that is inherited."""
        return self.fds[0]

    def format_chardev(self, name: str) -> str:
        """The socket that QEMU inherits, by its descriptor."""
        return f"socket,id={name},fd={self.descriptor}"

    def own_socket(self) -> socket.socket:
        """Our half of the pair."""
        return self._ours

    def transport(self) -> Transport:
        """Reads and writes our half of the pair."""
        return Transport.of_socket(self._ours)

    def close_inherited(self) -> None:
        """Closes the half that QEMU has inherited."""
        self._theirs.close()

    def close(self) -> None:
        """Closes both halves."""
        self._ours.close()
        self._theirs.close()


class Pipes:
    """Two pipes, for UML.

    It takes one byte a system call, which is cheaper from a pipe than from a socket, and it loses bytes when megabytes
    wait in a large socket buffer.
    """

    def __init__(self) -> None:
        self._to_guest, self._from_us = _open_pipe()
        self._from_guest, self._to_us = _open_pipe()
        self.fds: tuple[int, ...] = (self._to_guest.fileno(), self._to_us.fileno())

    def format_serial(self) -> str:
        """The descriptors of the pipes that UML reads from and writes to."""
        return f"fd:{self.fds[0]},fd:{self.fds[1]}"

    def transport(self) -> Transport:
        """Reads one pipe and writes the other."""
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
    """This host."""

    def make_process(self, name: str, confinement: Confinement = HYPERVISOR) -> HypervisorProcess:
        """A hypervisor under a supervisor, which ends it when we die."""
        return SupervisedProcess(name, confinement)

    def make_line(self, name: str) -> Line:
        """A pair of sockets."""
        return Socketpair()

    def make_inherited_line(self) -> InheritedLine:
        """A pair of sockets."""
        return Socketpair()

    def make_serial_line(self) -> SerialLine:
        """Two pipes."""
        return Pipes()

    def prepare_disks(self, cell: Cell) -> AbstractContextManager[tuple[Image, ...]]:
        """Images in this host's store."""
        return make_images(cell.view(Disks))

    def link_image(self, image: Path, scratch: Path, name: str) -> str:
        """A symbolic link in `scratch`: paths on this host may hold anything."""
        (scratch / name).symlink_to(image)
        return name

    def read(self, path: str) -> str:
        """Read directly; bytes that are no text are replaced."""
        return self.read_bytes(path).decode(errors="replace")

    def read_bytes(self, path: str) -> bytes:
        """Read directly."""
        return read_plain_file(path)

    def read_links(self, directory: str) -> list[str]:
        """Of a directory's entries, or of the path itself when it is a link."""
        path = Path(directory)
        return [str(entry.readlink()) for entry in ([path] if path.is_symlink() else path.iterdir())]

    def list_descendants(self, pid: int) -> list[int]:
        """From this host's /proc."""
        return processes.list_descendants(pid)

    def start_helper(self, command: Sequence[str]) -> HelperProgram:
        """A child of this process."""
        return _LocalHelper(command)

    def identify_file(self, path: Path) -> FileIdentity:
        """From its status."""
        found = path.stat()
        return FileIdentity(found.st_dev, found.st_rdev, found.st_ino)

    def locate_file(self, path: Path) -> str:
        """Its own path."""
        return str(path)

    def tsc_khz(self) -> int | None:
        """This host's."""
        return read_tsc_khz()


class _LocalHelper:
    """A helper program on this host. What it prints has to fit into a pipe."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def is_running(self) -> bool:
        """Asks the kernel, and reaps a child that has ended."""
        return self._process.poll() is None

    def end_by_signal(self, number: int, timeout_s: float) -> str:
        """What it printed is read only now."""
        self._process.send_signal(number)
        try:
            said, _ = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            said, _ = self._process.communicate()
        return said.decode(errors="replace")


HERE = ThisHost()


def _open_pipe() -> tuple[io.FileIO, io.FileIO]:
    """The two ends of a pipe, closed when they are dropped."""
    read_fd, write_fd = os.pipe()
    return io.FileIO(read_fd, "r"), io.FileIO(write_fd, "w")

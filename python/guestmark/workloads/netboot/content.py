"""The bytes that are fetched, which are kept only in memory, and the process that serves them."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from guestmark.agent.confinement import HYPERVISOR
from guestmark.core.errors import WorkloadError
from guestmark.workloads.netboot import serve, serve_tftp

_READY_S = 20.0
_PIECE = 1 << 20


@dataclass(slots=True)
class Content:
    """Random bytes for the files of one run; `fd` is a memory file that the server maps as well."""

    fd: int
    view: mmap.mmap
    sha256: str

    def __len__(self) -> int:
        return len(self.view)

    def split_file(self, number: int) -> tuple[slice, slice]:
        """Returns file `number` as two parts of the content, in order; the second may be empty."""
        begin = serve.find_content_offset(len(self), number)
        return slice(begin, len(self)), slice(0, begin)

    def close(self) -> None:
        """Frees the memory."""
        self.view.close()
        os.close(self.fd)


def make_content(size: int) -> Content:
    """Creates `size` random bytes. Raises `WorkloadError` if there is no memory for them."""
    fd = os.memfd_create("guestmark-netboot")
    try:
        digest = hashlib.sha256()
        for begin in range(0, size, _PIECE):
            piece = os.urandom(min(_PIECE, size - begin))
            digest.update(piece)
            os.write(fd, piece)
        return Content(fd, mmap.mmap(fd, size, prot=mmap.PROT_READ), digest.hexdigest())
    except OSError as error:
        os.close(fd)
        raise WorkloadError(
            f"there is no memory for a file of {size} bytes: {error.strerror}", hint="use --scale"
        ) from error


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the file server. It waits `delay_s` before each file, or over TFTP before each block."""

    protocol: str = "http"
    delay_s: float = 0.0
    # PEM file with certificate and key, for https.
    certificate: str = ""

    @property
    def server_name(self) -> str:
        """The server's name in messages."""
        return f"the {self.protocol.upper()} server"

    @property
    def socket_kind(self) -> socket.SocketKind:
        """The type of the server's socket."""
        return socket.SOCK_DGRAM if self.protocol == "tftp" else socket.SOCK_STREAM

    def build_program_arguments(self, others: Mapping[str, Path]) -> tuple[str, list[str]]:
        """Returns the server program's file, and its arguments besides socket and content: `others` by name."""
        named = {name: str(path) for name, path in others.items()}
        if self.protocol == "https":
            named[serve.CERTIFICATE] = self.certificate
        script = serve_tftp.__file__ if self.protocol == "tftp" else serve.__file__
        return script, [str(self.delay_s), *(f"{name}={path}" for name, path in named.items())]


PLAIN = ServerOptions()
_NONE: Mapping[str, Path] = {}


@contextlib.contextmanager
def run_server(
    listening: socket.socket,
    content: Content,
    serving: ServerOptions = PLAIN,
    others: Mapping[str, Path] = _NONE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the process that serves the content, and `others` by name.

    It ends with this context, or with the control plane.
    """
    script, options = serving.build_program_arguments(others)
    program = [sys.executable, "-I", str(Path(script)), str(listening.fileno()), str(content.fd), *options]
    process = subprocess.Popen(
        HYPERVISOR.wrap_command(program, ()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=(listening.fileno(), content.fd),
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise WorkloadError(f"{serving.server_name} did not start (exit status {process.wait(_READY_S)})")
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def measure_rate(connected: socket.socket, content: Content, serving: ServerOptions = PLAIN) -> float:
    """Returns the bytes per second at which the server sends file 0 to a client on the host.

    The bytes are verified. Raises `WorkloadError` if they are wrong.
    """
    digest = hashlib.sha256()
    received = -1
    connected.settimeout(_READY_S)
    with _wrap_in_tls(connected) if serving.protocol == "https" else connected as stream_socket:
        try:
            stream_socket.sendall(b"GET /0 HTTP/1.0\r\n\r\n")
            stream = stream_socket.makefile("rb", buffering=_PIECE)
            while stream.readline() not in (b"\r\n", b""):
                pass
            # A server's artificial delay precedes its answer.
            begin = time.monotonic()
            pieces = list(iter(lambda: stream.read(_PIECE), b""))
            duration = time.monotonic() - begin
        except OSError as error:
            raise WorkloadError(f"the HTTP server does not answer: {error}") from error
    for piece in pieces:
        digest.update(piece)
    received = sum(map(len, pieces))
    if digest.hexdigest() != content.sha256:
        raise WorkloadError(
            f"the HTTP server sent {received} bytes, which differ from the file's {len(content)}"
        )
    return received / duration


def _wrap_in_tls(connected: socket.socket) -> socket.socket:
    """Wraps a connection in TLS, without verifying the certificate, as both ends are on this host."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connected)

"""The HTTP server from which guests fetch files: Python's own, one process, everything from memory.

Run as a program: `serve.py LISTENING_FD CONTENT_FD DELAY_S NAME=PATH...`. It ends when its standard input ends, that
is with its controller. It waits DELAY_S before each answer. Files at PATH are served by name, except `certificate`:
with that, and the key in the same file, it uses TLS. File N is the content rotated by N steps, so that no file leaves
in a guest's memory the bytes that another one should put there. Only the standard library is imported, as it has to
start quickly.
"""

import contextlib
import http.server
import mmap
import os
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CERTIFICATE = "certificate"
# Bytes between the starts of two files; a prime, so that no two files of a run are equal.
STEP = 65_537


def find_content_offset(size: int, number: int) -> int:
    """Returns the offset in the content at which file `number` begins."""
    return number * STEP % size


class _Handler(http.server.BaseHTTPRequestHandler):
    content: memoryview
    delay_s: float
    others: Mapping[str, bytes]

    def do_GET(self) -> None:
        name = self.path.strip("/")
        numbered = name.isdigit() and len(name) <= 9
        if not numbered and name not in self.others:
            self.send_error(404)
            return
        if numbered:
            content = self.content
            begin = find_content_offset(len(content), int(name))
        else:
            content, begin = memoryview(self.others[name]), 0
        if self.delay_s:
            time.sleep(self.delay_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        with contextlib.suppress(OSError):  # a guest that hangs up is detected elsewhere
            self.connection.sendall(content[begin:])
            if begin:
                self.connection.sendall(content[:begin])

    def log_message(self, *_: object) -> None:
        """Logs nothing, because the capture contains more."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        # Not the constructor of TCPServer, which would create a socket: this process may not.
        socketserver.BaseServer.__init__(self, listening.getsockname(), _Handler)
        self.socket = listening
        self.tls = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Finishes a request in the connection's own thread, TLS included."""
        if self.tls is not None:
            request = self.tls.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        """Ignores a guest that hangs up, which is not the server's fault."""


def main(listening_fd: int, content_fd: int, delay_s: float, named: Mapping[str, str]) -> None:
    """Serves until standard input ends."""
    _Handler.content = memoryview(mmap.mmap(content_fd, 0, prot=mmap.PROT_READ))
    _Handler.delay_s = delay_s
    _Handler.others = {name: Path(path).read_bytes() for name, path in named.items() if name != CERTIFICATE}
    tls = None
    if CERTIFICATE in named:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(named[CERTIFICATE])
    server = _Server(socket.socket(fileno=listening_fd), tls)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"ready\n")
    while os.read(0, 64):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(
        int(sys.argv[1]),
        int(sys.argv[2]),
        float(sys.argv[3]),
        dict(word.split("=", 1) for word in sys.argv[4:]),
    )

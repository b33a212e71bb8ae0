"""The HTTP server whose files guests fetch: Python's own, one process, everything from memory.

Run as a program: `serve.py LISTENING_FD CONTENT_FD`. It ends when its standard input does, that is with its
controller. File N of N is the content turned by N steps, so that no file leaves in a guest's memory what another one
should have put there. Only the standard library is imported: it has to start quickly.
"""

import contextlib
import http.server
import mmap
import os
import socket
import sys
import threading

STEP = 65_537  # bytes between the beginnings of two files; prime, so that no two files of a run are alike


def turned(size: int, number: int) -> int:
    """Where in the content file `number` begins."""
    return number * STEP % size


class _Handler(http.server.BaseHTTPRequestHandler):
    content: memoryview

    def do_GET(self) -> None:
        name = self.path.strip("/")
        if not name.isdigit() or len(name) > 9:
            self.send_error(404)
            return
        size = len(self.content)
        begin = turned(size, int(name))
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        with contextlib.suppress(OSError):  # a guest that hangs up is noticed elsewhere
            self.connection.sendall(self.content[begin:])
            if begin:
                self.connection.sendall(self.content[:begin])

    def log_message(self, *_: object) -> None:
        """Nothing: the capture tells more."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()

    def handle_error(self, *_: object) -> None:
        """A guest that hangs up is no fault of the server."""


def main(listening_fd: int, content_fd: int) -> None:
    """Serves until standard input ends."""
    _Handler.content = memoryview(mmap.mmap(content_fd, 0, prot=mmap.PROT_READ))
    server = _Server(socket.socket(fileno=listening_fd))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"ready\n")
    while os.read(0, 64):
        pass
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

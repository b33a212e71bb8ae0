"""An exec service over HTTP: like many services, it returns a command's output only once the command has ended."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Posts the words of a command, prints the command's output, and exits with the command's status.
CLIENT = """
import json, os, sys, urllib.request
request = urllib.request.Request(sys.argv[1], json.dumps(sys.argv[2:]).encode())
answer = json.load(urllib.request.urlopen(request))
os.write(1, answer["stdout"].encode("latin-1"))
sys.exit(answer["status"])
"""


@contextmanager
def serve_commands(enter: str, folder: Path) -> Iterator[str]:
    """Serve commands in machines, which the shell script `enter` runs with `folder` as $0; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with (
                tempfile.TemporaryFile() as printed,
                subprocess.Popen(
                    ["sh", "-c", enter, str(folder), *words],
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                ) as process,
            ):
                # Its standard input stays open until it has ended.
                status = process.wait()
                printed.seek(0)
                answer = {"stdout": printed.read().decode("latin-1"), "status": status}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

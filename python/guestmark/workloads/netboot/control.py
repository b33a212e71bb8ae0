"""The conversation with iPXE, which asks over HTTP what to do next and gets a script as the answer.

Its commands and settings: https://ipxe.org/cmd and https://ipxe.org/cfg.
"""

from __future__ import annotations

import http.server
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

BOOT = "boot.ipxe"  # name of the boot file in DHCP
# Name in the query, and iPXE's setting; settings that are not text have a format that needs no escapes.
_FACTS = {
    "platform": "platform:uristring",
    "version": "version:uristring",
    "chip": "net0/chip:uristring",
    "mac": "net0/mac",
    "ip": "net0/ip",
}


def build_boot_script(control: str) -> str:
    """Returns the first script, with which iPXE reports its settings and asks what to do.

    `control` is the URL of the control server.
    """
    facts = "&".join(f"{name}=${{{setting}}}" for name, setting in _FACTS.items())
    return f"#!ipxe\nchain --replace {control}/hello?{facts}\n"


def build_first_script(control: str) -> str:
    """Returns the script that iPXE starts with on networks whose DHCP names no boot file."""
    return f"#!ipxe\ndhcp && chain {control}/{BOOT} || shell\n"


def build_handover_script(control: str, data: str, arguments: str) -> str:
    """Returns a script that fetches a kernel and its initramfs, reports that, and boots."""
    return "\n".join([
        "#!ipxe",
        f"kernel --name kernel {data}/kernel {arguments} || goto failed",
        f"initrd --name initrd {data}/initrd || goto failed",
        f"imgfetch --name seen {control}/booting || goto failed",
        "imgfree seen",
        "boot || goto failed",
        *_build_failure_lines(control),
    ]) + "\n"  # fmt: skip


def _build_failure_lines(control: str) -> list[str]:
    return [":failed", f"chain --replace {control}/failed?errno=${{errno}}"]


def build_fetch_script(control: str, data: str, numbers: range) -> str:
    """Returns a script that fetches files one after the other; each is kept until the control server has checked it."""
    lines = ["#!ipxe"]
    for number in numbers:
        lines += [
            f"imgfetch --name file {data}/{number} || goto failed",
            f"imgfetch --name seen {control}/fetched?number={number} || goto failed",
            "imgfree seen",
            "imgfree file",
        ]
    lines += [
        f"chain --replace {control}/done || goto failed",
        *_build_failure_lines(control),
    ]
    return "\n".join(lines) + "\n"


NOTHING = "#!ipxe\n"  # a script that does nothing


@dataclass(slots=True)
class Request:
    """A request from iPXE: the first word of its path, and its query. iPXE waits until `answer` is called."""

    kind: str
    values: Mapping[str, str]
    _text: str | None = None
    _answered: threading.Event = field(default_factory=threading.Event)

    def answer(self, script: str) -> None:
        """Lets iPXE continue with this script (or image)."""
        self._text = script
        self._answered.set()

    def wait(self, timeout_s: float) -> str | None:
        """Waits for the answer and returns it; None if there is none in time."""
        return self._text if self._answered.wait(timeout_s) else None


class Control:
    """Serves iPXE. A path in `scripts` is answered at once; any other one becomes a `Request` in the queue."""

    def __init__(self, listening: socket.socket, scripts: Mapping[str, str]) -> None:
        self.requests: queue.Queue[Request] = queue.Queue()
        self.fetched: list[str] = []  # paths of scripts that were requested
        # When connections arrived, on the monotonic clock.
        self.accepted: list[float] = []
        self.closing = False
        self._server = _Server(listening, self, dict(scripts))
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="control", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Control:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing = True
        self._server.shutdown()
        self._server.server_close()

    def next(self, check: Callable[[], None], deadline: Callable[[], float]) -> Request | None:
        """Returns the next request, None at the deadline; meanwhile calls `check`, which may raise."""
        while (left := deadline()) > 0:
            check()
            try:
                return self.requests.get(timeout=min(left, 0.1))
            except queue.Empty:
                continue
        return None


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, control: Control, scripts: Mapping[str, str]) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_address = listening.getsockname()
        self.control = control
        self.scripts = scripts

    def get_request(self) -> tuple[socket.socket, Any]:
        found: tuple[socket.socket, Any] = super().get_request()
        self.control.accepted.append(time.monotonic())
        return found

    def handle_error(self, *_: object) -> None:
        """Ignores a guest that hangs up or dies, which is detected elsewhere."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        control = self.server.control
        split = urlsplit(self.path)
        kind = split.path.strip("/")
        script = self.server.scripts.get(kind)
        if script is not None:
            control.fetched.append(kind)
            self._send_reply(script)
            return
        request = Request(kind, _parse_query(split.query))
        control.requests.put(request)
        while not control.closing:
            if (text := request.wait(0.2)) is not None:
                self._send_reply(text)
                return

    def _send_reply(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Logs nothing: requests are in the queue."""


def _parse_query(text: str) -> dict[str, str]:
    """Parses `a=1&b=2`; a plus sign stands for itself, as iPXE writes it."""
    pairs = (part.partition("=") for part in text.split("&") if part)
    return {name: unquote(value) for name, _, value in pairs}

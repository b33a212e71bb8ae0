"""Matches users' regular expressions in a process that can be killed.

Python's engine backtracks: `(a+)+$` takes longer than anybody can wait. This file is the client and, run as a program,
the worker, which the kernel kills when one request takes too much processor time or memory. It imports nothing of
guestmark, so that the worker starts quickly.

RE2, which never backtracks, would make the worker unnecessary, but it is another language: plans that are valid today
use lookaround, back-references or `(?x)`, which google-re2 1.1 refuses. It also has no wheels for musl or Python 3.15,
reports no position of a mistake, writes to stderr, and took six times as long for 200,000 matches.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Processor time that one request may take.
LIMIT_S = 10.0
# A worker on a busy host waits for a processor, so the wall clock gives it this much longer.
_GRACE_S = 60.0
# Bytes of the worker's address space.
_MEMORY = 2 << 30
_SIZE = struct.Struct("<Q")


class PatternError(ValueError):
    """The text is not a regular expression; `position` is where the mistake is."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class TooCostlyError(Exception):
    """Matching an expression took too much time or memory."""


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of an expression: their number, and the names of the named ones."""

    count: int
    names: tuple[str, ...]


def read_groups(pattern: str) -> Groups:
    """Compile an expression and return its groups.

    Raises `PatternError`, also for an expression that is too large to be compiled within the limits.
    """
    try:
        answer = _worker.ask({"pattern": pattern}, LIMIT_S)
    except TooCostlyError as error:
        raise PatternError("too large") from error
    return Groups(answer["groups"], tuple(answer["names"]))


def find_last_match(pattern: str, texts: Sequence[str], limit_s: float = LIMIT_S) -> str | None:
    """Return the last match in the first text that has one, or None. `^` and `$` match at lines.

    The match is reduced to its group `value`, or else to its only group if it has just one. Raises `PatternError`, and
    `TooCostlyError` after `limit_s` seconds of processor time (at most `LIMIT_S`).
    """
    found = _worker.ask({"pattern": pattern, "texts": list(texts)}, min(limit_s, LIMIT_S))["found"]
    return None if found is None else str(found)


class _Worker:
    """The worker process: started when first needed, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", __file__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                )
            try:
                answer = _exchange_messages(
                    self._process, {**request, "limit_s": limit_s}, limit_s + _GRACE_S
                )
            except BaseException:
                self.end()
                raise
        if answer.get("costly"):
            raise TooCostlyError("too much memory")
        if "error" in answer:
            raise PatternError(answer["error"], answer["position"])
        return answer

    def end(self) -> None:
        """Kill the process. Another one is started for the next request."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def forget(self) -> None:
        """Leave the worker to the parent; called in a forked child. The worker lives as long as its pipe is open."""
        process, self._process, self._lock = self._process, None, threading.Lock()
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # not this process's child


_worker = _Worker()
os.register_at_fork(after_in_child=_worker.forget)


def _exchange_messages(
    process: subprocess.Popen[bytes], request: dict[str, Any], limit_s: float
) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    end = time.monotonic() + limit_s
    data = json.dumps(request).encode()
    try:
        for piece in (_SIZE.pack(len(data)), data):
            rest = memoryview(piece)
            while rest:
                rest = rest[process.stdin.write(rest) or 0 :]
        size = _SIZE.unpack(_read_bytes(process.stdout.fileno(), _SIZE.size, end))[0]
        answer: dict[str, Any] = json.loads(_read_bytes(process.stdout.fileno(), size, end))
    except (EOFError, BrokenPipeError, TimeoutError) as error:
        raise TooCostlyError(f"too much time, over {limit_s - _GRACE_S:g} s") from error
    return answer


def _read_bytes(fd: int, size: int, end: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not select.select([fd], [], [], max(end - time.monotonic(), 0))[0]:
            raise TimeoutError
        piece = os.read(fd, min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


# --- the worker ---------------------------------------------------------------------------------------------


def _answer_request(pattern: str, texts: Sequence[str]) -> dict[str, Any]:
    try:
        expression = re.compile(pattern, re.MULTILINE)
        names = expression.groupindex
        group: int | str = "value" if "value" in names else min(expression.groups, 1)
        found = None
        for text in texts:
            for match in expression.finditer(text):
                found = match.group(group) or ""
            if found is not None:
                break
    except re.error as error:
        return {"error": error.msg, "position": error.pos or 0}
    except (OverflowError, RecursionError):
        return {"error": "too large", "position": 0}
    except MemoryError:
        return {"costly": True}
    return {"groups": expression.groups, "names": list(names), "found": found}


def _serve_requests() -> None:
    import resource
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the client's: it ends this process by closing the pipe
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while head := sys.stdin.buffer.read(_SIZE.size):
        request = json.loads(sys.stdin.buffer.read(_SIZE.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_PROF, max(request["limit_s"], 0.1))  # SIGPROF ends the process
        answer = json.dumps(_answer_request(request["pattern"], request.get("texts", ()))).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        re.purge()
        sys.stdout.buffer.write(_SIZE.pack(len(answer)) + answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve_requests()

"""Starts calls of the command line by forking a process that has its modules loaded already.

Importing numpy, SciPy and SQLAlchemy takes more processor time than most calls of the tests, of which there are
hundreds. One process for each worker of pytest imports everything once and forks for every call. The call is still a
child of the test (its pid, signals, exit status, process group, files and environment are those that
`subprocess.Popen` would have given it), and it runs `guestmark/__main__.py` from its first line. Calls whose start
itself matters are started as usual.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from tests.framework import IMPORTABLE

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_CHUNK = 1 << 16
_ADOPTED = b"!"  # sent when the intermediate process has ended
# Prefixes of variables that the interpreter itself, or the dynamic loader, reads when it starts.
_OF_THE_INTERPRETER = ("PYTHON", "LD_", "LC_", "LANG", "TZ", "MALLOC_")


def same_interpreter(environment: Mapping[str, str]) -> bool:
    """Return whether this environment would give an interpreter with the same settings as this one."""

    def concerns(values: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in values.items() if name.startswith(_OF_THE_INTERPRETER)}

    return concerns({**environment, "PYTHONPATH": ""}) == concerns({**os.environ, "PYTHONPATH": ""})


class PreloadedCall(subprocess.Popen[bytes]):
    """`python -m guestmark …` as `subprocess.Popen` starts it, but forked from the process that has it loaded."""

    def _execute_child(self, args: Sequence[str], *more: Any) -> None:
        """Have the keeper fork the call: the only step of `Popen` that differs."""
        usual = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        given = inspect.signature(usual).bind(self, args, *more).arguments
        assert not any(given[name] for name in ("preexec_fn", "pass_fds", "shell")), "not a plain call"
        order = {
            "arguments": args,
            "cwd": str(given["cwd"] or os.getcwd()),
            "environment": dict(given["env"]),
            "session": given["start_new_session"],
        }
        theirs = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _keeper().fork(order, [number if end == -1 else end for number, end in enumerate(theirs)])
        self._child_created = True
        ends = (given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a whole call with these variables added to this process's, for at most a minute."""
    command = [sys.executable, "-m", "guestmark", *arguments]
    with PreloadedCall(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=60)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout.decode(), stderr.decode())


class _Keeper:
    """The process that has everything loaded, and the socket to it."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair()
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": IMPORTABLE},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(self.end)

    def fork(self, order: Mapping[str, object], streams: Sequence[int]) -> int:
        """Have a call forked; return its pid, which becomes our child."""
        data = json.dumps(order).encode()
        with self.lock:
            _be_subreaper(True)  # for this moment only: later orphans are init's, as always
            try:
                head = len(data).to_bytes(4, "little")
                socket.send_fds(self.line, [head], list(streams))
                self.line.sendall(data)
                call = int.from_bytes(_read(self.line, 4), "little")
                _read(self.line, len(_ADOPTED))
                return call
            finally:
                _be_subreaper(False)

    def end(self) -> None:
        self.line.close()
        self.process.wait()


@cache
def _keeper() -> _Keeper:
    """Return the keeper of this process, which is started when first needed."""
    return _Keeper()


def _be_subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _read(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = line.recv(min(size - len(data), _CHUNK))
        if not more:
            raise EOFError
        data += more
    return data


def _serve(line: socket.socket) -> list[str]:
    """Fork for every order. Returns only in the forked calls, with their arguments; ends when the socket is closed."""
    while True:
        head, streams, _, _ = socket.recv_fds(line, 4, 3)
        if not head:
            os._exit(0)
        order = json.loads(_read(line, int.from_bytes(head, "little")))
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            line.sendall(_ADOPTED)
            for stream in streams:
                os.close(stream)
            continue
        between = os.getpid()
        call = os.fork()
        if call:
            line.sendall(call.to_bytes(4, "little"))
            os._exit(0)
        while os.getppid() == between:  # until the test is its parent
            os.sched_yield()
        return _become(order, streams, line)


def _become(order: dict[str, Any], streams: Sequence[int], line: socket.socket) -> list[str]:
    """Turn this process into what a started one would be: directory, session, streams, environment, signals."""
    line.close()
    if order["session"]:
        os.setsid()
    os.chdir(order["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 64)
    os.environ.clear()
    os.environ.update(order["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 (buffered as the interpreter's own)
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    sys.orig_argv = list(order["arguments"])
    return list(order["arguments"])


def _load() -> None:
    """Import the modules that calls import, without starting anything."""
    import importlib
    import pkgutil

    import guestmark

    for module in pkgutil.walk_packages(guestmark.__path__, "guestmark."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    import sqlalchemy.dialects.sqlite  # noqa: F401


def _main() -> None:
    import gc
    import runpy

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which ends us by the line
    line = socket.socket(fileno=int(sys.argv[1]))
    _load()
    gc.freeze()  # what is loaded is not copied by the first collection of every call
    arguments = _serve(line)
    sys.argv = arguments[2:]
    try:
        runpy.run_module("guestmark", run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        if isinstance(ending.code, int):
            _end_without_freeing(ending.code)
        raise


def _end_without_freeing(status: int) -> None:
    """End as the interpreter does, but do not free what is loaded: that would copy 60 MB first.

    Returns if standard output or error cannot be written; the interpreter then says so.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return
    os._exit(status)


if __name__ == "__main__":
    _main()

"""The engine that gives blocks to idle machines: Parsl's high-throughput executor, unmodified.

It is configured never to repeat a task by itself. Its interchange listens on loopback; workers on other machines reach
it through their ssh connection, with keys created for this fleet (CurveZMQ).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from guestmark import __version__
from guestmark.core.errors import GuestmarkError
from guestmark.page.text import last_inert_line

# A machine is lost if it sends nothing for GIVE_UP_S.
HEARTBEAT_S, GIVE_UP_S = 5, 20
_CLOSING_S = 5.0
# The time between two wake-ups of an idle worker, each of which may disturb a measurement.
POLL_MS = 1000
_LOOPBACK = "127.0.0.1"
_INTERCHANGE = "parsl.executors.high_throughput.interchange"
# Starts the interchange so that the kernel kills it when its parent has ended, even if the parent was killed or the
# interchange is stopped (PR_SET_PDEATHSIG, SIGKILL). It has its own session, because Ctrl-C must reach only the
# coordinator, which then ends it. Its messages go to a file: a pipe would have no reader if the parent ended first.
_TIED_INTERCHANGE = (
    "import ctypes, os, runpy, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.path.isdir(os.path.dirname(sys.argv[1])) or sys.exit(); "
    "os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2); "
    "os.getpgrp() == os.getpid() or os.setsid(); "
    f"sys.argv = ['interchange']; runpy.run_module('{_INTERCHANGE}', run_name='__main__')"
)
_START_S, _STEP_S = 60.0, 0.2
_NO_SECRET = "0" * 40


def require_parsl() -> None:
    """Raise `GuestmarkError` if Parsl is not installed."""
    if importlib.util.find_spec("parsl") is None:
        raise GuestmarkError(
            "a fleet needs the engine Parsl, which is not installed",
            hint=f"{sys.executable} -m pip install 'guestmark[fleet]', here and on the lab's machines",
        )


def read_versions() -> dict[str, str]:
    """Return the installed versions that must match on all machines of a fleet."""
    found = {"guestmark": __version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["Parsl"] = importlib.metadata.version("parsl")
    return found


def describe_version_mismatch(machine: str, there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """Return why a machine with versions `there` cannot join a fleet that runs versions `here`; empty if it can."""
    for name, version in there.items():
        if version != here.get(name, ""):
            ours = f"{name} {here[name]}" if name in here else f"an unknown version of {name}"
            return f"{machine} has {name} {version}, but the fleet is run with {ours}"
    return ""


INSTALL_ALIKE = "install the same version of guestmark, with its extra fleet, on all machines of the lab"


class EngineError(GuestmarkError):
    """The engine ended before it could be used."""


class ParslEngine:
    """One running interchange. `directory` is private and holds its keys and logs. Raises `EngineError`."""

    def __init__(self, directory: Path) -> None:
        # Untyped, as Parsl need not be installed where mypy runs.
        executors: Any = importlib.import_module("parsl.executors")
        providers: Any = importlib.import_module("parsl.providers")
        logging.getLogger("parsl").setLevel(logging.CRITICAL)
        self._executor: Any = executors.HighThroughputExecutor(
            label="guestmark",
            provider=providers.LocalProvider(init_blocks=0, min_blocks=0, max_blocks=0),
            interchange_launch_cmd=[sys.executable, "-c", _TIED_INTERCHANGE, str(directory / "said")],
            address=_LOOPBACK,
            loopback_address=_LOOPBACK,
            worker_port_range=(20000, 60000),
            interchange_port_range=(20000, 60000),
            max_workers_per_node=1,
            heartbeat_period=HEARTBEAT_S,
            heartbeat_threshold=GIVE_UP_S,
            poll_period=POLL_MS,
            encrypted=True,
        )
        self._executor.run_dir = str(directory)
        self._executor.provider.script_dir = str(directory)
        # Otherwise one machine with another Python version would end the engine for all. Tasks are plain bytes, which
        # any version accepts, and workers compare the versions that matter.
        self._executor._check_python_mismatch = False
        self._start_interchange(directory / "said")
        self._closed = threading.Event()
        # The workers that the interchange has heard from lately, with the number of blocks of each.
        self.present: Mapping[str, int] = {}
        # True if the interchange has not answered in time.
        self._silent = False
        self._watching = threading.Thread(target=self._poll_interchange, name="engine", daemon=True)
        self._watching.start()

    def _start_interchange(self, said: Path) -> None:
        """Start the interchange; a timer's signal handler checks meanwhile whether it has ended.

        Parsl would wait two minutes for the answer of a dead interchange. Another thread cannot start it instead,
        because PR_SET_PDEATHSIG kills the interchange when the thread that started it ends.
        """
        until = time.monotonic() + _START_S

        def look(*_: object) -> None:
            process = self._executor.interchange_proc
            if process is None:
                return
            if process.poll() is not None:
                raise EngineError(
                    f"the engine ended while it was starting: {_read_last_message(said)}",
                    hint="check that the temporary directory has free space",
                )
            if time.monotonic() > until:
                process.kill()
                process.wait()
                raise EngineError(
                    f"the engine was not ready after {_START_S:.0f} s",
                    hint="check whether this machine is overloaded",
                )

        if threading.current_thread() is not threading.main_thread():
            self._executor.start()
            return
        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, _STEP_S, _STEP_S)
        try:
            self._executor.start()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _poll_interchange(self) -> None:
        """Poll the interchange to notice if it hangs."""
        while not self._closed.wait(HEARTBEAT_S):
            try:
                found = self._executor.command_client.run("MANAGERS", timeout_s=GIVE_UP_S)
                self.present = {str(worker["block_id"]): int(worker["tasks"]) for worker in found}
            except Exception:  # from the engine or ZeroMQ, or because the engine is being closed
                self._silent = True
                return

    @property
    def port(self) -> int:
        """The port on loopback to which workers connect."""
        return int(self._executor.worker_port)

    def make_worker_arguments(self, machine: str) -> list[str]:
        """Return the arguments of a machine's worker, except those for directories, which the worker adds."""
        return [
            "--addresses", _LOOPBACK,
            "--port", str(self.port),
            "--uid", machine,
            "--block_id", machine,
            "--max_workers_per_node", "1",
            "--cores_per_worker", "1e-6",
            "--mem_per_worker", "None",
            "--drain_period", "None",
            "--prefetch_capacity", "0",
            "--poll", str(POLL_MS),
            "--hb_period", str(HEARTBEAT_S),
            "--hb_threshold", str(GIVE_UP_S),
            "--cpu-affinity", "none",
            "--available-accelerators",
        ]  # fmt: skip

    def read_worker_keys(self) -> dict[str, str]:
        """Return the key files that a worker needs, by name, without the interchange's secret key."""
        keys = Path(self._executor.cert_dir)
        public = (keys / "server.key").read_text()
        return {
            "client.key_secret": (keys / "client.key_secret").read_text(),
            # Parsl's reader expects both keys, but a worker uses only the public one.
            "server.key_secret": f'{public.rstrip()}\n    secret-key = "{_NO_SECRET}"\n',
        }

    def submit_block(self, block: Callable[[bytes], bytes], order: bytes) -> Future[bytes]:
        """Let an idle machine run its next block. The future fails if that machine is lost."""
        future: Future[bytes] = self._executor.submit(block, {}, order)
        return future

    def is_running(self) -> bool:
        """Return whether the interchange runs and answers."""
        there = self._executor.interchange_proc.poll() is None
        return there and not self._silent and not self._executor.bad_state_is_set

    def close(self) -> None:
        """End the engine. Workers that are still connected end by themselves."""
        self._closed.set()
        self._watching.join(_CLOSING_S)
        process = self._executor.interchange_proc
        # The thread may still be waiting for an answer.
        waiting = self._watching.is_alive()
        if self._silent or waiting:
            process.kill()
        # ZeroMQ's sockets must not be closed while another thread uses them.
        if not waiting:
            # Closing may hang while a socket tries to deliver messages to an interchange that has ended.
            closing = threading.Thread(target=self._shut_down, name="engine's end", daemon=True)
            closing.start()
            closing.join(2 * _CLOSING_S)
        if process.poll() is None:
            process.kill()
        process.wait()

    def _shut_down(self) -> None:
        with contextlib.suppress(Exception):
            self._executor.shutdown(timeout=_CLOSING_S)


def _read_last_message(said: Path) -> str:
    """Return the last message of the interchange, or the likely causes if there is none."""
    text = ""
    with contextlib.suppress(OSError):
        text = said.read_text(errors="replace")
    return last_inert_line(text) or "it was killed, or ran out of memory"


def find_lost_worker(error: BaseException) -> str:
    """Return the name of the worker that the engine has given up; empty if only one of its processes has ended."""
    found = getattr(error, "manager_id", b"")
    return os.fsdecode(found)

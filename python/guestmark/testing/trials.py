"""Runs trials of an extension: on a machine that is killed, with recorded access to levels, and interrupted."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from guestmark.core.context import Context
from guestmark.core.errors import (
    ExitStatus,
    Interrupted,
)
from guestmark.core.factor import Factor
from guestmark.core.metric import Metric
from guestmark.core.model import Cell, Plan, Policy
from guestmark.core.temporary import scratch_directory
from guestmark.core.trial_order import TrialOrder
from guestmark.disks.processes import list_descendants, read_status
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import SilentObserver
from guestmark.engine.trial import TrialSlot, run_trial
from guestmark.page.say import tell
from guestmark.platforms import registry as platforms
from guestmark.platforms.base import Machine
from guestmark.testing.rules import Rule, Violation, build_module_environment, run_guarded
from guestmark.workloads import base

# Seconds within which an interrupted run must end; processes that it leaves behind get half as long.
_END_S = 10.0
_LIMIT_S = 60.0
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37  # linux/prctl.h
_MANY = 1_000_000_000
SELF = "guestmark.testing"


def make_plan(cell: Cell, metrics: Sequence[Metric] = (), limit_s: float = _LIMIT_S) -> Plan:
    """Return a plan with only this cell; commands run in this process's environment and directory."""
    context = Context(env=dict(os.environ), cwd=os.getcwd())
    return Plan("checked", (cell,), Policy(trial_limit_s=limit_s), tuple(metrics), context)


@contextlib.contextmanager
def prepare_workload(cell: Cell, limit_s: float = _LIMIT_S) -> Iterator[tuple[base.Workload[Any], Machine]]:
    """Yield the workload of a cell, prepared on its own machine."""
    workload = base.create_trial(make_plan(cell, limit_s=limit_s), cell)
    platform = platforms.get_platform(base.choose_started_cell(cell).platform)
    levels = cell.factors.levels if isinstance(cell.factors, _RecordedFactors) else cell.factors
    with base.start_machine(workload, platform, replace(cell, factors=levels)) as machine:
        workload.prepare(machine)
        yield workload, machine


def kill_machine(machine: Machine) -> None:
    """Kill the hypervisor, or the agent of a machine without one, as the kernel does when memory runs out."""
    pid = machine.vmm_pid or getattr(machine, "pid", None)
    if isinstance(pid, int):
        os.kill(pid, signal.SIGKILL)


class _RecordedFactors(Mapping[str, str]):
    """The factors of a cell; the mapping records which of them were read."""

    def __init__(self, levels: Mapping[str, str]) -> None:
        self.levels = levels
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.read.add(name)
        return self.levels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.levels)

    def __len__(self) -> int:
        return len(self.levels)


def check_level_read(cell: Cell, factor: Factor, use: Callable[[Cell], None]) -> Iterator[Violation]:
    """Yield a violation if a level is accepted but never read, so that it has no effect."""
    if not factor.levels:
        return
    levels = _RecordedFactors({factor.name: factor.parse(factor.levels[-1])})
    _, broken = run_guarded(f"{factor.name}={factor.levels[-1]}", lambda: use(replace(cell, factors=levels)))
    yield from broken
    if not broken and factor.name not in levels.read:
        what = f"{factor.name} is accepted but ignored"
        yield Violation(
            Rule.FACTORS, what, f"use cell.levels or cell.factors[{factor.name!r}], or do not accept it"
        )


def check_interruption(cell: Cell) -> Iterator[Violation]:
    """Run a trial in a separate process that is interrupted, then one that is killed; yield violations."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with scratch_directory("conformance") as folder, watch_orphans() as left:
            order = TrialOrder.from_cell(cell, _LIMIT_S).encode()
            with subprocess.Popen(
                [sys.executable, "-m", SELF, "trial", order],
                env={**build_module_environment(), "TMPDIR": str(folder)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            ) as run:
                assert run.stdout is not None
                reached = any(line.startswith(b"measuring") for line in run.stdout)
                begin = time.monotonic()
                run.send_signal(number)
                try:
                    run.wait(_END_S)
                except subprocess.TimeoutExpired:
                    run.kill()
                    what = f"a run does not end within {_END_S:.0f} s of an interruption"
                    yield Violation(
                        Rule.INTERRUPTED, what, "do not catch Interrupted, which is a BaseException"
                    )
            if not reached:
                what = "a trial in a separate process did not begin to measure"
                yield Violation(Rule.INTERRUPTED, what, "check what it needs in order to run")
            elif number == signal.SIGINT and run.returncode not in (ExitStatus.INTERRUPTED, -signal.SIGKILL):
                took_s = time.monotonic() - begin
                what = f"an interrupted run exited with status {run.returncode} after {took_s:.1f} s"
                yield Violation(Rule.INTERRUPTED, what, "do not catch Interrupted, which is a BaseException")
            how, files = "killed", []
            if number == signal.SIGINT:
                how, files = "interrupted", sorted(path.name for path in Path(folder).iterdir())
        for pid, words in left:
            yield Violation(
                Rule.INTERRUPTED, f"{words} (process {pid}) outlives a run that was {how}", "end it"
            )
        if files:
            yield Violation(
                Rule.INTERRUPTED,
                f"a run that was {how} leaves {', '.join(files)}",
                "remove it when its context ends",
            )


@contextlib.contextmanager
def watch_orphans() -> Iterator[list[tuple[int, str]]]:
    """Yield a list of processes that outlive the context, each with id and command, filled at its end; they are killed.

    Orphaned processes become children of this process while the context lasts.
    """
    left: list[tuple[int, str]] = []
    before = set(list_descendants(os.getpid()))
    control = ctypes.CDLL(None, use_errno=True).prctl
    was = ctypes.c_int()
    control(_GET_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    control(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield left
        ends = time.monotonic() + _END_S / 2
        while (there := _list_running_descendants(before)) and time.monotonic() < ends:
            time.sleep(0.05)
        for pid in there:
            left.append((pid, _read_command_line(pid)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    finally:
        control(_SET_SUBREAPER, was.value, 0, 0, 0)


def _list_running_descendants(before: set[int]) -> list[int]:
    """Return the descendants that were not there before and have not ended."""
    found = []
    for pid in list_descendants(os.getpid()):
        with contextlib.suppress(OSError):
            if pid not in before and read_status(pid)[0] != "Z":
                found.append(pid)
    return found


def _read_command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return "a process"


def _announce_measuring(thread: int) -> None:
    """Print `measuring` as soon as that thread is in a workload's `run`."""
    while True:
        frame = sys._current_frames().get(thread)
        while frame is not None:
            if frame.f_code.co_name == "run" and isinstance(frame.f_locals.get("self"), base.Workload):
                tell("measuring")
                sys.stdout.flush()
                return
            frame = frame.f_back
        time.sleep(0.002)


def run_one_trial(order: str) -> int:
    """Run a trial of many iterations until it is interrupted, and return its exit status."""
    cell = TrialOrder.decode(order).make_cell()
    interruption = Interruption()
    threading.Thread(target=_announce_measuring, args=[threading.get_ident()], daemon=True).start()
    with interruption.handle_signals():
        slot = TrialSlot(cell, 0, 0, iterations=_MANY, warmups=0)
        platform = platforms.get_platform(base.choose_started_cell(cell).platform)
        try:
            run_trial(make_plan(cell), slot, platform, interruption, SilentObserver())
        except Interrupted:
            return ExitStatus.INTERRUPTED
    return ExitStatus.ALL_MEASURED

"""A fleet in bad weather: `.venv/bin/python -m tests.storm.fleet --faults 40 --seed 1`, some minutes.

Four machines in network namespaces, with sshd of their own, measure a plan. Meanwhile workers, the coordinator, the
engine's scheduler and the ledger's server are killed, stopped and restarted, and cables are pulled, at random moments.
In the end the ledger holds each planned trial exactly once, or as lost and made up for.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from guestmark.core.model import RunState, TrialStatus, select_runnable
from guestmark.ledger.model import StoredRun
from tests.framework.command_line import CommandLine
from tests.framework.known import known
from tests.framework.labs import Lab, lab
from tests.framework.namespaces import Network, network
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import children, kill, others, wait_until
from tests.storm import leavings

MACHINES = ("lab1", "lab2", "lab3", "lab4")
_PAUSES = (0.4, 2.0)  # between two faults
_CALM_S = 100.0  # how long the fleet has after the last fault


@dataclass
class Outcome:
    """What was done to a fleet and what became of it."""

    faults: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    lost: int = 0
    starts: int = 0
    problems: list[str] = field(default_factory=list)


def exactly_once(runs: list[StoredRun], blocks: int) -> int:
    """Every cell has its trials, one in a block, and as many more blocks as one was lost in; how many were lost."""
    lost = 0
    for run in runs:
        assert run.state is RunState.COMPLETE, (run.id, run.state)
        seen = Counter((trial.block, trial.cell_id) for trial in run.trials)
        assert set(seen.values()) == {1}
        here = {trial.block for trial in run.trials if trial.status is TrialStatus.LOST}
        assert {trial.block for trial in run.trials} == set(range(blocks + len(here)))
        for cell in select_runnable(run.plan.cells, run.unusable):
            mine = [trial for trial in run.trials if trial.cell_id == cell.id]
            assert sum(trial.status is TrialStatus.OK for trial in mine) >= blocks, cell.id
        lost += sum(trial.status is TrialStatus.LOST for trial in run.trials)
    return lost


class Storm:
    """One fleet, and what happens to it; `seed` decides what and when."""

    def __init__(
        self, made: Lab, reached: Network, server: Server, seed: int, blocks: int, *, kills: bool = False
    ) -> None:
        self._lab = made
        self._network = reached
        self._server = server
        self._blocks = blocks
        self._chance = random.Random(seed)
        self._coordinator: Popen[bytes] | None = None
        self._healing: list[threading.Timer] = []
        self._folder = os.fsencode(made.guestmark.folder)
        self._kinds: dict[str, Callable[[], bool]] = {
            "worker killed": lambda: self._hit(self._pools, signal.SIGKILL),
            "worker stopped for good": lambda: self._hit(self._pools, signal.SIGSTOP),
            "trial's process killed": lambda: self._hit(self._inner, signal.SIGKILL),
            "trial's process stopped for good": lambda: self._hit(self._inner, signal.SIGSTOP),
            "trial's process stopped and continued": lambda: self._hit(self._inner, signal.SIGSTOP, 3),
            "ssh killed": lambda: self._hit(self._tunnels, signal.SIGKILL),
            "cable pulled": self._pull,
            "scheduler killed": lambda: self._hit(self._schedulers, signal.SIGKILL),
            "scheduler stopped and continued": lambda: self._hit(self._schedulers, signal.SIGSTOP, 4),
            "scheduler stopped for good": lambda: self._hit(self._schedulers, signal.SIGSTOP),
            "coordinator killed": lambda: self._end(signal.SIGKILL),
            "coordinator interrupted": lambda: self._end(signal.SIGINT),
            "coordinator stopped and continued": lambda: self._hit(self._coordinators, signal.SIGSTOP, 5),
            "ledger's server killed": lambda: self._restart(signal.SIGKILL),
            "ledger's server restarted": lambda: self._restart(signal.SIGINT),
            "ledger's server stopped and continued": lambda: self._hit_all(self._backends, 3),
        }
        if kills:
            self._kinds = {kind: hit for kind, hit in self._kinds.items() if kind.endswith("killed")}

    def rage(self, faults: int, until: float, outcome: Outcome, calm_s: float = _CALM_S) -> None:
        """So many faults, or until that moment; then the fleet comes to its end, and its ledger is looked at."""
        before = {run.id for run in self._lab.runs()}
        words: tuple[str, ...] = self._lab.arguments()
        environment = {"GUESTMARK_SSH": self._network.client}
        end = until + calm_s
        while True:
            self.before_start()
            outcome.starts += 1
            with self._lab.guestmark.running(*words, env=environment) as process:
                self._coordinator = process
                said = _drained(process)
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(self._chance.uniform(*_PAUSES))
                    if outcome.faults.total() < faults and time.monotonic() < until:
                        kind = self._chance.choice(list(self._kinds))
                        if process.poll() is None and self._kinds[kind]():
                            outcome.faults[kind] += 1
                self._coordinator = None
            self._heal()
            if "Traceback" in "".join(said):
                outcome.problems.append("".join(said)[-2000:])
            if time.monotonic() >= end:
                outcome.problems.append(f"it has not come to its end; it said: {''.join(said)[-2000:]}")
                break
            self._check_left(outcome)
            if process.returncode in (0, 1):
                break
            new = [run for run in self._lab.runs() if run.id not in before]
            if new:
                fleet = known(new[0].plan.context.fleet).fleet
                words = ("fleet", "resume", fleet, "--ledger", self._server.url)
        runs = [run for run in self._lab.runs() if run.id not in before]
        outcome.trials = sum(len(run.trials) for run in runs)
        try:
            assert len(runs) == (len(MACHINES) if self._lab.whole else 1)
            outcome.lost = exactly_once(runs, self._blocks)
        except AssertionError as error:
            outcome.problems.append(f"{type(error).__name__}: {error}; it said: {''.join(said)[-2000:]}")

    def _check_left(self, outcome: Outcome) -> None:
        if not wait_until(lambda: not [*self._pools(), *self._schedulers()], 30):
            left = [*self._pools(), *self._schedulers()]
            outcome.problems.append(f"left running: {left}")
            kill(left, signal.SIGKILL)
        if not wait_until(lambda: not self._left(), 10):
            outcome.problems.append(f"left: {self._left()}")
            kill(self._lost_parts(), signal.SIGKILL)

    def before_start(self) -> None:
        """Called before the coordinator is started or started again."""

    # --- what there is --------------------------------------------------------------------------------------

    def _pools(self) -> list[int]:
        return pools(self._lab.guestmark.folder)

    def _inner(self) -> list[int]:
        return parts(self._lab.guestmark.folder)

    def _tunnels(self) -> list[int]:
        ours = self._ours()
        return [pid for pid, words in ours if words.startswith("ssh ") and "fleet worker" in words]

    def _schedulers(self) -> list[int]:
        return schedulers(self._lab.guestmark.folder)

    def _coordinators(self) -> list[int]:
        return [] if self._coordinator is None else [self._coordinator.pid]

    def _backends(self) -> list[int]:
        if self._server.process is None:
            return []
        main = int((self._server.directory / "data/postmaster.pid").read_text().split()[0])
        return [main, *children(main)]

    def _lost_parts(self) -> list[int]:
        """Whatever a worker has started, and that has outlived it: it has the worker's environment."""
        mark = b"GUESTMARK_FLEET_MACHINE="
        return [
            int(found.name)
            for found, _ in others()
            if mark in (environment := _environment(found)) and self._folder in environment
        ]

    def _left(self) -> list[str]:
        files = list(self._lab.guestmark.folder.glob("scratch-*/guestmark-*"))
        return [*map(str, files), *map(str, self._lost_parts()), *leavings.semaphores()]

    def _ours(self) -> Iterator[tuple[int, str]]:
        for folder, command in others():
            words = b" ".join(command)
            if self._folder in words:
                yield int(folder.name), words.decode(errors="replace")

    # --- what is done to it ---------------------------------------------------------------------------------

    def _hit(self, found: Callable[[], list[int]], number: int, most_s: float = 0.0) -> bool:
        there = found()
        if not there:
            return False
        victim = self._chance.choice(there)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, number)
        if most_s:
            self._later(self._chance.uniform(0.5, most_s), lambda: _continue(victim))
        return True

    def _hit_all(self, found: Callable[[], list[int]], most_s: float) -> bool:
        there = found()
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.5, most_s))
        for pid in there:
            _continue(pid)
        return bool(there)

    def _pull(self) -> bool:
        machine = self._network.machines[self._chance.choice(MACHINES)]
        machine.plug(plugged=False)
        self._later(self._chance.choice([0.5, 2.0, 8.0, 40.0]), lambda: machine.plug(plugged=True))
        return True

    def _end(self, number: int) -> bool:
        process = self._coordinator
        if process is None or self._chance.random() < 0.5:  # a new start takes long
            return False
        process.send_signal(number)
        return wait_until(lambda: process.poll() is not None, 40)

    def _restart(self, number: int) -> bool:
        self._server.stop(number)
        time.sleep(self._chance.uniform(0, 2))
        self._server.start()
        return True

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.start()
        self._healing.append(timer)

    def _heal(self) -> None:
        for timer in self._healing:
            timer.join()
        self._healing.clear()


def pools(folder: Path) -> list[int]:
    """The engine's workers whose files are in this folder."""
    return [
        int(found.name)
        for found, words in others()
        if b"process_worker_pool" in b" ".join(words)
        and b"supervise" not in words
        and os.fsencode(folder) in b" ".join(words)
    ]


def schedulers(folder: Path) -> list[int]:
    """The engine's, of coordinators that were started in this folder."""
    return [
        pid
        for found, words in others()
        if b"interchange" in b" ".join(words) and _cwd(pid := int(found.name)) == os.fsencode(folder)
    ]


def parts(folder: Path) -> list[int]:
    """Of these workers, the processes that measure, and that keep what a worker's processes share; the oldest first."""
    return [pid for pool in pools(folder) for pid in children(pool) if "spawn_main" in _command(pid)]


def _drained(process: Popen[bytes]) -> list[str]:
    """What it prints from now on: a pipe that nobody reads would stop it."""
    lines: list[str] = []

    def read(stream: object) -> None:
        for line in stream or ():  # type: ignore[attr-defined]
            lines.append(line.decode(errors="replace"))

    for stream in (process.stdout, process.stderr):
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    return lines


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _environment(folder: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (folder / "environ").read_bytes()
    return b""


def _cwd(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return os.fsencode(os.readlink(f"/proc/{pid}/cwd"))
    return b""


def _continue(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def stormy(
    folder: Path, seed: int, blocks: int, *, kills: bool = False, shared: bool = False
) -> Iterator[Storm]:
    """Four machines with a ledger's server among them, and a storm that has not begun."""
    with network(folder, MACHINES) as reached, postgresql(reached.address) as server:
        guestmark = CommandLine(folder)
        made = lab(guestmark, server.url, MACHINES, blocks=blocks, levels='"0.1", "0.3"', whole=not shared)
        yield Storm(made, reached, server, seed, blocks, kills=kills)


def main() -> int:
    """Prints what was done, and every problem; exits with 1 if there was one."""
    parser = argparse.ArgumentParser(prog="tests.storm.fleet", description=__doc__)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--kills", action="store_true", help="nothing but kills")
    parser.add_argument("--shared", action="store_true", help="the machines share the plan's blocks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=10.0, help="at most, for the faults")
    given = parser.parse_args()
    outcome = Outcome()
    begin = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="storm-", dir="/var/tmp") as folder,
        stormy(Path(folder), given.seed, given.blocks, kills=given.kills, shared=given.shared) as storm,
    ):
        storm.rage(given.faults, begin + 60 * given.minutes, outcome)
    for kind, count in sorted(outcome.faults.items()):
        print(f"  {count:3} × {kind}")
    print(
        f"seed {given.seed}: {outcome.faults.total()} faults, {outcome.trials} trials, {outcome.lost} of them lost, "
        f"{outcome.starts} starts, {len(outcome.problems)} problems; {time.monotonic() - begin:.0f} s"
    )
    for problem in outcome.problems:
        print(f"  {problem}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())

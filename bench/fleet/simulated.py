"""Run a lab of simulated machines on the real coordinator, engine and ledger; workers die in the middle of trials.

Run from the checkout, with the extra `fleet`: `.venv/bin/python -m bench.fleet.simulated [--machines 200]`. Only two
things are simulated: the inside of a trial, by a pause and random numbers, and the machine of a worker, because there
are fewer workers than machines, and each worker takes a block of any machine that has not ended. Runs, blocks,
attempts, claims and losses are as in any fleet. Prints how often a trial is missing or stored twice (aim: never), and
the cost.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from guestmark.core.context import FleetOrder
from guestmark.core.metric import Measurement
from guestmark.core.model import Plan, Trial, TrialStatus
from guestmark.engine import environment, measurement_loop, preflight
from guestmark.fleet import block_task, lab, order
from guestmark.fleet.coordinator import Fleet
from guestmark.fleet.worker_connection import LinkEnd, WorkerAddresses, WorkerLink
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import count_refused_attempts, find_runs_with_labels
from guestmark.platforms import exclusive
from tests.framework.postgresql import postgresql

if TYPE_CHECKING:
    from guestmark.engine.trial import TrialSlot
    from guestmark.ledger.store import Ledger

PLAN = """
name = "simulated"
title = "Is every trial there once?"
platforms = ["host", "host"]
[workloads.exec.params]
command = ["true"]
[repetition]
blocks = {blocks}
"""
WAITING, DIES = "GUESTMARK_SIMULATED", "GUESTMARK_SIMULATED_DIES"
FLEET = "simulated"


def trial(plan: Plan, slot: TrialSlot, *_others: object, **_more: object) -> Trial:
    """Return a trial with a random value after a pause; sometimes its worker dies in it, alone or with the engine."""
    begin = time.time()
    time.sleep(random.uniform(0, 0.01))
    if random.random() < float(os.environ[DIES]):
        if random.random() < 0.5:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    value = random.lognormvariate(0, 0.02)
    measured = Measurement(plan.metrics[0], value, (value,))
    return Trial(
        slot.cell.id, slot.block, slot.order, TrialStatus.OK, "", (measured,), begin, time.time() - begin
    )


def one_block(told: bytes) -> bytes:
    """Measure one block of any machine that has not ended; if another worker measures there, wait for it."""
    waiting = Path(os.environ[WAITING])
    names = os.listdir(waiting)
    os.environ[block_task.MACHINE_VARIABLE] = name = random.choice(names or ["sim000"])
    os.environ[exclusive.LOCK_VARIABLE] = str(waiting.parent / f"lock-{name}")
    simulated: Any = (
        ("run_trial", measurement_loop, trial),
        ("find_unusable_platforms", preflight, lambda *_: ()),
        ("record_environment", environment, lambda **_: {"machine": name}),
    )
    for attribute, module, ours in simulated:
        setattr(module, attribute, ours)
    done = block_task.run_block(told)
    if msgspec.json.decode(done, type=order.MachineProgress).state == "complete":
        (waiting / name).unlink(missing_ok=True)
    return done


class Seat(WorkerLink):
    """The connection of a simulated machine, which lasts until it is closed."""

    def __init__(self) -> None:  # starts no process, unlike the base class
        self._open = True

    def is_running(self) -> bool:
        return self._open

    def describe_end(self) -> LinkEnd:
        return LinkEnd()

    def is_silent(self, present: Mapping[str, int]) -> bool:
        return False

    def take_messages(self) -> list[str]:
        return []

    def close(self) -> None:
        self._open = False


@dataclass
class Workers:
    """Workers for all machines. Those that have died are replaced; the scheduler is killed at the times in `ends`."""

    members: list[lab.LabMachine]
    ends: list[float]
    links: dict[str, WorkerLink] = field(default_factory=dict)
    begun: int = 0
    silent: int = 0  # workers of which nothing was heard any more
    killed: int = 0
    reach: WorkerAddresses | None = None
    keys: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    waiting: Path = Path()  # has a file for each machine that has not ended
    # Whether there is a new scheduler, which knows nothing of what the last one was told.
    anew: bool = False

    def take(
        self, _: lab.LabMachine, reach: WorkerAddresses, keys: dict[str, str], arguments: list[str]
    ) -> Seat:
        """Return a connection for a simulated machine; start the workers again for a new scheduler."""
        if reach != self.reach:  # another scheduler
            self.close()
            self.anew = True
            self.reach, self.keys, self.arguments = reach, keys, arguments
            self._replace({})
        return Seat()

    def look(self, fleet: Fleet) -> None:
        """Replace workers, and kill the scheduler when it is time; called twice a second."""
        if self.anew:  # a machine may have ended without the coordinator having heard of it
            self.anew = False
            for state in fleet.states.values():
                if not state.is_over:
                    (self.waiting / state.member.name).touch()
        self._replace(fleet._engine.present if fleet._engine else {})
        self.memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6)
        if self.ends and time.monotonic() - fleet.begun > self.ends[0]:
            self.ends.pop(0)
            self.killed += 1
            fleet._engine._executor.interchange_proc.kill()  # type: ignore[union-attr]

    def close(self) -> None:
        """Stop all workers."""
        for link in self.links.values():
            link.close()
        self.links.clear()

    def _replace(self, present: Mapping[str, int]) -> None:
        """Replace workers that have ended or are silent, as the coordinator does for real machines."""
        if self.reach is None:
            return
        theirs = self.arguments[self.arguments.index("--uid") + 1]
        for member in self.members:
            link = self.links.get(member.name)
            silent = link is not None and link.is_silent(present)
            if link is None or silent or not link.is_running():
                self.silent += silent
                if link is not None:
                    link.close()
                self.begun += 1
                mine = f"{member.name}.{self.begun}"
                own = [mine if word == theirs else word for word in self.arguments]
                self.links[member.name] = WorkerLink(member, self.reach, self.keys, own)


@dataclass
class Outcome:
    """The trials that a simulation left in the ledger, and the resources that it used."""

    machines: int = 0
    complete: int = 0
    kept: int = 0
    lost: int = 0
    missing: int = 0
    doubled: int = 0
    refused: int = 0
    took_s: float = 0.0
    workers: int = 0
    silent: int = 0
    schedulers: int = 0
    memory_mb: tuple[float, float] = (0.0, 0.0)  # of the coordinator, at a quarter of the way and at the end
    said: collections.Counter[str] = field(default_factory=collections.Counter)


def simulate(machines: int, workers: int, blocks: int, dies: float, ends: list[float]) -> Outcome:
    """Run a whole fleet of simulated machines to its end."""
    made = Outcome(machines)
    with postgresql() as server, tempfile.TemporaryDirectory(prefix="guestmark-fleet-") as folder:
        waiting = Path(folder, "waiting")
        waiting.mkdir()
        names = [f"sim{number:03}" for number in range(machines)]
        for name in names:
            (waiting / name).touch()
        settings = {
            WAITING: str(waiting),
            DIES: str(dies),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = (sys.executable, "-m", "guestmark")
        real = [lab.LabMachine(f"w{number}", "", "", command, settings) for number in range(workers)]
        told = FleetOrder(FLEET, PLAN.format(blocks=blocks), "plan.toml", 1.0, {}, ())
        pool = Workers(real, sorted(ends), waiting=waiting)
        # Imported by its name, as workers cannot find a function of `__main__`.
        block = importlib.import_module("bench.fleet.simulated").one_block
        with open_ledger(server.url) as ledger:
            fleet = Fleet(
                told,
                [lab.LabMachine(name) for name in names],
                ledger,
                server.url,
                tell=lambda text: made.said.update([_kind(text)]),
                look=pool.look,
                block=block,
                link=pool.take,
            )
            try:
                fleet.run()
            finally:
                pool.close()
            made.took_s = time.monotonic() - fleet.begun
            _count(made, ledger, blocks)
    made.workers, made.silent, made.schedulers = pool.begun, pool.silent, pool.killed
    made.memory_mb = (pool.memory[len(pool.memory) // 4], pool.memory[-1])
    return made


def _kind(text: str) -> str:
    """Return a message about a machine without the machine's name."""
    first = text.partition("\n")[0]
    return first.partition(": ")[2].partition("(")[0][:70] or first[:70]


def _count(made: Outcome, ledger: Ledger, blocks: int) -> None:
    # How often a machine has measured a cell in a block, in whatever run.
    trials: collections.Counter[tuple[str, int, str]] = collections.Counter()
    for run_id in find_runs_with_labels(ledger, {order.FLEET_LABEL: FLEET}):
        run = ledger.load_run(run_id)
        name = ledger.read_annotations(run_id).labels[order.MACHINE_LABEL]
        seen = {(stored.block, stored.cell_id) for stored in run.trials}
        trials.update((name, stored.block, stored.cell_id) for stored in run.trials)
        gone = [stored for stored in run.trials if stored.status is TrialStatus.LOST]
        made.lost += len(gone)
        made.kept += len(run.trials)
        made.refused += count_refused_attempts(ledger, run_id)
        made.complete += run.state.value == "complete"
        planned = blocks + len({stored.block for stored in gone})
        made.missing += len(run.plan.cells) * planned - len(seen)
    made.doubled = sum(count > 1 for count in trials.values())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet.simulated")
    parser.add_argument("--machines", type=int, default=200)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--dies", type=float, default=0.02, help="probability that a worker dies in a trial")
    parser.add_argument("--schedulers", type=int, default=2, help="how many are killed")
    options = parser.parse_args()
    ends = [random.uniform(10, 60) for _ in range(options.schedulers)]
    made = simulate(options.machines, options.workers, options.blocks, options.dies, ends)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(
        f"{made.machines} machines on {options.workers} workers, {made.complete} complete after {made.took_s:.0f} s: "
        f"{made.kept} trials ({made.kept / made.took_s:.0f} a second), {made.lost} of them lost, "
        f"{made.missing} missing, {made.doubled} twice, {made.refused} second attempts refused; "
        f"{made.workers} workers begun, {made.silent} of them for one that had fallen silent, "
        f"{made.schedulers} schedulers killed; "
        f"coordinator {made.memory_mb[0]:.0f} MB at a quarter of the way, "
        f"{made.memory_mb[1]:.0f} MB at the end, {peak:.0f} MB at most"
    )
    for said, count in made.said.most_common():
        print(f"  {count:4} × {said}")


if __name__ == "__main__":
    main()

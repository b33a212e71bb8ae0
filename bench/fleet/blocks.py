"""Find how many machines a server can take that share a run: `python -m bench.fleet.blocks --machines 1000`.

Each machine is a thread that repeats what `guestmark block` does, each time with a newly opened ledger. Only the
inside of a trial is simulated, by a pause. Nothing coordinates the machines. With `--away`, that many of them lose
their connections in the middle, and reach the server again after some seconds. In the end each trial has to be stored
exactly once. Prints how long a call takes besides the pause, and the processor time of both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import queue
import random
import resource
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.fleet.simulated import PLAN
from sqlalchemy import text

from guestmark.core.context import Caller
from guestmark.core.errors import BlockStatus, GuestmarkError, LedgerError, TakenError
from guestmark.core.metric import Measurement
from guestmark.core.model import Plan, Trial, TrialStatus
from guestmark.engine import block_worker, measurement_loop
from guestmark.engine.environment import record_environment
from guestmark.engine.interrupt import Interruption
from guestmark.engine.progress import SilentObserver
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import record_lost_attempts
from guestmark.ledger.postgres import connect_autocommit
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.stats.conditions.surroundings import digest_environment
from tests.framework.far import Relay, relay
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import children, cpu_seconds

if TYPE_CHECKING:
    from guestmark.engine.trial import TrialSlot

_PLAN = f"{PLAN}iterations = 1\nwarmup = 0\n"
_PROCESSES = 8
_AWAY_S = 10.0
_PAUSE_S = 0.0  # how long a simulated trial takes; set in each process


@dataclass(frozen=True, slots=True)
class Work:
    """A ledger and a run in it, the environment of machines, the duration of a trial, and when to stop."""

    url: str
    run: str
    environment: Mapping[str, Any]
    trial_s: float
    until: float


@dataclass
class Told:
    """Reports of machines: seconds of whole calls without the pauses, errors, and processor time."""

    calls: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0


def trial(plan: Plan, slot: TrialSlot, *_others: object) -> Trial:
    """Return a trial with random values after a pause, in place of a real one."""
    begin = time.time()
    time.sleep(_PAUSE_S)
    value = random.lognormvariate(0, 0.02)
    measured = Measurement(plan.metrics[0], value, (value,) * 10)
    where = slot.cell.id, slot.block, slot.order
    return Trial(*where, TrialStatus.OK, "", (measured,), begin, time.time() - begin)


def time_call(work: Work, name: str) -> tuple[BlockStatus, int]:
    """Access the ledger as one call of `guestmark block` does; return its status and the number of its trials."""
    with open_ledger(work.url) as ledger:
        head = ledger.load_head(work.run)
        here = {**work.environment, "machine": name}
        ledger.add_environment_of(work.run, here, digest_environment(here), lambda _: True)
        known = SilentObserver()
        status = block_worker.measure_block(
            head.plan, ledger, head, machine=name, observer=known, interruption=Interruption()
        )
        return status, len(head.plan.cells)


def machine(work: Work, name: str, told: Told) -> None:
    """Act as one machine until all blocks are done or the time is up."""
    while time.monotonic() < work.until:
        begin = time.monotonic()
        try:
            status, trials = time_call(work, name)
        except TakenError:
            continue  # somebody has just done it
        except LedgerError as error:  # exit status 75: the caller calls again
            told.wrong[error.message.partition(": ")[2] or error.message] += 1
            time.sleep(random.uniform(0.5, 1.5))
            continue
        except GuestmarkError as error:
            told.wrong[error.message] += 1
            continue
        if status is BlockStatus.NO_TIME_LEFT:
            return
        if status is BlockStatus.DONE:
            told.calls.append(time.monotonic() - begin - trials * work.trial_s)
        else:
            time.sleep(random.uniform(0.5, 1.5))


def machines(work: Work, names: list[str], out: multiprocessing.Queue[Told]) -> None:
    """Act as several machines in one process."""
    global _PAUSE_S  # noqa: PLW0603 (of this process)
    _PAUSE_S = work.trial_s
    simulated: Any = measurement_loop
    simulated.run_trial = trial
    told = Told()
    threads = [threading.Thread(target=machine, args=(work, name, told)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = resource.getrusage(resource.RUSAGE_SELF)
    told.cpu_s = used.ru_utime + used.ru_stime
    out.put(told)


def away(work: Work, names: list[str], out: multiprocessing.Queue[Told], port: int, after_s: float) -> None:
    """Act as several machines whose connection to the server is cut for a while."""
    with relay(("127.0.0.1", port)) as way:
        threading.Thread(target=_cut, args=(way, after_s), daemon=True).start()
        machines(replace(work, url=work.url.replace(f":{port}/", f":{way.port}/")), names, out)


def _cut(way: Relay, after_s: float) -> None:
    time.sleep(after_s)
    end = time.monotonic() + _AWAY_S
    while time.monotonic() < end:  # also connections that are made meanwhile
        way.cut()
        time.sleep(0.05)


def _watch(url: str, most: list[int], ended: threading.Event) -> None:
    with open_ledger(url, writable=False) as ledger, connect_autocommit(ledger._engine) as connection:
        while not ended.wait(0.5):
            with contextlib.suppress(Exception):
                found = connection.execute(
                    text("SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL")
                )
                most.append(int(found.scalar() or 0) - 1)  # without this connection


def _measure_first_block(work: Work) -> None:
    """Measure one block, so that the forked processes' threads have nothing left to import at the same time."""
    simulated: Any = measurement_loop
    before, simulated.run_trial = simulated.run_trial, trial
    try:
        time_call(work, "m0")
    finally:
        simulated.run_trial = before


def _gathered(workers: list[multiprocessing.Process], out: multiprocessing.Queue[Told]) -> list[Told]:
    told: list[Told] = []
    while len(told) < len(workers):
        with contextlib.suppress(queue.Empty):
            told.append(out.get(timeout=1))
            continue
        if died := [worker.exitcode for worker in workers if worker.exitcode]:
            raise SystemExit(f"processes of machines have died: {died}")
    return told


def _server_s(server: Server) -> float:
    """Return the processor seconds of the server and all its processes, including those that have ended."""
    main = int((server.directory / "data/postmaster.pid").read_text().split()[0])
    words = Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()
    ended = sum(map(int, words[13:15])) / os.sysconf("SC_CLK_TCK")
    return ended + sum(map(cpu_seconds, [main, *children(main)]))


def simulate_machines(count: int, given: argparse.Namespace) -> str:
    """Simulate this many machines, and return one line about them."""
    plan = assemble_plan(load_outline(_PLAN.format(blocks=given.blocks), "plan.toml"), Caller.current())
    with postgresql(connections=2 * count + 20) as server:
        with open_ledger(server.url) as ledger:
            run = ledger.create_run(plan, {}, 1)
        port = int(server.url.rpartition(":")[2].partition("/")[0])
        names = [f"m{number}" for number in range(count)]
        out: multiprocessing.Queue[Told] = multiprocessing.Queue()
        here = record_environment(programs=())
        _measure_first_block(Work(server.url, run, here, 0.0, 0.0))
        begin, before = time.monotonic(), _server_s(server)
        work = Work(server.url, run, here, given.measuring / len(plan.cells), begin + given.seconds)
        cut, near = names[: given.away], names[given.away :]
        parts = [near[number::_PROCESSES] for number in range(_PROCESSES)]
        workers = [multiprocessing.Process(target=machines, args=(work, part, out)) for part in parts if part]
        if cut:
            arguments = (work, cut, out, port, given.seconds / 3)
            workers.append(multiprocessing.Process(target=away, args=arguments))
        for worker in workers:
            worker.start()
        most, ended = [0], threading.Event()
        watcher = threading.Thread(target=_watch, args=(server.url, most, ended))
        watcher.start()
        told = _gathered(workers, out)
        took = time.monotonic() - begin
        ended.set()
        watcher.join()
        for worker in workers:
            worker.join()
        theirs = _server_s(server) - before
        with open_ledger(server.url) as ledger:
            lost = record_lost_attempts(ledger, run, "its worker ended")
            stored = ledger.load_run(run)
    there = Counter((one.block, one.cell_id) for one in stored.trials)
    whole = sum(
        all((block, cell.id) in there for cell in plan.cells) for block in {block for block, _ in there}
    )
    calls = sorted(each for part in told for each in part.calls)
    wrong = sum((part.wrong for part in told), Counter())
    ours = sum(part.cpu_s for part in told)
    done = max(len(calls), 1)
    return (
        f"{count} machines{f', {given.away} of them cut off for {_AWAY_S:.0f} s' if cut else ''}: {whole} of "
        f"{given.blocks} blocks in {took:.1f} s, {whole / took:.1f} a second, {stored.state}; a call "
        f"{calls[done // 2] * 1000:.0f} ms, 99 % within {calls[int(done * 0.99)] * 1000:.0f} ms; processor time of a "
        f"call {theirs / done * 1000:.1f} ms on the server, {ours / done * 1000:.1f} ms here; {max(most)} connections; "
        f"{len(stored.environments)} environments; {sum(n > 1 for n in there.values())} trials twice, {lost} lost; "
        f"load {os.getloadavg()[0]:.0f}; refused or failed: {dict(wrong.most_common(4)) or 'none'}"
    )


def main() -> None:
    """Print one line for each number of machines."""
    parser = argparse.ArgumentParser(prog="bench.fleet.blocks", description=__doc__)
    parser.add_argument("--machines", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=4000)
    parser.add_argument("--measuring", type=float, default=0.0, help="seconds that a block pauses")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--away", type=int, default=0)
    given = parser.parse_args()
    for count in given.machines:
        print(simulate_machines(count, given), flush=True)


if __name__ == "__main__":
    main()

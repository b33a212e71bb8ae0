"""How many machines one server takes that measure blocks of one run: `python -m bench.fleet.blocks --machines 1000`.

Each machine is a thread that does to the ledger what calls of `guestmark block` do, one after the other, each with a
connection of its own: it reads the run, claims a free block, begins and stores its trial, looks whether the run has
ended. Measuring is a pause of `--measuring` seconds. Nothing coordinates the machines. With `--away`, as many
of them lose their connections in the middle, and reach the server again after some seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace

from sqlalchemy import text

from guestmark.core.errors import GuestmarkError, LedgerError, TakenError
from guestmark.core.model import RunState
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import Attempts, lose
from guestmark.ledger.server import autocommitting
from guestmark.ledger.store import Ledger
from tests.framework.far import Relay, relay
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import postgresql

_PROCESSES = 8
_AWAY_S = 10.0


@dataclass(frozen=True)
class Work:
    """The ledger, a run of so many blocks in it, how long a block takes, and when to stop."""

    url: str
    run: str
    blocks: int
    measuring_s: float
    until: float


@dataclass
class Told:
    """What machines had to say: seconds of whole calls without the pause, and what went wrong, by its words."""

    calls: list[float] = field(default_factory=list)
    wrong: Counter[str] = field(default_factory=Counter)


def call(ledger: Ledger, work: Work, name: str) -> bool:
    """One call, whose ledger has just been opened: whether there may be more to do."""
    stored = ledger.load_run(work.run)
    attempts = Attempts(ledger, work.run, name)
    known = 0
    done = {one.block for one in stored.trials}
    while known in done:
        known += 1
    stored = ledger.refreshed(stored, known)
    done = {one.block for one in stored.trials}
    free = [block for block in range(work.blocks) if block not in done]
    if not free:
        return False
    with ledger.claim_block(work.run, free) as block:
        if block is None:
            return True
        lose(ledger, work.run, "its worker ended", block=block)
        if any(one.block == block for one in ledger.refreshed(stored, free[0]).trials):
            return True
        token = attempts.begin("host", block, 0)
        time.sleep(work.measuring_s)
        attempts.append(trial(block), token)
    if len({one.block for one in ledger.refreshed(stored, free[0]).trials}) >= work.blocks:
        ledger.set_run_state(work.run, RunState.COMPLETE)
    return True


def machine(work: Work, name: str, told: Told) -> None:
    """One machine until all blocks are done or the time is up."""
    more = True
    while more and time.monotonic() < work.until:
        begin = time.monotonic()
        try:
            with open_ledger(work.url) as ledger:
                more = call(ledger, work, name)
            told.calls.append(time.monotonic() - begin - work.measuring_s)
        except TakenError:
            pass  # somebody has just done it
        except LedgerError as error:  # exit status 75: the caller calls again
            told.wrong[error.message.partition(": ")[2] or error.message] += 1
            time.sleep(random.uniform(0.5, 1.5))
        except GuestmarkError as error:
            told.wrong[error.message] += 1


def machines(work: Work, names: list[str], out: multiprocessing.Queue[Told]) -> None:
    """Some machines in one process."""
    told = Told()
    threads = [threading.Thread(target=machine, args=(work, name, told)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(told)


def away(work: Work, names: list[str], out: multiprocessing.Queue[Told], port: int, after_s: float) -> None:
    """Some machines whose way to the server is cut for a while."""
    with relay(("127.0.0.1", port)) as way:
        threading.Thread(target=_cut, args=(way, after_s), daemon=True).start()
        machines(replace(work, url=work.url.replace(f":{port}/", f":{way.port}/")), names, out)


def _cut(way: Relay, after_s: float) -> None:
    time.sleep(after_s)
    end = time.monotonic() + _AWAY_S
    while time.monotonic() < end:  # also what is dialled meanwhile
        way.cut()
        time.sleep(0.05)


def _watch(url: str, most: list[int], ended: threading.Event) -> None:
    with open_ledger(url, writable=False) as ledger, autocommitting(ledger._engine) as connection:
        while not ended.wait(0.5):
            with contextlib.suppress(Exception):
                found = connection.execute(
                    text("SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL")
                )
                most.append(int(found.scalar() or 0))


def main() -> None:
    """One line for each number of machines."""
    parser = argparse.ArgumentParser(prog="bench.fleet.blocks", description=__doc__)
    parser.add_argument("--machines", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--blocks", type=int, default=4000)
    parser.add_argument("--measuring", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--away", type=int, default=0)
    given = parser.parse_args()
    for count in given.machines:
        with postgresql(connections=2 * count + 20) as server:
            with open_ledger(server.url) as ledger:
                run = ledger.create_run(PLAN, {}, 1)
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            names = [f"m{number}" for number in range(count)]
            out: multiprocessing.Queue[Told] = multiprocessing.Queue()
            begin = time.monotonic()
            work = Work(server.url, run, given.blocks, given.measuring, begin + given.seconds)
            cut, near = names[: given.away], names[given.away :]
            parts = [near[number::_PROCESSES] for number in range(_PROCESSES)]
            workers = [
                multiprocessing.Process(target=machines, args=(work, part, out)) for part in parts if part
            ]
            if cut:
                arguments = (work, cut, out, port, given.seconds / 3)
                workers.append(multiprocessing.Process(target=away, args=arguments))
            for worker in workers:
                worker.start()
            most, ended = [0], threading.Event()
            watcher = threading.Thread(target=_watch, args=(server.url, most, ended))
            watcher.start()
            told = [out.get() for _ in workers]
            took = time.monotonic() - begin
            ended.set()
            watcher.join()
            for worker in workers:
                worker.join()
            with open_ledger(server.url) as ledger:
                lost = lose(ledger, run, "its worker ended")
                stored = ledger.load_run(run).trials
            there = Counter(one.block for one in stored)
            calls = sorted(each for part in told for each in part.calls)
            wrong = sum((part.wrong for part in told), Counter())
            print(
                f"{count} machines{f', {given.away} of them cut off for {_AWAY_S:.0f} s' if cut else ''}: "
                f"{len(there)} of {given.blocks} blocks in {took:.1f} s, {len(there) / took:.0f} a second; a call "
                f"{calls[len(calls) // 2] * 1000:.0f} ms, 99 % within {calls[int(len(calls) * 0.99)] * 1000:.0f} ms; "
                f"{max(most)} connections; {sum(n > 1 for n in there.values())} twice, {lost} lost; "
                f"load {os.getloadavg()[0]:.0f}; refused or failed: {dict(wrong.most_common(4)) or 'none'}",
                flush=True,
            )


if __name__ == "__main__":
    main()

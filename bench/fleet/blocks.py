"""How many blocks a second the machines of a cluster claim and store: `python -m bench.ledger.blocks --machines 400`.

Each machine is a thread with a ledger of its own, as `guestmark block` has one: it claims a block that is free, begins
and stores its trial, gives it back, and takes the next. Nothing is measured in between, and nothing coordinates them.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass

from guestmark.core.errors import TakenError
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import Attempts
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import postgresql

_PROCESSES = 8


@dataclass(frozen=True)
class Work:
    """The ledger, a run of so many blocks in it, and when to stop."""

    url: str
    run: str
    blocks: int
    until: float


def machine(work: Work, name: str, told: list[float]) -> None:
    """One machine until all blocks are done or the time is up; how long each block took goes to `told`."""
    with open_ledger(work.url) as ledger:
        attempts = Attempts(ledger, work.run, name)
        while time.monotonic() < work.until:
            begin = time.monotonic()
            done = {one.block for one in ledger.load_run(work.run).trials}
            free = [block for block in range(work.blocks) if block not in done]
            if not free:
                return
            with ledger.claim_block(work.run, free) as block:
                if block is None:
                    return
                with contextlib.suppress(TakenError):  # somebody has just done it
                    attempts.append(trial(block), attempts.begin("host", block, 0))
            told.append(time.monotonic() - begin)


def machines(work: Work, names: list[str], out: multiprocessing.Queue[list[float]]) -> None:
    """Some machines in one process."""
    told: list[float] = []
    threads = [threading.Thread(target=machine, args=(work, name, told)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.put(told)


def main() -> None:
    """One line for each number of machines."""
    parser = argparse.ArgumentParser(prog="bench.ledger.blocks", description=__doc__)
    parser.add_argument("--machines", type=int, nargs="+", default=[10, 100, 400])
    parser.add_argument("--blocks", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    for count in given.machines:
        with postgresql(connections=2 * count + 20) as server:  # two for each machine
            with open_ledger(server.url) as ledger:
                run = ledger.create_run(PLAN, {}, 1)
            names = [f"m{number}" for number in range(count)]
            out: multiprocessing.Queue[list[float]] = multiprocessing.Queue()
            begin = time.monotonic()
            work = Work(server.url, run, given.blocks, begin + given.seconds)
            parts = [names[number::_PROCESSES] for number in range(_PROCESSES)]
            workers = [
                multiprocessing.Process(target=machines, args=(work, part, out)) for part in parts if part
            ]
            for worker in workers:
                worker.start()
            told = [each for _ in workers for each in out.get()]
            took = time.monotonic() - begin
            for worker in workers:
                worker.join()
            with open_ledger(server.url, writable=False) as ledger:
                stored = ledger.load_run(run).trials
            twice = [block for block, times in Counter(one.block for one in stored).items() if times > 1]
            told.sort()
            print(
                f"{count} machines: {len(stored)} blocks in {took:.1f} s, {len(stored) / took:.0f} a second; "
                f"median {statistics.median(told) * 1000:.0f} ms, "
                f"99 % within {told[int(len(told) * 0.99)] * 1000:.0f} ms; "
                f"{len(twice)} twice",
                flush=True,
            )


if __name__ == "__main__":
    main()

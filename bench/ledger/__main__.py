"""Measure how many trials a second a lab's ledger stores from many writers at once, and where the time goes.

Run from the checkout: `.venv/bin/python -m bench.ledger [--writers 1,8,40,200] [--trials 4000]`. The server is a
private PostgreSQL that forces every commit to the disk; every writer claims its own run, as each machine of a fleet
does. Aim: 500 trials a second.
"""

import argparse
import contextlib
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import TrialAttempts
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import Server, postgresql

_READY: list[Barrier] = []


def prepare_runs(ready: Barrier) -> None:
    """Store the barrier at which all writing processes meet."""
    _READY.append(ready)


def write(url: str, writer: int, trials: int, begun: bool) -> list[float]:
    """Store the trials of one run; return the seconds until each was durable, then the time at which all were."""
    try:
        return _written(url, writer, trials, begun)
    except BaseException:
        _READY[0].abort()  # the others must not wait for this writer
        raise


def _written(url: str, writer: int, trials: int, begun: bool) -> list[float]:
    with open_ledger(url) as ledger, contextlib.ExitStack() as stack:
        run_id = ledger.create_run(PLAN, {}, writer)
        stack.enter_context(ledger.claim_run(run_id))
        attempts = TrialAttempts(ledger, run_id, f"sim{writer}")
        made = [trial(block) for block in range(trials)]
        _READY[0].wait()
        took = []
        for each in made:
            begin = time.monotonic()
            token = attempts.begin_trial(each.cell_id, each.block, 0) if begun else None
            ledger.store_trial(run_id, each, token=token)
            took.append(time.monotonic() - begin)
        return [*took, time.monotonic()]


def measure_writers(server: Server, writers: int, trials: int, begun: bool) -> str:
    """Measure this many writers, and return one line about them."""
    context = get_context("fork")
    ready = context.Barrier(writers + 1)
    with ProcessPoolExecutor(
        writers, mp_context=context, initializer=prepare_runs, initargs=(ready,)
    ) as pool:
        share = max(1, trials // writers)
        jobs = [pool.submit(write, server.url, writer, share, begun) for writer in range(writers)]
        with contextlib.suppress(BrokenBarrierError):  # a job's exception says why
            ready.wait()
        begin = time.monotonic()
        for error in [job.exception() for job in jobs]:
            if error is not None and not isinstance(error, BrokenBarrierError):
                raise error
        told = [job.result() for job in jobs]
    took = max(each[-1] for each in told) - begin
    each = sorted(time_s for times in told for time_s in times[:-1])
    count = len(each)
    what = "begun and stored" if begun else "stored"
    return (
        f"{writers:3} writers: {count} trials {what} in {took:.2f} s, {count / took:.0f} a second; each "
        f"{statistics.median(each) * 1000:.1f} ms, 99 % within {each[int(count * 0.99)] * 1000:.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger")
    parser.add_argument("--writers", default="1,8,40,200")
    parser.add_argument("--trials", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with postgresql() as server:
        settings = server.directory / "data/postgresql.conf"
        text = settings.read_text().replace("fsync = off", "fsync = on")
        settings.write_text(text.replace("max_connections = 60", "max_connections = 500"))
        server.stop()
        server.start()
        with open_ledger(server.url):
            pass
        wanted = [int(word) for word in options.writers.split(",")]
        for _ in range(options.rounds):
            for writers in wanted:
                for begun in random.sample((False, True), 2):
                    print(measure_writers(server, writers, options.trials, begun), flush=True)
        with open_ledger(server.url) as ledger:
            found = ledger.check_all()
        print(f"{found.runs} runs in the ledger, {len(found.problems)} problems found in them")


if __name__ == "__main__":
    main()

"""How many trials a second a lab's ledger takes, with and without attempts, from several writers at once.

Run from the checkout: `.venv/bin/python -m bench.ledger [--writers 8] [--runs 200] [--blocks 20]`. The server is a
PostgreSQL of its own that forces every commit to the disk. Aim: 500 trials a second.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import Attempts
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import postgresql


def write(url: str, runs: int, blocks: int, begun: bool) -> int:
    """Stores the trials of some runs; how many."""
    with open_ledger(url) as ledger:
        for number in range(runs):
            run_id = ledger.create_run(PLAN, {}, number)
            attempts = Attempts(ledger, run_id, f"sim{number}") if begun else None
            for block in range(blocks):
                made = trial(block)
                if attempts is None:
                    ledger.append(run_id, made)
                else:
                    attempts.append(made, attempts.begin(made.cell_id, block, 0))
    return runs * blocks


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=20)
    options = parser.parse_args()
    with postgresql() as server:
        settings = server.directory / "data/postgresql.conf"
        settings.write_text(settings.read_text().replace("fsync = off", "fsync = on"))
        server.stop()
        server.start()
        with open_ledger(server.url):
            pass
        share = options.runs // options.writers
        with ProcessPoolExecutor(options.writers, mp_context=get_context("fork")) as pool:
            list(pool.map(time.sleep, [0.5] * options.writers))  # all of them are there
            for begun in (False, True):
                begin = time.monotonic()
                jobs = [
                    pool.submit(write, server.url, share, options.blocks, begun)
                    for _ in range(options.writers)
                ]
                count = sum(job.result() for job in jobs)
                took = time.monotonic() - begin
                told = "begun and stored" if begun else "stored"
                print(f"{told}: {count} trials in {took:.1f} s, {count / took:.0f} a second", flush=True)


if __name__ == "__main__":
    main()

"""Blocks over ssh in bad weather: `.venv/bin/python -m tests.storm.blocks --faults 60 --seed 1`, some minutes.

Four machines in network namespaces are each called by a loop of `examples/lab/ssh.sh` to measure blocks of one run. Its
calls, their ssh and the ledger's server are killed, stopped and restarted, and cables are pulled, at random moments.
In the end the ledger holds each planned trial exactly once, or as lost and made up for, and nothing runs any more.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from guestmark.core.findings import find_machine
from guestmark.ledger import open_ledger
from tests.framework.command_line import CommandLine
from tests.framework.labs import PLAN
from tests.framework.namespaces import Network, network
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import kill, others, wait_until
from tests.storm.fleet import exactly_once

MACHINES = ("lab1", "lab2", "lab3", "lab4")
LOOP = Path(__file__).parents[2] / "examples/lab/ssh.sh"


class Weather:
    """What can happen to the calls of one run."""

    def __init__(self, run: str, reached: Network, server: Server, seed: int) -> None:
        self.run, self.reached, self.server = run, reached, server
        self.chance = random.Random(seed)
        self.later: list[threading.Timer] = []
        self.kinds: dict[str, Callable[[], bool]] = {
            "call killed": lambda: self._hit(self.calls(), signal.SIGKILL),
            "call stopped and continued": lambda: self._hit(self.calls(), signal.SIGSTOP, 3.0),
            "ssh killed": lambda: self._hit(self.tunnels(), signal.SIGKILL),
            "cable pulled": self._pull,
            "server killed": lambda: self._restart(signal.SIGKILL),
            "server restarted": lambda: self._restart(signal.SIGINT),
        }

    def calls(self) -> list[int]:
        """Processes of `guestmark block`."""
        return [
            int(folder.name)
            for folder, words in others()
            if b"block" in words and self.run.encode() in words and b"-m" in words
        ]

    def tunnels(self) -> list[int]:
        """Clients of ssh."""
        wanted = f"block '{self.run}'".encode()
        return [
            int(folder.name)
            for folder, words in others()
            if words[0] == b"ssh" and wanted in b" ".join(words)
        ]

    def strike(self) -> str | None:
        """One fault; its kind, if there was something to hit."""
        kind = self.chance.choice(list(self.kinds))
        return kind if self.kinds[kind]() else None

    def heal(self) -> None:
        """Waits until everything that was stopped or unplugged is back."""
        for timer in self.later:
            timer.join()

    def _hit(self, there: list[int], number: signal.Signals, most_s: float = 0.0) -> bool:
        if not there:
            return False
        victim = self.chance.choice(there)
        kill([victim], number)
        if most_s:
            self._after(self.chance.uniform(0.5, most_s), lambda: kill([victim], signal.SIGCONT))
        return True

    def _pull(self) -> bool:
        machine = self.reached.machines[self.chance.choice(MACHINES)]
        machine.plug(plugged=False)
        self._after(self.chance.choice([0.5, 2.0, 8.0, 40.0]), lambda: machine.plug(plugged=True))
        return True

    def _restart(self, number: signal.Signals) -> bool:
        self.server.stop(number)
        time.sleep(self.chance.uniform(0, 2))
        self.server.start()
        return True

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, action)
        timer.start()
        self.later.append(timer)


def storm(
    folder: Path, faults: int, seed: int, blocks: int, most_s: float
) -> tuple[Counter[str], list[str], str]:
    """The faults that were made, every problem, and what was measured."""
    done: Counter[str] = Counter()
    problems: list[str] = []
    with network(folder, MACHINES) as reached, postgresql(reached.address) as server:
        guestmark = CommandLine(folder)
        plan = folder / "plan.toml"
        plan.write_text(PLAN.replace("{levels}", '"0.2", "0.4"').replace("{blocks}", str(blocks)))
        made = guestmark(
            "run", plan, "--prepare-only", "--ledger", server.url, env={"GUESTMARK_LOCK": "none"}
        )
        run = made.stdout.strip()
        own = {
            name: value
            for name, value in guestmark.environment.items()
            if name in {"PYTHONPATH", "XDG_STATE_HOME", "XDG_CACHE_HOME"}
        }
        words = " ".join(f"{name}={value}" for name, value in {**own, "GUESTMARK_LOCK": "none"}.items())
        environment = {
            **os.environ,
            "GUESTMARK_LEDGER": server.url,
            "GUESTMARK": f"env {words} GUESTMARK_LEDGER={server.url} {sys.executable} -m guestmark",
            "SSH": f"{reached.client} -o ServerAliveCountMax=1 -o ServerAliveInterval=5",
            "PAUSE": "1",
        }
        weather = Weather(run, reached, server, seed)
        begin = time.monotonic()
        with (folder / "said").open("wb") as said:
            loop = subprocess.Popen(
                [str(LOOP), run, *MACHINES], env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                start_new_session=True,
            )  # fmt: skip
        try:
            while loop.poll() is None and time.monotonic() - begin < most_s:
                time.sleep(weather.chance.uniform(0.3, 1.5))
                if done.total() < faults and loop.poll() is None and (kind := weather.strike()):
                    done[kind] += 1
            weather.heal()
            with contextlib.suppress(subprocess.TimeoutExpired):
                loop.wait(120)
        finally:
            if loop.poll() is None:
                problems.append("the loop has not come to its end")
                os.killpg(loop.pid, signal.SIGKILL)
                loop.wait()
        text = (folder / "said").read_text(errors="replace")
        if "Traceback" in text or "this is a bug" in text:
            problems.append(text[-3000:])
        if not wait_until(lambda: not weather.calls(), 40):
            problems.append(f"left running: {weather.calls()}")
            kill(weather.calls(), signal.SIGKILL)
        with open_ledger(server.url, writable=False) as ledger:
            stored = ledger.load_run(run)
        try:
            lost = exactly_once([stored], blocks)
        except AssertionError as error:
            problems.append(f"{type(error).__name__}: {error}; it said: {text[-1500:]}")
            lost = -1
        by = Counter(find_machine(trial.facts) for trial in stored.trials)
        return done, problems, f"{len(stored.trials)} trials, {lost} of them lost, by {dict(by)}"


def main() -> int:
    """Prints what was done, and every problem; exits with 1 if there was one."""
    parser = argparse.ArgumentParser(prog="tests.storm.blocks", description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=5.0, help="at most, for the faults")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="storm-", dir="/var/tmp") as folder:
        done, problems, measured = storm(
            Path(folder), given.faults, given.seed, given.blocks, 60 * given.minutes
        )
    for kind, count in sorted(done.items()):
        print(f"  {count:3} × {kind}")
    print(f"seed {given.seed}: {done.total()} faults, {measured}, {len(problems)} problems")
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

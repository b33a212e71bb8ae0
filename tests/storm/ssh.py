"""Other machines over ssh in bad weather: `.venv/bin/python -m tests.storm.ssh --faults 60 --seed 1`, some minutes.

Three machines in network namespaces are measured by one run, over a connection to each. The agents there, what starts
them, the shells around, sessions, ssh and guestmark itself are killed or stopped, and cables are pulled, at random
moments; a killed run is resumed. In the end every planned trial is in the ledger once, good or failed in one line, and
nothing of it runs or lies anywhere: each trial starts a program that would outlive it.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from guestmark.core.model import TrialStatus
from guestmark.ledger import open_ledger
from tests.framework.command_line import CommandLine
from tests.framework.namespaces import Network, network
from tests.framework.processes import children, kill, others, wait_until

MACHINES = ("lab1", "lab2", "lab3")
_GONE_S = 60.0  # a machine whose cable was pulled notices within half a minute that nobody is there


class Weather:
    """What can happen to a run and to what it has on its machines."""

    def __init__(self, reached: Network, folder: Path, seed: int) -> None:
        self.reached, self.folder = reached, folder
        self.chance = random.Random(seed)
        self.later: list[threading.Timer] = []
        self.directories: set[str] = set()  # of all sessions that were seen
        self.controller = 0
        self.kinds: dict[str, Callable[[], bool]] = {
            "agent killed": lambda: self._hit(self.there(b"serve")),
            "agent stopped and continued": lambda: self._hit(self.there(b"serve"), signal.SIGSTOP, 3.0),
            "what starts agents killed": lambda: self._hit(self.there(b"trials")),
            "shell killed": lambda: self._hit(self.there(b"-c")),
            "session killed": lambda: self._hit(self._sessions()),
            "ssh killed": lambda: self._hit(self._clients()),
            "cable pulled": self._pull,
            "guestmark killed": lambda: self._hit([self.controller]),
        }

    def there(self, word: bytes = b"") -> list[int]:
        """Processes of sessions on the machines that have this word among theirs; also those that left the session."""
        found = []
        for folder, words in others():
            try:
                marked = os.fsencode(self.folder) + b"/lab" in (folder / "environ").read_bytes()
            except OSError:
                continue
            if marked and b"--directory" in words:
                self.directories.add(os.fsdecode(words[words.index(b"--directory") + 1]))
            if marked and words[0] != b"ssh" and (not word or word in words[1:2]):
                found.append(int(folder.name))
        return found

    def strike(self) -> str | None:
        """One fault; its kind, if there was something to hit."""
        kind = self.chance.choice(list(self.kinds))
        return kind if self.kinds[kind]() else None

    def heal(self) -> None:
        """Waits until everything that was stopped or unplugged is back."""
        for timer in self.later:
            timer.join()

    def _sessions(self) -> list[int]:
        return [pid for each in self.reached.machines.values() for pid in children(each.sshd.process.pid)]

    def _clients(self) -> list[int]:
        config = os.fsencode(self.reached.config)
        return [int(folder.name) for folder, words in others() if words[0] == b"ssh" and config in words]

    def _hit(self, found: list[int], number: signal.Signals = signal.SIGKILL, most_s: float = 0.0) -> bool:
        if not found:
            return False
        victim = self.chance.choice(found)
        kill([victim], number)
        if most_s:
            self._after(self.chance.uniform(0.5, most_s), lambda: kill([victim], signal.SIGCONT))
        return True

    def _pull(self) -> bool:
        machine = self.reached.machines[self.chance.choice(MACHINES)]
        machine.plug(plugged=False)
        self._after(self.chance.choice([0.5, 2.0, 8.0, 20.0]), lambda: machine.plug(plugged=True))
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
    with network(folder, MACHINES) as reached:
        guestmark = CommandLine(folder)
        guestmark.environment |= {"GUESTMARK_SSH": reached.client, "GUESTMARK_LOCK": "none"}
        weather = Weather(reached, folder, seed)
        on = ",".join(f"ssh:{name}" for name in MACHINES)
        once = ("--iterations", 1, "--warmup", 0, "--null", "none")
        command = ("sh", "-c", "setsid sleep 500 > /dev/null 2>&1 < /dev/null & sleep 0.2")
        process = guestmark.start("exec", "--on", on, "--blocks", blocks, *once, "--", *command)
        begin, said, starts = time.monotonic(), b"", 1
        while time.monotonic() - begin < most_s + 120:
            weather.controller = process.pid
            raging = done.total() < faults and time.monotonic() - begin < most_s
            if raging and _stored(guestmark) >= len(MACHINES) and (kind := weather.strike()):
                done[kind] += 1
            weather.there()
            time.sleep(weather.chance.uniform(0.2, 1.2))
            if process.poll() is not None:
                said += b"".join(process.communicate())
                if process.returncode != -signal.SIGKILL:
                    break
                process = guestmark.start("resume", "last")
                starts += 1
        else:
            problems.append("the run has not come to its end")
            process.kill()
            process.wait()
        weather.heal()
        text = said.decode(errors="replace")
        if "Traceback" in text or "this is a bug" in text:
            problems.append(text[-3000:])
        if not wait_until(lambda: not weather.there(), _GONE_S):
            left = weather.there()
            problems.append(f"left running: {[(pid, _called(pid)) for pid in left]}")
            kill(left, signal.SIGKILL)
        if lying := [path for path in weather.directories if Path(path).exists()]:
            problems.append(f"left lying: {lying}")
        with open_ledger(guestmark.ledger, writable=False) as ledger:
            stored = ledger.load_run("last")
        places = Counter((trial.block, trial.cell_id) for trial in stored.trials)
        left_out = {entry.name for entry in stored.unusable}
        planned = {(block, cell.id) for block in range(blocks) for cell in stored.plan.cells}
        missing = {(block, cell) for block, cell in planned - set(places) if cell not in left_out}
        if missing or set(places.values()) != {1}:
            problems.append(f"{len(missing)} of {len(planned)} trials are missing: {text[-1500:]}")
        failed = Counter(trial.reason[:90] for trial in stored.trials if trial.status is not TrialStatus.OK)
        problems += [f"not one line: {reason!r}" for reason in failed if "\n" in reason]
        told = ", ".join(f"{count} × {reason}" for reason, count in failed.most_common(6))
        out = f", left out {', '.join(sorted(left_out))}" if left_out else ""
        return done, problems, f"{len(places)} trials, {failed.total()} failed ({told}), {starts} starts{out}"


def _stored(guestmark: CommandLine) -> int:
    if not guestmark.ledger.exists():
        return 0
    with open_ledger(guestmark.ledger, writable=False) as ledger:
        runs = ledger.list_runs()
        return runs[-1].trials if runs else 0


def _called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")[:120]
    except OSError:
        return ""


def main() -> int:
    """Prints what was done, and every problem; exits with 1 if there was one."""
    parser = argparse.ArgumentParser(prog="tests.storm.ssh", description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=5.0, help="at most, for the faults")
    given = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="storm-", dir="/var/tmp") as folder:
        done, problems, told = storm(Path(folder), given.faults, given.seed, given.blocks, 60 * given.minutes)
    for kind, count in sorted(done.items()):
        print(f"  {count:3} × {kind}")
    print(f"seed {given.seed}: {done.total()} faults, {told}; {time.monotonic() - begin:.0f} s")
    for problem in problems:
        print(f"  PROBLEM {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""One run after the other is killed at a random moment and resumed; after each kill nothing of it may be left.

A storm has a ledger, a cache and scratch directories of its own. What belongs to it is known by a variable in its
environment, which every process that it starts inherits.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from guestmark.agent.keeper import is_in_use
from tests.framework.command_line import CommandLine
from tests.framework.processes import kill

MARK = "GUESTMARK_STORM"
PATIENCE_S = 5.0  # within which everything has to be gone
_STEP_S = 0.02
_MEMORY = Path("/dev/shm")

OLTP = """
schema = "guestmark-plan/1"
name = "storm"
title = "a short load on a database"
platforms = ["host", "tcg"]
baseline = { platform = "host" }
[workloads.storm]
kind = "oltp"
params.server = "mariadb"
params.tables = 1
params.rows = 1000
params.time = "1s"
"""


_CARD = "platform=tcg and nic=e1000 and console=none"
# Images, guestfish with its appliance, and both kinds of guests.
DISK = """
schema = "guestmark-plan/1"
name = "storm"
title = "data into disks"
platforms = ["uml", "tcg"]
[factors]
size = "256M"
[workloads.zeroes]
kind = "fill"
params.content = "zero"
params.amount = "16M"
[workloads.guestfish]
kind = "guestfs-run"
platforms = ["tcg"]
"""


@dataclass(frozen=True)
class Mode:
    """What is run, and within how many seconds it is killed."""

    name: str
    words: tuple[str, ...]
    within_s: float
    plan: str = ""


MODES = {
    mode.name: mode
    for mode in (
        Mode("exec", ("exec", "--blocks", "3", "--on", "host,uml,tcg", "--", "sh", "-c", "sleep 0.1"), 8.0),
        Mode("disk", ("run", "storm.toml", "--blocks", "2"), 14.0, DISK),
        Mode("nested", ("exec", "--blocks", "2", "--on", "host,tcg/uml", "--", "true"), 20.0),
        Mode("netboot", ("run", "netboot", "--scale", "0.01", "--blocks", "1", "--only", _CARD), 14.0),
        Mode("oltp", ("run", "storm.toml", "--blocks", "2"), 20.0, OLTP),
    )
}


@dataclass
class Outcome:
    """What happened: how many kills and whole runs, what was wrong, and how long the last remains stayed."""

    kills: int = 0
    resumed: int = 0
    whole: int = 0
    longest_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Storm:
    """One mode in its folder; `seed` decides when it is killed."""

    def __init__(self, mode: Mode, folder: Path, seed: int) -> None:
        self.mode = mode
        self._line = CommandLine.with_scratch(folder)
        self._random = random.Random(f"{mode.name} {seed}")
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        self._line.environment[name] = value
        self._memory = set(_memory())
        self._expected: dict[str, int] = {}
        if mode.plan:
            (folder / "storm.toml").write_text(mode.plan)

    def rage(self, kills: int, until: float, outcome: Outcome) -> None:
        """Kills `kills` times, or until that moment; then lets the last run come to its end."""
        run: str | None = None
        for _ in range(kills):
            if time.monotonic() >= until:
                break
            words = ("resume", run) if run else self.mode.words
            outcome.resumed += bool(run)
            run = self._killed_once(words, outcome)
        if run is not None:
            done = self._line("resume", run, timeout=600)
            if done.status != 0:
                outcome.problems.append(
                    f"{self.mode.name}: the last resume ended with {done.status}: {done.stderr[-500:]}"
                )
            self._check_trials(run, outcome)

    def _killed_once(self, words: tuple[str, ...], outcome: Outcome) -> str | None:
        """Starts it and kills it; the id of the run that can be resumed, if any."""
        process = self._line.start(*words, start_new_session=True)
        kill_at = time.monotonic() + self._random.random() * self.mode.within_s
        try:
            _, said = process.communicate(timeout=max(0.0, kill_at - time.monotonic()))
            outcome.whole += 1
            if process.returncode != 0:
                outcome.problems.append(
                    f"{self.mode.name}: ended with {process.returncode}: {said.decode()[-500:]}"
                )
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()  # not for the ends of its pipes, which what it has started holds, too
            outcome.kills += 1
            self._check_leavings(outcome)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        return self._check_ledger(outcome)

    def _check_leavings(self, outcome: Outcome) -> None:
        begin = time.monotonic()
        while left := self._left():
            if time.monotonic() - begin > PATIENCE_S:
                outcome.problems.append(f"{self.mode.name}: kill {outcome.kills} left {left}")
                self._clean_up()
                break
            time.sleep(_STEP_S)
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - begin)

    def _left(self) -> list[str]:
        files = [str(path) for path in self._line.scratch.iterdir()]
        files += [str(path) for path in _memory() if path not in self._memory]
        return [*files, *(f"{pid}: {command}" for pid, command in self._processes())]

    def _processes(self) -> Iterator[tuple[int, str]]:
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        yield (
                            int(folder.name),
                            (folder / "cmdline").read_text(errors="replace").replace("\0", " ")[:150],
                        )

    def _clean_up(self) -> None:
        """So that one failure is counted once."""
        kill([pid for pid, _ in self._processes()], signal.SIGKILL)
        subprocess.run(["rm", "-rf", *map(str, self._line.scratch.iterdir())], check=False)
        self._memory = set(_memory())

    def _check_ledger(self, outcome: Outcome) -> str | None:
        """It is sound and has lost nothing; the id of the newest run if that has not come to its end."""
        if not self._line.ledger.exists():
            return None
        with contextlib.closing(sqlite3.connect(self._line.ledger, timeout=20)) as connection:
            (sound,) = connection.execute("pragma integrity_check").fetchone()
            if sound != "ok":
                outcome.problems.append(f"{self.mode.name}: the ledger: {sound}")
        newest = None
        for run in self._line.runs():
            if run.trials < self._expected.get(run.id, 0):
                outcome.problems.append(
                    f"{self.mode.name}: {run.id} lost trials: {run.trials} < {self._expected[run.id]}"
                )
            self._expected[run.id] = run.trials
            newest = run
        return newest.id if newest is not None and newest.state.value != "complete" else None

    def _check_trials(self, run: str, outcome: Outcome) -> None:
        """Every cell once in every block, as if nobody had killed anything."""
        trials = self._line.trials_of(run)
        places = [(block, cell) for block, _, cell in trials]
        if len(places) != len(set(places)):
            outcome.problems.append(f"{self.mode.name}: {run} has trials twice")
        blocks = {block for block, _ in places}
        cells = {cell for _, cell in places}
        if len(places) != len(blocks) * len(cells):
            outcome.problems.append(f"{self.mode.name}: {run} lacks trials: {sorted(places)}")


def _memory() -> list[Path]:
    """What is nobody's: other runs on this machine have their own, whose owners live."""
    with contextlib.suppress(OSError):
        ours = (path for path in _MEMORY.iterdir() if path.name.startswith("guestmark-"))
        return [path for path in ours if not is_in_use(path)]
    return []

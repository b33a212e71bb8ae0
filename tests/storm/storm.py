"""One run after the other is ended at a random moment and resumed; after each end nothing of it may be left.

A storm has a ledger, a cache and scratch directories of its own. What belongs to it is known by a variable in its
environment, which the processes that it starts inherit, and by being a descendant.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.framework.command_line import CommandLine
from tests.framework.kernels import without_9p
from tests.framework.processes import kill
from tests.storm import leavings
from tests.storm.given import commits, packets, slow_machine
from tests.storm.watching import Watch, kind_of
from tests.storm.ways import WAYS, Running, Started, family

MARK = "GUESTMARK_STORM"
PATIENCE_S = 5.0  # within which everything has to be gone
_STEP_S = 0.02
# Any run that makes something: it finds what others have named, of whom nobody is left.
ANOTHER = ("exec", "-q", "-r", "1", "--on", "host", "--ledger", "another.sqlite", "--", "true")

OLTP = """
schema = "guestmark-plan/1"
name = "storm"
title = "a short load on a database"
platforms = ["host", "uml"]
baseline = { platform = "host" }
[workloads.storm]
kind = "oltp"
params.server = "mariadb"
params.tables = 1
params.rows = 1000
params.time = "1s"
"""

_CARD = "platform=tcg and nic=e1000 and console=none"
# Destroys machines of one's own whose guards were killed, too.
CLEAN = ("clean", "--on", "own:storm")
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

GUESTFISH = """
schema = "guestmark-plan/1"
name = "storm"
title = "an appliance"
platforms = ["tcg"]
[workloads.guestfish]
kind = "guestfs-run"
"""


# The one helper of a disk of User-Mode Linux.
STORAGE = """
schema = "guestmark-plan/1"
name = "storm"
title = "a disk that a daemon serves"
platforms = ["uml"]
baseline = { platform = "uml" }
[factors]
size = "256M"
uml_disk = "vhost-user"
[workloads.zeroes]
kind = "fill"
params.content = "zero"
params.amount = "16M"
"""


NETWORKS = """
schema = "guestmark-plan/2"
name = "storm"
title = "networks"
platforms = ["host", "bwrap", "uml", "tcg"]
[workloads.network]
params.tests = ["upload", "request", "datagrams_down"]
params.time = "100ms"
matrix = false
[[include]]
workload = "network"
platform = ["host", "bwrap"]
network = "veth"
[[include]]
workload = "network"
platform = "host"
network = ["pasta", "slirp4netns"]
[[include]]
workload = "network"
platform = "uml"
network = ["tap", "raw"]
[[include]]
workload = "network"
platform = "tcg"
network = ["tap", "passt", "user"]
"""


TUNE = """
schema = "guestmark-plan/1"
name = "storm"
title = "a race"
platforms = ["uml"]
[factors]
memory = ["256M", "512M", "1G"]
[workloads.sleep]
kind = "exec"
params.command = ["sleep", "0.1"]
[tune]
"""


@dataclass(frozen=True)
class Mode:
    """What is run, and within how many seconds it is ended. `KERNEL` is one without 9p."""

    name: str
    words: tuple[str, ...]
    within_s: float
    plan: str = ""
    ends: bool = True  # by itself
    races: bool = False  # cells leave it before its end
    statuses: frozenset[int] = frozenset({0})  # with which it may end by itself
    capabilities: str = ""  # without which another user cannot run it, as `setpriv` names them
    machine: bool = False  # it is given the definition of a machine


MODES = {
    mode.name: mode
    for mode in (
        Mode("exec", ("exec", "--blocks", "3", "--on", "host,uml,tcg", "--", "sh", "-c", "sleep 0.1"), 8.0),
        Mode("disk", ("run", "storm.toml", "--blocks", "1"), 14.0, DISK),
        Mode("nested", ("exec", "--blocks", "2", "--on", "host,tcg/uml", "--", "true"), 12.0),
        Mode("netboot", ("run", "netboot", "--scale", "0.01", "--blocks", "1", "--only", _CARD), 8.0),
        Mode("networks", ("run", "storm.toml", "--blocks", "2"), 20.0, NETWORKS),
        Mode("oltp", ("run", "storm.toml", "--blocks", "2"), 10.0, OLTP),
        Mode("guestfish", ("run", "storm.toml", "--blocks", "2"), 8.0, GUESTFISH),
        Mode(
            "powercut", ("powercut", "--on", "uml", "--records", "10", "--states", "40", "--blocks", "2"), 5.0
        ),
        Mode(
            "sandboxes",
            ("exec", "--blocks", "3", "--on", "host,bwrap,crun,runc,podman,gvisor", "--", "sleep", "0.1"),
            6.0,
        ),
        Mode(
            "coldstart",
            (
                "run",
                "coldstart",
                "--blocks",
                "1",
                "--scale",
                "0.3",
                "--on",
                "host,bwrap,podman,gvisor,uml,tcg",
            ),
            14.0,
        ),
        Mode(
            "density",
            (
                "run",
                "density",
                "--blocks",
                "1",
                "--scale",
                "0.1",
                "--on",
                "bwrap,podman,gvisor,uml,tcg",
                "--set",
                "guests=3",
            ),
            6.0,
        ),
        Mode(
            "restored",
            ("exec", "--blocks", "3", "--on", "tcg", "--set", "start=cold,restored", "--", "sleep", "0.1"),
            14.0,
        ),
        Mode("live", ("capture", "--live", "lo"), 1.5, ends=False, capabilities="+net_raw,+net_admin"),
        Mode("parquet", ("capture", "--format", "parquet", "-o", "out.parquet", "CAPTURE"), 0.9, ends=False),
        Mode(
            "sqlite",
            (
                "powercut",
                "--on",
                "uml",
                "--method",
                "sqlite",
                "--records",
                "10",
                "--states",
                "40",
                "--blocks",
                "2",
            ),
            8.0,
        ),
        Mode("ab", ("ab", "--on", "host,uml", "--blocks", "3", "--", "true", "---", "sleep", "0"), 6.0),
        Mode("tune", ("tune", "storm.toml", "--for", "20s"), 12.0, TUNE, races=True),
        Mode(
            "bisect",
            (
                "bisect",
                "--good",
                "HEAD~3",
                "--build",
                "true",
                "--on",
                "host",
                "--fail-if",
                "wall_s>+50%",
                "--",
                "cat",
                "{build}/file",
            ),
            6.0,
            ends=False,
            statuses=frozenset({0, 1}),
        ),
        Mode(
            "own",
            ("exec", "--blocks", "3", "--on", "host", "--machine", "storm.toml", "--", "sleep", "0.1"),
            8.0,
            machine=True,
        ),
        Mode(
            "saved",
            (
                "exec",
                "--blocks",
                "3",
                "--on",
                "host",
                "--machine",
                "storm.toml",
                "--set",
                "start=restored",
                "--",
                "sleep",
                "0.1",
            ),
            12.0,
            machine=True,
        ),
        Mode("check", ("machine", "check", "storm.toml"), 12.0, ends=False, machine=True),
        Mode("export", ("export", "last", "--bundle", "b.html"), 1.5, ends=False),
        Mode("doctor", ("doctor",), 6.0, ends=False),
        Mode("storage", ("run", "storm.toml", "--blocks", "2"), 8.0, STORAGE),
        Mode(
            "virtiofs",
            ("exec", "--blocks", "2", "--on", "host,tcg", "--set", "kernel=KERNEL", "--", "sleep", "0.1"),
            5.0,
        ),
    )
}


@dataclass
class Outcome:
    """What happened: how many kills and whole runs, what was wrong, and how long the last remains stayed."""

    kills: int = 0
    resumed: int = 0
    whole: int = 0
    longest_s: float = 0.0
    cleaned: int = 0  # nobody was there to remove what was left, and the next run of guestmark did
    ended: Counter[str] = field(default_factory=Counter)  # which process was ended, or how
    problems: list[str] = field(default_factory=list)


class Storm:
    """One mode in its folder; `seed` decides when it is ended, `way` (of `WAYS`) how."""

    def __init__(
        self, mode: Mode, folder: Path, seed: int, way: str = "kill", *, user: int = 0, warms_up: bool = True
    ) -> None:
        self.mode = mode
        self.way = WAYS[way]
        self._line = CommandLine.with_scratch(folder)
        self._random = random.Random(f"{mode.name} {way} {seed}")
        self._mark = f"{MARK}={secrets.token_hex(8)}"
        name, _, value = self._mark.partition("=")
        self._line.environment[name] = value
        self._user, self._warms_up = user, warms_up
        self._shared = set(leavings.nobodys(user))
        self._announced: set[Path] = set()
        self._hit: Counter[str] = (
            Counter()
        )  # kinds of temporary things, and how often a kill was aimed at each
        self._expected: dict[str, int] = {}
        self._words = mode.words
        self._within_s = mode.within_s
        if "kernel=KERNEL" in mode.words:
            kernel = f"kernel={without_9p(folder)}"
            self._words = tuple(kernel if word == "kernel=KERNEL" else word for word in mode.words)
        if mode.plan:
            (folder / "storm.toml").write_text(mode.plan)
        if "CAPTURE" in mode.words:
            packets(folder / "packets.pcap")
            self._words = tuple("packets.pcap" if word == "CAPTURE" else word for word in self._words)
        if mode.machine:
            file = slow_machine(folder)
            self._line.environment["GUESTMARK_MACHINES"] = str(file)
            self._line("machine", "trust", file)
        if mode.name == "bisect":
            commits(folder)
        if mode.name == "export":
            self._line("exec", "-q", "-r", "1", "--on", "host", "--", "true")
        if user:
            home = folder / "home"
            home.mkdir(exist_ok=True)
            self._line.environment |= {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
            subprocess.run(["chown", "-Rh", f"{user}:{user}", str(folder)], check=True)
            folder.chmod(0o755)

    def rage(self, kills: int, until: float, outcome: Outcome) -> None:
        """Ends it `kills` times, or until that moment and as long as a whole run takes; then lets the last one end.

        The first one comes to its end, too: else all ends fall into what is found out and made once. A run that takes
        longer here than its mode expects has up to twice that time.
        """
        run: str | None = None
        if self.mode.ends and self._warms_up:
            begin = time.monotonic()
            self._line(*self._words, timeout=600)
            took = time.monotonic() - begin
            until += took
            self._within_s = min(max(self._within_s, took), 2 * self._within_s)
            outcome.whole += 1
        for _ in range(kills):
            if time.monotonic() >= until:
                break
            words = ("resume", run) if run and self.mode.ends else self._words
            outcome.resumed += bool(run)
            run = self._ended_once(words, outcome)
        if run is not None and self.mode.ends and not self._user:
            done = self._line("resume", run, timeout=600)
            if done.status != 0:
                self._problem(outcome, f"the last resume ended with {done.status}: {done.stderr[-500:]}")
            self._check_trials(run, outcome)

    def _ended_once(self, words: tuple[str, ...], outcome: Outcome) -> str | None:
        """Starts it and ends it; the id of the run that can be resumed, if any."""
        watch = Watch(self._roots()) if self.way.aims else None
        running = Running(self._started(words), self._random)
        moment = time.monotonic() + self._random.random() * self._within_s
        aimed = ""
        try:
            if watch is not None:
                aimed = self._aim(watch, running)
                moment = 0.0 if aimed else moment
            running.started.process.wait(max(0.0, moment - time.monotonic()))
            outcome.whole += 1
            self._check_end(running, outcome, self.mode.statuses)
        except subprocess.TimeoutExpired:
            known = family(running.pid)
            self._announced |= leavings.announced(self._line.folder)
            what = self.way.strike(running)
            # What it had named since: nothing more is named now, and who removes it needs longer.
            self._announced |= leavings.announced(self._line.folder)
            outcome.kills += 1
            outcome.ended[f"{what} at {aimed}" if aimed else what] += 1
            if self.way.ends_within_s:
                self._check_end(running, outcome, self.way.statuses)
            self._check_leavings(outcome, {**known, **running.seen}, what)
        finally:
            if watch is not None:
                watch.close()
        running.started.close()
        return self._check_ledger(outcome)

    def _roots(self) -> list[Path]:
        """Where temporary things are made; what others use, too, is left out."""
        return [self._line.folder]

    def _aim(self, watch: Watch, running: Running) -> str:
        """Waits until something is made, rather of a kind that was seldom hit, and some moments more; its kind."""
        for path in watch.new(2 * self._within_s):
            if running.started.process.poll() is not None:
                return ""
            kind = kind_of(path.name)
            if not path.name.startswith(("guestmark-", "pymp-")):  # what is in one of these goes with it
                continue
            # The more often a kind was hit, the more often it is let pass, so that later ones get their turn.
            if self._random.random() < 1 / (1 + 2 * self._hit[kind]):
                self._hit[kind] += 1
                time.sleep(self._random.choice((0.0, 0.001, 0.005, 0.05)))
                return kind
        return ""

    def _started(self, words: tuple[str, ...]) -> Started:
        """With its output in files: pipes would be held by what it starts, and fill up."""
        return Started(
            self._line,
            words,
            terminal=self.way.terminal,
            user=self._user,
            capabilities=self.mode.capabilities,
        )

    def _check_end(self, running: Running, outcome: Outcome, statuses: frozenset[int] | set[int]) -> None:
        """It ends by itself, in time, and without a crash."""
        process = running.started.process
        try:
            status = process.wait(self.way.ends_within_s or None)
        except subprocess.TimeoutExpired:
            self._problem(outcome, f"did not end within {self.way.ends_within_s:g} s")
            process.kill()
            process.wait()
            return
        said = running.started.said()
        if (statuses and status not in statuses) or "Traceback" in said or "this is a bug" in said:
            self._problem(outcome, f"ended with {status}: {said[-700:]}")

    def _problem(self, outcome: Outcome, what: str) -> None:
        outcome.problems.append(f"{self.mode.name}: {what}")

    def _check_leavings(self, outcome: Outcome, known: dict[int, int], what: str) -> None:
        begin, cleaned = time.monotonic(), False
        while left := self._left(known):
            if time.monotonic() - begin > PATIENCE_S and self.way.needs_another and not cleaned:
                cleaned = True
                for words in (ANOTHER, CLEAN) if self.mode.machine else (ANOTHER,):
                    self._line(*words, user=self._user, group=self._user, extra_groups=[])
                outcome.cleaned += 1
                begin = time.monotonic()
                continue
            if time.monotonic() - begin > PATIENCE_S:
                self._problem(outcome, f"end {outcome.kills} ({what}) left {left}")
                self._clean_up(known)
                break
            time.sleep(_STEP_S)
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - begin)

    def _left(self, known: dict[int, int]) -> list[str]:
        files = [str(path) for path in self._line.scratch.iterdir()]
        for path in leavings.nobodys(self._user):
            if path not in self._shared and (path in self._announced or not leavings.is_group(path)):
                files.append(str(path))
        files += [str(path) for path in leavings.parts(self._line.folder)]
        files += [str(path) for path in leavings.machines(self._line.folder)]
        kernels = [
            *leavings.mounts(self._line.scratch),
            *leavings.loops(self._line.scratch),
            *leavings.queues(known, self._user),
            *leavings.interfaces(),
        ]
        return [*files, *kernels, *(f"{pid}: {command}" for pid, command in self._processes(known))]

    def _processes(self, known: dict[int, int]) -> Iterator[tuple[int, str]]:
        return leavings.processes(self._mark.encode(), known)

    def _clean_up(self, known: dict[int, int]) -> None:
        """So that one failure is counted once."""
        kill([pid for pid, _ in self._processes(known)], signal.SIGKILL)
        subprocess.run(["rm", "-rf", *map(str, self._line.scratch.iterdir())], check=False)
        self._shared = set(leavings.nobodys(self._user))

    def _check_ledger(self, outcome: Outcome) -> str | None:
        """It is sound and has lost nothing; the id of the newest run if that has not come to its end."""
        if not self._line.ledger.exists():
            return None
        with contextlib.closing(sqlite3.connect(self._line.ledger, timeout=20)) as connection:
            (sound,) = connection.execute("pragma integrity_check").fetchone()
            if sound != "ok":
                self._problem(outcome, f"the ledger: {sound}")
        newest = None
        for run in self._line.runs():
            if run.trials < self._expected.get(run.id, 0):
                self._problem(outcome, f"{run.id} lost trials: {run.trials} < {self._expected[run.id]}")
            self._expected[run.id] = run.trials
            newest = run
        return newest.id if newest is not None and newest.state.value != "complete" else None

    def _check_trials(self, run: str, outcome: Outcome) -> None:
        """Every cell once in every block, as if nobody had killed anything."""
        trials = self._line.trials_of(run)
        places = [(block, cell) for block, _, cell in trials]
        if len(places) != len(set(places)):
            self._problem(outcome, f"{run} has trials twice")
        blocks = {block for block, _ in places}
        cells = {cell for _, cell in places}
        if len(places) != len(blocks) * len(cells) and not self.mode.races:
            self._problem(outcome, f"{run} lacks trials: {sorted(places)}")

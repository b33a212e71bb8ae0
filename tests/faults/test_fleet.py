"""A plan on the machines of a lab: exactly once whatever dies, and held against each other."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import LedgerError, UsageError
from guestmark.core.model import RunState, TrialStatus
from guestmark.fleet import lab as labs
from guestmark.ledger import open_ledger
from guestmark.ledger.attempts import Attempts, lose, refused
from guestmark.ledger.model import StoredRun
from guestmark.stats.between_runs import Past
from guestmark.stats.machines import drift, pooled
from tests.framework.command_line import CommandLine
from tests.framework.labs import Lab, lab
from tests.framework.ledgers import PLAN, trial
from tests.framework.postgresql import Server, postgresql
from tests.framework.processes import others, wait_until
from tests.framework.sshd import Sshd, sshd

needs_engine = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("parsl") or shutil.which("ssh") is None,
    reason="install guestmark[fleet] and the package openssh-client",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The lab's ledger."""
    with postgresql() as running:
        yield running


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """What ssh reaches under any name."""
    with sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def exactly_once(runs: list[StoredRun], blocks: int) -> int:
    """Every cell has its trials, one in a block, and as many more blocks as one was lost in; how many were lost."""
    lost = 0
    for run in runs:
        assert run.state is RunState.COMPLETE
        seen = Counter((trial.block, trial.cell_id) for trial in run.trials)
        assert set(seen.values()) == {1}
        here = {trial.block for trial in run.trials if trial.status is TrialStatus.LOST}
        assert {trial.block for trial in run.trials} == set(range(blocks + len(here)))
        for cell in run.plan.cells:
            mine = [trial for trial in run.trials if trial.cell_id == cell.id]
            assert sum(trial.status is TrialStatus.OK for trial in mine) >= blocks
        lost += sum(trial.status is TrialStatus.LOST for trial in run.trials)
    return lost


@needs_engine
def test_every_machine_measures_the_plan(guestmark: CommandLine, server: Server, reached: Sshd) -> None:
    made = lab(guestmark, server.url, ["lab1", "lab2"])
    done = guestmark(*made.arguments(), "--json", "-", env={"GUESTMARK_SSH": reached.client}, timeout=120)
    assert done.status == 0, done.stderr
    document = json.loads(done.stdout)
    assert [machine["name"] for machine in document["machines"]] == ["lab1", "lab2"]
    assert all(machine["trials"] == {"ok": 9, "failed": 0, "lost": 0} for machine in document["machines"])
    runs = [run for run in made.runs() if run.plan.context["fleet"]["fleet"] == document["fleet"]]
    assert exactly_once(runs, 3) == 0
    shown = guestmark("fleet", "show", "last", "--ledger", server.url)
    assert "lab2" in shown.stdout
    again = guestmark("fleet", "resume", document["fleet"], "--ledger", server.url, "-q", timeout=60)
    assert again.status == 0
    guestmark.assert_nothing_left()


def _of_the_fleet(made: Lab) -> dict[str, list[int]]:
    """Ids of the processes of a fleet that may be killed, by what they are."""
    found: dict[str, list[int]] = {"pool": [], "interchange": []}
    for folder, command in others():
        words = b" ".join(command)
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(made.guestmark.folder).encode() not in environment:
            continue
        if b"process_worker_pool" in words and b"supervise" not in words:
            found["pool"].append(int(folder.name))
        if b"parsl.executors.high_throughput.interchange" in words:
            found["interchange"].append(int(folder.name))
    return found


@needs_engine
@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_dies_each_trial_is_there_once_or_lost(
    guestmark: CommandLine, server: Server, reached: Sshd, seed: int
) -> None:
    made = lab(guestmark, server.url, ["lab1", "lab2", "lab3"], blocks=12, levels='"0.1", "0.2"')
    chance = random.Random(seed)
    environment = {"GUESTMARK_SSH": reached.client}
    before = {run.id for run in made.runs()}
    faults = 0
    command: tuple[str, ...] = made.arguments()
    deadline = time.monotonic() + 150
    while True:
        assert time.monotonic() < deadline
        with guestmark.running(*command, env=environment) as process:
            ended = time.monotonic() + chance.uniform(8, 15)
            while process.poll() is None and (faults >= 12 or time.monotonic() < ended):
                time.sleep(chance.uniform(0.5, 2.5))
                there = _of_the_fleet(made)
                kind = chance.choice(["pool", "pool", "pool", "interchange", "server"])
                if faults >= 12:
                    continue
                if kind == "server":
                    server.stop(chance.choice([signal.SIGINT, signal.SIGKILL]))
                    time.sleep(chance.uniform(0, 1))
                    server.start()
                elif there[kind]:
                    os.kill(chance.choice(there[kind]), chance.choice([signal.SIGKILL, signal.SIGSTOP]))
                else:
                    continue
                faults += 1
            if process.poll() is not None:
                break
            process.kill()  # the coordinator
            faults += 1
        assert wait_until(lambda: not any(_of_the_fleet(made).values()), 30)
        new = [run for run in made.runs() if run.id not in before]
        if new:
            fleet = new[0].plan.context["fleet"]["fleet"]
            command = ("fleet", "resume", fleet, "--ledger", server.url)
    runs = [run for run in made.runs() if run.id not in before]
    assert len(runs) == 3
    print(f"{faults} faults, {exactly_once(runs, 12)} trials lost")


def test_an_attempt_is_made_once(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        cell = PLAN.cells[0].id
        attempts, others_ = Attempts(ledger, run_id, "lab1"), Attempts(ledger, run_id, "lab2")
        token = attempts.begin(cell, 0, 0)
        with pytest.raises(LedgerError, match="it was begun before"):
            others_.begin(cell, 0, 0)
        attempts.append(trial(0), token)
        assert refused(ledger, run_id) == 1
        assert lose(ledger, run_id, "gone") == 0


def test_what_was_lost_is_not_stored_afterwards(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.sqlite") as ledger:
        run_id = ledger.create_run(PLAN, {}, 1)
        cell = PLAN.cells[0].id
        attempts = Attempts(ledger, run_id, "lab1")
        token = attempts.begin(cell, 0, 0)
        assert lose(ledger, run_id, "it was silent") == 1
        with pytest.raises(LedgerError, match="recorded as lost"):
            attempts.append(trial(0), token)
        (kept,) = ledger.load_run(run_id).trials
    assert (kept.status, kept.reason) == (TrialStatus.LOST, "lab1: it was silent")


def test_a_lab_with_mistakes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text('[machines.a]\nssh = "-oProxyCommand=x"\nklass = "b"\n')
    with pytest.raises(UsageError) as told:
        labs.read(str(file))
    assert "unknown key 'klass'" in f"{told.value.message} {told.value.hint}"
    file.write_text('[machines.a]\nssh = "-oProxyCommand=x"\n[machines.b]\n[machines.c]\n')
    with pytest.raises(UsageError) as told:
        labs.read(str(file))
    assert "is not a destination of ssh" in f"{told.value.message} {told.value.hint}"
    assert "both this machine" in f"{told.value.message} {told.value.hint}"


def _found(ratio: float, reach: float = 0.02) -> Past:
    return Past("run", 0.0, ratio, ratio * (1 - reach), ratio * (1 + reach), 10)


def test_machines_of_a_class_are_pooled_and_a_stranger_is_named() -> None:
    alike = {f"lab{number}": _found(2.0 * (1 + 0.002 * number)) for number in range(6)}
    assert pooled({name: alike[name] for name in ("lab0", "lab1")}) is None
    made = pooled(alike)
    assert made is not None
    assert made.ci[0] < 2.01 < made.ci[1]
    assert made.different == ()
    made = pooled({**alike, "odd": _found(3.0)})
    assert made is not None
    assert made.different == ("odd",)
    assert made.prediction[0] < made.ci[0] < made.ci[1] < made.prediction[1]


def test_a_class_is_covered_by_its_interval() -> None:
    chance = random.Random(4)
    held = 0
    for _ in range(400):
        found = {}
        for number in range(5):
            own = 2.0 * chance.lognormvariate(0, 0.03)
            found[str(number)] = _found(own * chance.lognormvariate(0, 0.01), 0.0226)
        made = pooled(found)
        assert made is not None
        held += made.ci[0] <= 2.0 <= made.ci[1]
    assert held >= 370  # of 380 on average


def test_a_machine_that_drifts_is_told_from_one_that_varies() -> None:
    chance = random.Random(5)
    steady = [chance.lognormvariate(0, 0.02) for _ in range(20)]
    assert drift(steady) is None
    moved = drift([value * (1 + 0.01 * at) for at, value in enumerate(steady)])
    assert moved == pytest.approx(0.19, abs=0.05)

"""Blocks of one run, measured by processes that race, are killed and begin anew."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import update

from guestmark.core.errors import BlockStatus, LedgerError
from guestmark.core.findings import find_machine
from guestmark.core.model import RunState, TrialStatus
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.ledger.schema import trials
from guestmark.ledger.trial_counts import find_complete_blocks
from guestmark.stats.stopping import MOST_FAILURES
from tests.framework.command_line import CommandLine
from tests.framework.labs import PLAN
from tests.framework.marks import long
from tests.framework.postgresql import postgresql
from tests.framework.processes import children, kill, others, wait_until
from tests.framework.slurm import slurm
from tests.framework.sshd import sshd
from tests.storm.fleet import exactly_once

SBATCH = Path(__file__).parents[2] / "examples/lab/slurm.sbatch"


@pytest.fixture(params=[long("file"), "server"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the runs are kept."""
    if request.param == "file":
        yield str(tmp_path / "shared.sqlite")
        return
    with postgresql() as server:
        yield server.url


class Cluster:
    """Calls of `guestmark block` of one run, as the tasks of a job array make them."""

    def __init__(self, guestmark: CommandLine, ledger: str, blocks: int, levels: str, more: str = "") -> None:
        self.guestmark, self.ledger, self.blocks = guestmark, ledger, blocks
        plan = guestmark.folder / "plan.toml"
        plan.write_text(PLAN.replace("{levels}", levels).replace("{blocks}", str(blocks)) + more)
        made = guestmark("run", plan, "--prepare-only", "--ledger", ledger, env=self.environment)
        assert made.status == 0, made.stderr
        self.run = made.stdout.strip()

    environment = {"GUESTMARK_LOCK": "none"}  # noqa: RUF012 (all of it on one machine)

    def arguments(self, machine: str) -> tuple[str, ...]:
        """Those of a call on the machine of that name."""
        return ("block", self.run, "--machine", machine, "--ledger", self.ledger)

    def stored(self) -> StoredRun:
        """The run as it is by now."""
        with open_ledger(self.ledger, writable=False) as ledger:
            return ledger.load_run(self.run)


def test_blocks_are_measured_one_a_call(guestmark: CommandLine, ledger: str) -> None:
    made = Cluster(guestmark, ledger, 2, '"0", "0.01"')
    for machine in ("one", "two"):
        done = guestmark(*made.arguments(machine), env=made.environment)
        assert done.status == BlockStatus.DONE, done.stderr
    assert made.stored().state is RunState.COMPLETE
    done = guestmark(*made.arguments("three"), env=made.environment)
    assert done.status == BlockStatus.NO_TIME_LEFT
    assert "nothing is left" in done.stderr
    assert {find_machine(trial.facts) for trial in made.stored().trials} == {"one", "two"}
    assert exactly_once([made.stored()], 2) == 0


@pytest.mark.long
def test_blocks_of_a_run_that_its_results_end(guestmark: CommandLine, ledger: str) -> None:
    made = Cluster(guestmark, ledger, 2, '"0", "0.01"')
    plan = guestmark.folder / "plan.toml"
    plan.write_text(re.sub("blocks = 2|iterations = 1", "", plan.read_text()) + 'time_limit = "1s"\n')
    made.run = guestmark(
        "run", plan, "--prepare-only", "--ledger", ledger, env=made.environment
    ).stdout.strip()
    calls = [guestmark(*made.arguments(f"m{number % 2}"), env=made.environment) for number in range(6)]
    ended = [call.status for call in calls]
    assert BlockStatus.NO_TIME_LEFT in ended, [call.stderr for call in calls]
    done = ended.index(BlockStatus.NO_TIME_LEFT)
    assert ended == [BlockStatus.DONE] * done + [BlockStatus.NO_TIME_LEFT] * (6 - done)
    stored = made.stored()
    assert stored.state is RunState.STOPPED
    assert stored.blocks == done > 1
    assert stored.plan.context.iterations
    assert {find_machine(trial.facts) for trial in stored.trials} == {"m0", "m1"}


@pytest.mark.long
def test_a_cell_that_never_succeeds_is_given_up_by_all(guestmark: CommandLine, ledger: str) -> None:
    made = Cluster(guestmark, ledger, 4, '"0", "nothing"')
    calls = [guestmark(*made.arguments(f"m{number % 2}"), env=made.environment) for number in range(5)]
    failed, done, left = BlockStatus.SOME_FAILED, BlockStatus.DONE, BlockStatus.NO_TIME_LEFT
    assert [call.status for call in calls] == [failed] * MOST_FAILURES + [done, left]
    assert "it is not tried again" in calls[2].stderr
    stored = made.stored()
    assert stored.state is RunState.COMPLETE
    tried = [trial.block for trial in stored.trials if trial.status is TrialStatus.FAILED]
    assert tried == list(range(MOST_FAILURES))


@pytest.mark.long
def test_a_block_is_claimed_without_reading_what_others_measured(guestmark: CommandLine, ledger: str) -> None:
    """Each call used to read the whole run: a plan of thousands of blocks took longer with each of them."""
    made = Cluster(guestmark, ledger, 3, '"0", "0.01"')
    assert guestmark(*made.arguments("one"), env=made.environment).status == BlockStatus.DONE
    with open_ledger(ledger) as opened:
        opened.run_transaction(
            "spoiling a trial", lambda connection: connection.execute(update(trials).values(body=""))
        )
    assert guestmark(*made.arguments("two"), env=made.environment).status == BlockStatus.DONE
    with open_ledger(ledger) as opened:
        assert (
            find_complete_blocks(
                opened, made.run, [cell.id for cell in opened.load_head(made.run).plan.cells]
            ).blocks
            == 2
        )
        with pytest.raises(LedgerError, match="is damaged"):
            opened.load_run(made.run)


@pytest.mark.long
def test_a_run_with_blocks_under_way_is_not_resumed_and_one_in_others_hands_is_said_to_be(
    guestmark: CommandLine, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever claims a run signs it: with the key of the command line that made it.
    monkeypatch.setenv("XDG_STATE_HOME", guestmark.environment["XDG_STATE_HOME"])
    made = Cluster(guestmark, ledger, 1, '"2.03"')
    with guestmark.running(*made.arguments("one"), env=made.environment) as process:
        assert wait_until(lambda: made.stored().state is RunState.RUNNING, 30)
        other = guestmark(*made.arguments("two"), env=made.environment)
        assert other.status == BlockStatus.LOST
        assert "try again later" in other.stderr
        resumed = guestmark("resume", made.run, "--ledger", ledger, env=made.environment)
        assert f"blocks of run {made.run} are being measured" in resumed.stderr
        process.communicate(timeout=30)
        assert process.returncode == BlockStatus.DONE
    with open_ledger(ledger) as opened, opened.claim_run(made.run):
        assert guestmark(*made.arguments("two"), env=made.environment).status == BlockStatus.NO_TIME_LEFT
    made = Cluster(guestmark, ledger, 1, '"0"')
    with open_ledger(ledger) as opened, opened.claim_run(made.run):
        refused = guestmark(*made.arguments("two"), env=made.environment)
    assert refused.status == BlockStatus.LOST
    assert f"run {made.run} is being executed by process" in refused.stderr


@pytest.mark.long
def test_blocks_that_one_measures_at_a_time_say_so_when_trials_fail(
    guestmark: CommandLine, ledger: str
) -> None:
    """A plan with commands around the run is not divided; its calls used to say that all was well."""
    made = Cluster(guestmark, ledger, 2, '"0", "nothing"', '[around.run]\nsetup = "true"\n')
    statuses = [guestmark(*made.arguments("one"), env=made.environment).status for _ in range(3)]
    assert statuses == [BlockStatus.SOME_FAILED, BlockStatus.SOME_FAILED, BlockStatus.NO_TIME_LEFT]


@pytest.mark.long
def test_what_this_machine_cannot_measure_is_left_to_others(guestmark: CommandLine, ledger: str) -> None:
    made = Cluster(guestmark, ledger, 1, '"0"')
    with open_ledger(ledger) as opened:
        plan = opened.load_run(made.run).plan
        text = guestmark.folder / "uml.toml"
        text.write_text((guestmark.folder / "plan.toml").read_text().replace('"host"', '"host", "uml"'))
        prepared = guestmark("run", text, "--prepare-only", "--ledger", ledger, env=made.environment)
        assert plan.name == opened.load_run(prepared.stdout.strip()).plan.name
    if "left out" in prepared.stderr:
        pytest.skip("no User-Mode Linux here")
    without = {**made.environment, "PATH": "/nowhere"}
    refused = guestmark("block", prepared.stdout.strip(), "--ledger", ledger, env=without)
    assert refused.status == BlockStatus.NOT_POSSIBLE, refused.stderr
    assert "uml cannot be used on this machine" in refused.stderr


@pytest.mark.long
def test_an_interrupted_block_is_lost_and_made_up_for(guestmark: CommandLine, ledger: str) -> None:
    made = Cluster(guestmark, ledger, 1, '"3.07"')
    with guestmark.running(*made.arguments("one"), env=made.environment) as process:
        assert wait_until(lambda: made.stored().state is RunState.RUNNING, 30)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert process.returncode == 130
    assert guestmark(*made.arguments("two"), env=made.environment).status == BlockStatus.DONE
    assert exactly_once([made.stored()], 1) <= 1


@pytest.mark.long
def test_processes_that_race_and_are_killed_double_nothing_and_miss_nothing(
    guestmark: CommandLine, ledger: str
) -> None:
    chance, kills, most, blocks = random.Random(5), 0, 14, 12
    made = Cluster(guestmark, ledger, blocks, '"0.05", "0.15"')
    ended = 0
    started = 0
    begin = time.monotonic()
    at_work = [guestmark.start(*made.arguments(f"m{n}"), env=made.environment) for n in range(4)]
    while at_work and time.monotonic() - begin < 240:
        time.sleep(chance.uniform(0.05, 0.5))
        if kills < most:
            victim = chance.choice(at_work)
            victim.kill()
            kills += 1
        for number, process in enumerate(list(at_work)):
            if process.poll() is None:
                continue
            _, said = process.communicate()
            at_work.remove(process)
            expected = {-signal.SIGKILL, 0, BlockStatus.NO_TIME_LEFT, BlockStatus.LOST}
            assert process.returncode in expected, said
            ended += process.returncode == BlockStatus.NO_TIME_LEFT
            if process.returncode != BlockStatus.NO_TIME_LEFT:
                started += 1
                again = made.arguments(f"m{number}")
                at_work.append(guestmark.start(*again, env=made.environment))
    assert kills == most
    assert ended == 4
    stored = made.stored()
    lost = exactly_once([stored], blocks)
    assert lost == sum(trial.status is TrialStatus.LOST for trial in stored.trials)
    assert len({find_machine(trial.facts) for trial in stored.trials} - {""}) > 1


@pytest.mark.long
def test_a_job_array_of_slurm_whose_tasks_are_requeued_and_killed(
    guestmark: CommandLine, ledger: str, tmp_path: Path
) -> None:
    chance, blocks, faults = random.Random(7), 12, 14
    made = Cluster(guestmark, ledger, blocks, '"0.53", "0.83"')
    with slurm(tmp_path / "slurm") as cluster:
        called = tmp_path / "bin/guestmark"
        called.parent.mkdir()
        called.write_text(f'#!/bin/sh\nexec {sys.executable} -m guestmark "$@"\n')
        called.chmod(0o755)
        environment = {**guestmark.environment, **made.environment, **cluster.environment}
        environment |= {"RUN": made.run, "GUESTMARK_LEDGER": ledger, "PAUSE": "1"}
        environment["PATH"] = f"{called.parent}:{environment['PATH']}"
        submitted = subprocess.run(
            ["sbatch", "--parsable", f"--array=1-{blocks}", "--output", str(tmp_path / "task-%a.log"), str(SBATCH)],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True,
        )  # fmt: skip
        job, done, begin = submitted.stdout.strip(), {"requeue": 0, "kill": 0}, time.monotonic()
        while (tasks := cluster.tasks(job)) and time.monotonic() - begin < 300:
            time.sleep(chance.uniform(0.5, 1.5))
            running = [task for task, state in tasks.items() if state == "RUNNING"]
            kind = chance.choice(list(done))
            if sum(done.values()) >= faults or not running:
                continue
            if kind == "requeue":
                cluster("scontrol", "requeue", chance.choice(running))
            else:
                victims = [pid for pid in _blocks_of(made.run) if _measures(made, pid)]
                if not victims:
                    continue
                kill([chance.choice(victims)], signal.SIGKILL)
            done[kind] += 1
        assert not cluster.tasks(job), cluster("squeue")
    assert min(done.values()) > 0, done
    stored = made.stored()
    lost = exactly_once([stored], blocks)
    assert lost >= 1
    assert {find_machine(trial.facts) for trial in stored.trials} >= {"n1", "n2", "n3", "n4"}
    print(f"{done}: {len(stored.trials)} trials, {lost} lost")
    assert not _blocks_of(made.run)


def _blocks_of(run: str) -> list[int]:
    return [int(folder.name) for folder, words in others() if b"block" in words and run.encode() in words]


def _measures(made: Cluster, pid: int) -> bool:
    """Whether a call has begun a trial: it has a child that works."""
    return bool(children(pid))


@pytest.mark.long
def test_machines_that_ssh_reaches_share_a_run(guestmark: CommandLine, tmp_path: Path) -> None:
    with postgresql() as server, sshd(tmp_path) as reached:
        made = Cluster(guestmark, server.url, 6, '"0.1", "0.2"')
        here = {**guestmark.environment, **made.environment}
        words = [
            f"{name}={value}"
            for name, value in here.items()
            if name.startswith(("GUESTMARK_", "PYTHONPATH", "XDG_"))
        ]
        environment = {
            **guestmark.environment,
            "GUESTMARK_LEDGER": server.url,
            "GUESTMARK": f"env {' '.join(words)} GUESTMARK_LEDGER={server.url} {sys.executable} -m guestmark",
            "SSH": reached.client,
            "PAUSE": "1",
        }
        command = [str(SBATCH.with_name("ssh.sh")), made.run, "lab1", "lab2"]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as loop:
            assert wait_until(lambda: len(_blocks_of(made.run)) > 1, 30)
            for _ in range(3):
                time.sleep(1)
                kill(_blocks_of(made.run)[:1], signal.SIGKILL)
            said, _ = loop.communicate(timeout=120)
        assert loop.returncode == 0, said
        assert exactly_once([made.stored()], 6) <= 3
        assert {find_machine(trial.facts) for trial in made.stored().trials} >= {"lab1", "lab2"}

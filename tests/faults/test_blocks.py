"""Blocks of one run, measured by processes that race, are killed and begin anew."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.errors import BlockStatus
from guestmark.core.findings import machine_of
from guestmark.core.model import RunState, TrialStatus
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from tests.framework.command_line import CommandLine
from tests.framework.labs import PLAN
from tests.framework.postgresql import postgresql
from tests.framework.processes import wait_until
from tests.storm.fleet import exactly_once


@pytest.fixture(params=["file", "server"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the runs are kept."""
    if request.param == "file":
        yield str(tmp_path / "shared.sqlite")
        return
    with postgresql() as server:
        yield server.url


class Cluster:
    """Calls of `guestmark block` of one run, as the tasks of a job array make them."""

    def __init__(self, guestmark: CommandLine, ledger: str, blocks: int, levels: str) -> None:
        self.guestmark, self.ledger, self.blocks = guestmark, ledger, blocks
        plan = guestmark.folder / "plan.toml"
        plan.write_text(PLAN.replace("{levels}", levels).replace("{blocks}", str(blocks)))
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
    assert done.status == BlockStatus.NOTHING_LEFT
    assert "nothing is left" in done.stderr
    assert {machine_of(trial.facts) for trial in made.stored().trials} == {"one", "two"}
    assert exactly_once([made.stored()], 2) == 0


def test_a_run_with_blocks_under_way_is_not_resumed_and_one_in_others_hands_is_said_to_be(
    guestmark: CommandLine, ledger: str
) -> None:
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
    with open_ledger(ledger) as opened, opened.claim(made.run):
        assert guestmark(*made.arguments("two"), env=made.environment).status == BlockStatus.NOTHING_LEFT
    made = Cluster(guestmark, ledger, 1, '"0"')
    with open_ledger(ledger) as opened, opened.claim(made.run):
        refused = guestmark(*made.arguments("two"), env=made.environment)
    assert refused.status == BlockStatus.LOST
    assert f"run {made.run} is being executed by process" in refused.stderr


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
            process.communicate()
            at_work.remove(process)
            assert process.returncode in {-signal.SIGKILL, 0, BlockStatus.NOTHING_LEFT, BlockStatus.LOST}
            ended += process.returncode == BlockStatus.NOTHING_LEFT
            if process.returncode != BlockStatus.NOTHING_LEFT:
                started += 1
                again = made.arguments(f"m{number}")
                at_work.append(guestmark.start(*again, env=made.environment))
    assert kills == most
    assert ended == 4
    stored = made.stored()
    lost = exactly_once([stored], blocks)
    assert lost == sum(trial.status is TrialStatus.LOST for trial in stored.trials)
    assert len({machine_of(trial.facts) for trial in stored.trials} - {""}) > 1

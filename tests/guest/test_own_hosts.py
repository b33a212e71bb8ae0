"""Machines of the user's own that are made on another host: here an sshd on loopback stands for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.machine_facts import OwnKernel, OwnMachine
from guestmark.core.model import TrialStatus
from guestmark.ledger import open_ledger
from guestmark.platforms.own.store import VARIABLE
from tests.framework.command_line import CommandLine
from tests.framework.own_machines import own_machine, saving
from tests.framework.processes import wait_until
from tests.framework.sshd import SSHD, Sshd, sshd
from tests.guest.test_own_machines import left, records, trust_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or SSHD is None, reason="needs root and sshd")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with sshd(tmp_path_factory.mktemp("sshd"), {}) as running:
        yield running


@pytest.fixture
def lab(guestmark: CommandLine, tmp_path: Path, server: Sshd) -> CommandLine:
    """Define machines on a host that is a parameter, and trust them."""
    path = own_machine(tmp_path, pid="", host='"{place}"', **saving(tmp_path))
    with path.open("a") as file:
        file.write('[parameters]\nplace = "lab1"\n')
    guestmark.environment |= {VARIABLE: str(path), "GUESTMARK_SSH": server.client}
    trust_as(guestmark, path)
    return guestmark


def machines_of(guestmark: CommandLine) -> list[OwnMachine]:
    with open_ledger(guestmark.ledger, writable=False) as ledger:
        trials = ledger.load_run(ledger.list_runs()[0].id).trials
    assert all(trial.status is TrialStatus.OK for trial in trials)
    return [found for trial in trials if (found := trial.facts.find_fact(OwnMachine)) is not None]


def test_hosts_are_levels_beside_built_in_platforms(lab: CommandLine, tmp_path: Path) -> None:
    done = lab.measure(
        "--on", "host,own:cell", "--set", "own.place=lab1,lab2", "--null", "none", "-r", "1", "--", "true"
    )
    assert done.status in {0, 1}, done
    found = machines_of(lab)
    assert {machine.parameters["place"] for machine in found} == {"lab1", "lab2"}
    assert {machine.inside.kernel_is for machine in found} == {OwnKernel.THERE}
    assert wait_until(lambda: not left(tmp_path) and not records(lab), 15)


def test_machines_there_are_restored(lab: CommandLine, tmp_path: Path) -> None:
    done = lab.measure(
        "--on", "own:cell", "--set", "start=restored", "--null", "none", "-r", "1", "--", "true"
    )
    assert done.status == 0, done
    assert all(machine.restored is not None and machine.restored.files for machine in machines_of(lab))
    assert wait_until(lambda: not left(tmp_path) and not any((tmp_path / "saved").iterdir()), 15)


def test_a_machine_there_goes_with_a_run_that_is_killed(lab: CommandLine, tmp_path: Path) -> None:
    run = lab.start("exec", "--on", "own:cell", "--null", "none", "--", "sleep", "60")
    assert wait_until(lambda: bool(left(tmp_path)), 60)
    run.kill()
    run.wait(60)
    assert wait_until(lambda: not left(tmp_path) and not records(lab), 30)


def test_a_host_that_does_not_answer_is_said(lab: CommandLine, tmp_path: Path) -> None:
    lab.environment["GUESTMARK_SSH"] = "ssh -F none -p 1 -o HostName=127.0.0.1"
    done = lab("exec", "--on", "own:cell", "--", "true")
    assert done.status != 0
    assert "port 1: Connection refused\n" in done.stdout + done.stderr
    assert left(tmp_path) == []

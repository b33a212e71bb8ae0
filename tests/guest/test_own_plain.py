"""Machines of the user's own whose exec returns output only: here one over HTTP, into namespaces of this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from guestmark.core.findings import ExecCost
from guestmark.core.machine_facts import OwnMachine
from guestmark.core.model import TrialStatus
from guestmark.ledger import open_ledger
from guestmark.ledger.model import StoredRun
from guestmark.platforms.own import conformance
from guestmark.platforms.own.conformance import PointFailedError
from guestmark.platforms.own.definition import read_definition
from guestmark.platforms.own.lifecycle import create_machine
from guestmark.platforms.own.store import VARIABLE
from tests.framework.command_line import CommandLine
from tests.framework.own_machines import ENTER, own_machine, words
from tests.framework.remote_shell import CLIENT, serve_commands
from tests.guest.test_own_machines import left, trust_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are entered by root")


@pytest.fixture
def plain(guestmark: CommandLine, tmp_path: Path) -> Iterator[Path]:
    """Define machines whose commands run over HTTP, and trust them."""
    (tmp_path / "machines").mkdir()
    with serve_commands(ENTER, tmp_path / "machines") as address:
        call = words(sys.executable, "-I", "-S", "-c", CLIENT, address, "{id}", "{command}")
        path = own_machine(tmp_path, exec=call, plain="true")
        guestmark.environment[VARIABLE] = str(path)
        trust_as(guestmark, path)
        yield path


def last_run(guestmark: CommandLine) -> StoredRun:
    with open_ledger(guestmark.ledger, writable=False) as ledger:
        return ledger.load_run(ledger.list_runs()[0].id)


def test_commands_are_timed_from_outside_less_an_empty_one(guestmark: CommandLine, plain: Path) -> None:
    done = guestmark.measure("--on", "own:cell", "--null", "none", "-r", "2", "--", "sleep", "0.5")
    assert done.status == 0, done
    run = last_run(guestmark)
    for trial in run.trials:
        cost, machine = trial.facts.find_fact(ExecCost), trial.facts.find_fact(OwnMachine)
        assert cost is not None
        assert machine is not None
        assert machine.plain
        assert machine.kernel == os.uname().release
        assert 0 < cost.low_s <= cost.wall_s <= cost.high_s
        names = {measurement.metric.name for measurement in trial.measurements}
        # What the client's process used is not the command's.
        assert names == {"wall_s"}
        # A start of Python and a request take far longer than what is left.
        assert trial.measurements[0].value == pytest.approx(
            0.5, abs=max(0.05, cost.high_s - cost.low_s + 0.05)
        )
    said = " ".join(guestmark("show", "--details").stdout.split())
    assert "timed from outside: an empty command took" in said
    assert left(plain.parent) == []


@pytest.mark.long
def test_a_command_shorter_than_the_uncertainty_is_said_to_be(guestmark: CommandLine, plain: Path) -> None:
    done = guestmark.measure("--on", "own:cell", "--null", "none", "-r", "2", "--", "true")
    assert done.status == 0, done
    warnings = [warning for trial in last_run(guestmark).trials for warning in trial.warnings]
    assert any("is within that uncertainty: make each run do more work" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--input", "FILE", "--", "cat"), "cannot give it standard input: own:cell is plain"),
        (("--push", "FILE", "--", "FILE"), "cannot copy files to it: own:cell is plain"),
        (("--", "no-such-command"), "command not found on the machine: 'no-such-command'"),
        (("--", "sh", "-c", "echo words; exit 3"), "the command failed with exit status 3"),
    ],
)
def test_what_single_commands_cannot_do_is_said(
    given: tuple[str, ...], said: str, guestmark: CommandLine, plain: Path
) -> None:
    file = plain.parent / "program"
    file.write_text("#!/bin/sh\ntrue\n")
    file.chmod(0o755)
    done = guestmark(
        "exec",
        "--on",
        "own:cell",
        "-r",
        "1",
        "--null",
        "none",
        *(word.replace("FILE", str(file)) for word in given),
    )
    assert done.status != 0
    assert said in " ".join((done.stdout + done.stderr).split())
    assert left(plain.parent) == []


def test_starts_are_measured(guestmark: CommandLine, plain: Path) -> None:
    done = guestmark(
        "run",
        "coldstart",
        "--on",
        "own:cell",
        "--blocks",
        "1",
        "--only",
        "page_cache=warm and pattern=one",
        "--null",
        "none",
    )
    assert [trial.status for trial in last_run(guestmark).trials] == [TrialStatus.OK], done
    assert left(plain.parent) == []


def test_density_is_refused(guestmark: CommandLine, plain: Path) -> None:
    done = guestmark("run", "density", "--on", "own:cell", "--set", "guests=2", "--blocks", "1")
    assert done.status != 0
    assert "own:cell is plain, so no agent can hold" in " ".join((done.stdout + done.stderr).split())
    assert left(plain.parent) == []


@pytest.mark.long
def test_machine_check_says_what_an_empty_command_takes(guestmark: CommandLine, plain: Path) -> None:
    done = guestmark("machine", "check", plain)
    assert done.status == 0, done
    assert "✓ commands are timed from outside (an empty command takes" in done.stdout
    assert "pass both ways" not in done.stdout


@pytest.mark.long
def test_a_command_that_its_killed_exec_leaves_behind_is_a_fault(plain: Path) -> None:
    """The server does not notice that its client was killed, and no other process of this host can end it."""
    with create_machine(read_definition(plain), {}) as made:
        with pytest.raises(PointFailedError, match="keeps running in the machine") as caught:
            conformance._check_end_of_input(made)
        assert "close the command's input when killed" in caught.value.change
    # The server waits for the command, whose machine is gone.
    assert left(plain.parent) == []

"""Machines of the user's own that are restored from a snapshot: what goes on in them is seen from inside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guestmark.core.machine_facts import OwnMachine
from guestmark.ledger import open_ledger
from guestmark.platforms.own.store import VARIABLE
from tests.framework.command_line import CommandLine
from tests.framework.own_machines import CREATE, own_machine, saving
from tests.framework.processes import others, wait_until
from tests.guest.test_own_machines import left, records, trust_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are entered by root")


def restorable(guestmark: CommandLine, folder: Path, **changes: str) -> Path:
    """Define machines that can be saved, and trust them."""
    path = own_machine(folder, **saving(folder, **changes))
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    return path


def nothing_left(guestmark: CommandLine, folder: Path) -> bool:
    def gone() -> bool:
        marked = any(b"guestmark-template-" in word for _, words in others() for word in words)
        return not (left(folder) or any((folder / "saved").iterdir()) or records(guestmark) or marked)

    return wait_until(gone, 15)


def test_restored_machines_are_measured_and_their_snapshot_is_removed(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    restorable(guestmark, tmp_path)
    done = guestmark.measure(
        "--on", "own:cell", "--set", "start=cold,restored", "--null", "none", "-r", "2", "--", "true"
    )
    assert done.status == 0, done
    with open_ledger(guestmark.ledger, writable=False) as ledger:
        trials = ledger.load_run(ledger.list_runs()[0].id).trials
    machines = [trial.facts.find_fact(OwnMachine) for trial in trials]
    restored = [
        machine.restored for machine in machines if machine is not None and machine.restored is not None
    ]
    # One snapshot a block, of files only.
    assert len({each.template for each in restored}) == len(restored) == len(trials) / 2
    assert all(each.files and not each.programs for each in restored)
    assert "of the saved machine files continue, programs do not" in " ".join(
        guestmark("show", "--details").stdout.split()
    )
    assert nothing_left(guestmark, tmp_path)


def test_clones_of_a_snapshot_are_judged_with_a_control(guestmark: CommandLine, tmp_path: Path) -> None:
    restorable(guestmark, tmp_path)
    sizes = ("workloads.clones.params.machines=2", "workloads.clones.params.controls=2")
    overrides = [word for size in sizes for word in ("--override", size)]
    done = guestmark("run", "clones", "--on", "own:cell", *overrides, "--details")
    said = " ".join(done.stdout.split())
    assert "2 clones of one template" in said, done
    assert "a secret from before it was saved: caught" in said
    assert nothing_left(guestmark, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"restore": CREATE}, "was not restored: nothing of the saved machine is in it"),
        ({"snapshot": "echo no room >&2; exit 28"}, "exited with status 28: no room"),
        ({"restore": "echo no such snapshot >&2; exit 3"}, "exited with status 3: no such snapshot"),
    ],
)
def test_a_machine_that_is_not_restored_is_no_trial(
    changes: dict[str, str], said: str, guestmark: CommandLine, tmp_path: Path
) -> None:
    restorable(guestmark, tmp_path, **changes)
    done = guestmark(
        "exec", "--on", "own:cell", "--set", "start=restored", "-r", "1", "--null", "none", "--", "true"
    )
    assert done.status != 0
    assert said in " ".join((done.stdout + done.stderr).split())
    assert nothing_left(guestmark, tmp_path)


@pytest.mark.long
def test_machine_check_says_what_goes_on(guestmark: CommandLine, tmp_path: Path) -> None:
    path = restorable(guestmark, tmp_path)
    done = guestmark("machine", "check", path)
    assert done.status == 0, done
    assert "✓ a restored machine continues from the saved one (files continue, programs do not" in done.stdout
    assert nothing_left(guestmark, tmp_path)


@pytest.mark.long
def test_machine_check_finds_a_restore_that_makes_a_new_machine(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    done = guestmark("machine", "check", restorable(guestmark, tmp_path, restore=CREATE))
    assert done.status == 1, done
    said = " ".join(done.stdout.split())
    assert "✗ a restored machine continues from the saved one: cell was not restored" in said
    assert "restore has to create the machine {id} from {snapshot}" in said
    assert nothing_left(guestmark, tmp_path)


def test_a_definition_without_snapshots_refuses_to_restore(guestmark: CommandLine, tmp_path: Path) -> None:
    path = own_machine(tmp_path)
    guestmark.environment[VARIABLE] = str(path)
    trust_as(guestmark, path)
    done = guestmark("exec", "--on", "own:cell", "--set", "start=restored", "--", "true")
    assert done.status != 0
    assert "its definition has no commands for snapshots: snapshot, restore and discard" in done.stderr


def test_a_snapshot_goes_with_a_run_that_is_killed(guestmark: CommandLine, tmp_path: Path) -> None:
    restorable(guestmark, tmp_path)
    run = guestmark.start(
        "exec", "--on", "own:cell", "--set", "start=restored", "--null", "none", "--", "sleep", "60"
    )
    assert wait_until(lambda: any((tmp_path / "saved").iterdir()) and bool(left(tmp_path)), 60)
    run.kill()
    run.wait(60)
    assert nothing_left(guestmark, tmp_path)

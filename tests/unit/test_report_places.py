"""Where machines ran and where disks were, as reports say it."""

from dataclasses import replace
from typing import Any

from guestmark.ledger.model import StoredRun
from guestmark.report.export_format import Format
from guestmark.report.formats import render
from guestmark.report.sections import places
from tests.framework.runs import host_uml_tcg

PINNED = {"level": "pinned", "processors": 1, "machine": "1", "emulator": "1", "control": "0", "nodes": [0]}
SHM = {"location": "/dev/shm", "filesystem": "tmpfs", "in_memory": True}
DISK = {"location": "/var/tmp", "filesystem": "ext4", "in_memory": False}


def run_with(**facts: dict[str, Any]) -> StoredRun:
    """Every trial attests what its platform is given here."""
    run = host_uml_tcg()
    trials = tuple(
        replace(trial, attestation=facts.get(trial.cell_id.partition("#")[0], {})) for trial in run.trials
    )
    return replace(run, trials=trials)


def page(run: StoredRun) -> str:
    return render(run, Format.MARKDOWN).decode()


def test_the_footer_says_where_machines_ran() -> None:
    tcg = {**PINNED, "emulator": "0"}
    run = run_with(host={"placement": PINNED}, uml={"placement": PINNED}, tcg={"placement": tcg})
    said = "pinned: 1 processor each, CPU 1; emulators' own threads CPU 0; control plane CPU 0"
    assert places.placement(run.trials) == said
    assert said.replace("'", "") in page(run).replace("\\", "").replace("'", "").replace("&#39;", "")


def test_other_placements_are_said_apart_and_none_not_at_all() -> None:
    free = {**PINNED, "level": "free", "machine": "0-1", "emulator": "0-1", "control": "0-1"}
    shared = {**PINNED, "remarks": ["4 virtual processors share 2 processors"]}
    run = run_with(host={"placement": shared}, uml={"placement": free}, tcg={"outer": {"placement": free}})
    assert set(places.placement(run.trials).split("; or ")) == {
        "free: anywhere on CPU 0-1",
        "pinned: 1 processor each, CPU 1; control plane CPU 0; 4 virtual processors share 2 processors",
    }
    assert places.placement(host_uml_tcg().trials) == ""


def test_unequal_numbers_of_processors_stand_beside_the_figures() -> None:
    unequal = run_with(
        host={"processors": 2}, uml={"guest": {"processors": 1}}, tcg={"guest": {"processors": 2}}
    )
    equal = run_with(
        host={"processors": 1}, uml={"guest": {"processors": 1}}, tcg={"guest": {"processors": 1}}
    )
    assert "| processors |" in page(unequal).replace("  ", " ")
    assert "| processors |" not in page(equal).replace("  ", " ")


def test_where_disks_were_is_said_in_words() -> None:
    one = run_with(**{name: {"storage": {"target": SHM}} for name in ("host", "uml", "tcg")})
    assert "disks on /dev/shm: memory" in page(one)
    several = run_with(host={"storage": {"target": DISK}}, uml={"storage": {"target": SHM}})
    assert "on /var/tmp: ext4" in page(several)
    assert "on /dev/shm: memory" in page(several)


def test_runs_from_before_say_that_they_were_in_memory() -> None:
    assert "disks on /dev/shm: memory" in page(run_with(tcg={"location_in_memory": True}))

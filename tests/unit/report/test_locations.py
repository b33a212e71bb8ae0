"""Where machines ran and where disks were, as reports say it."""

from dataclasses import replace

from guestmark.core.findings import TARGET, Fact, Facts, Flushes, Storage, StoredDisk
from guestmark.core.machine_facts import (
    GuestMachine,
    HostMachine,
    NestedMachine,
    OuterMachine,
    PlacementFacts,
)
from guestmark.ledger.model import StoredRun
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.report.sections import locations
from tests.framework import made_facts
from tests.framework.runs import host_uml_tcg

PINNED = PlacementFacts(level="pinned", processors=1, machine="1", emulator="1", control="0", nodes=[0])
FREE = PlacementFacts(level="free", processors=2, machine="0-1", emulator="0-1", control="0-1", nodes=[0])
SHM = StoredDisk(location="/dev/shm", filesystem="tmpfs", in_memory=True)
DISK = StoredDisk(location="/var/tmp", filesystem="ext4", in_memory=False)


def host(placement: PlacementFacts | None = None, processors: int = 1) -> HostMachine:
    return HostMachine(kernel="6.1.0", arch="x86_64", boot_id="1", processors=processors, placement=placement)


def guest(placement: PlacementFacts | None = None, processors: int = 1) -> GuestMachine:
    made = made_facts.guest()
    made.guest.processors = processors
    made.placement = placement
    return made


def nested(placement: PlacementFacts) -> NestedMachine:
    outer = OuterMachine(
        asked={}, guest=made_facts.guest().guest, placement=placement, started_for_each="block", inner_guest=1
    )
    return NestedMachine(outer=outer, inner=made_facts.guest())


def run_with(**facts: Fact) -> StoredRun:
    """Every trial attests what its platform is given here."""
    run = host_uml_tcg()
    trials = []
    for trial in run.trials:
        fact = facts.get(trial.cell_id.partition("#")[0])
        trials.append(replace(trial, facts=Facts() if fact is None else made_facts.of(fact)))
    return replace(run, trials=tuple(trials))


def page(run: StoredRun) -> str:
    return export_run(run, Format.MARKDOWN).decode()


def test_the_footer_says_where_machines_ran() -> None:
    tcg = PlacementFacts(level="pinned", processors=1, machine="1", emulator="0", control="0", nodes=[0])
    run = run_with(host=host(PINNED), uml=guest(PINNED), tcg=guest(tcg))
    said = "pinned: 1 processor each, CPU 1; emulators' own threads CPU 0; control plane CPU 0"
    assert locations.describe_placement(run.trials) == said
    assert said.replace("'", "") in page(run).replace("\\", "").replace("'", "").replace("&#39;", "")


def test_other_placements_are_said_apart_and_none_not_at_all() -> None:
    remarks = ["4 virtual processors share 2 processors"]
    shared = PlacementFacts(
        level="pinned", processors=1, machine="1", emulator="1", control="0", nodes=[0], remarks=remarks
    )
    run = run_with(host=host(shared), uml=guest(FREE), tcg=nested(FREE))
    assert set(locations.describe_placement(run.trials).split("; or ")) == {
        "free: anywhere on CPU 0-1",
        "pinned: 1 processor each, CPU 1; control plane CPU 0; 4 virtual processors share 2 processors",
    }
    assert locations.describe_placement(host_uml_tcg().trials) == ""


def test_unequal_numbers_of_processors_stand_beside_the_figures() -> None:
    unequal = run_with(host=host(processors=2), uml=guest(), tcg=guest(processors=2))
    equal = run_with(host=host(), uml=guest(), tcg=guest())
    assert "| processors |" in page(unequal).replace("  ", " ")
    assert "| processors |" not in page(equal).replace("  ", " ")


def test_where_disks_were_is_said_in_words() -> None:
    one = run_with(**{name: Storage(disks={TARGET: SHM}) for name in ("host", "uml", "tcg")})
    assert "disks on /dev/shm: memory" in page(one)
    several = run_with(host=Storage(disks={TARGET: DISK}), uml=Storage(disks={TARGET: SHM}))
    assert "on /var/tmp: ext4" in page(several)
    assert "on /dev/shm: memory" in page(several)


def test_runs_from_before_say_that_they_were_in_memory() -> None:
    flushes = Flushes(reached="yes", why="as counted", in_memory=True)
    assert "disks on /dev/shm: memory" in page(run_with(tcg=flushes))

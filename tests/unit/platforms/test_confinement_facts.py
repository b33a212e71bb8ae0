"""What is said of confinement: measured on a real process, and a warning where it does not hold."""

import subprocess
from pathlib import Path

from guestmark.agent.confinement import HYPERVISOR
from guestmark.core.machine_facts import ConfinementFacts, MachineFacts
from guestmark.disks.processes import find_confined_program
from guestmark.platforms import confinement
from tests.framework.processes import wait_until


def found_of(command: list[str], writable: tuple[Path, ...]) -> ConfinementFacts | None:
    """What is attested of a process that runs `command`, which ends with `sleep 60`."""
    with subprocess.Popen(command) as process:
        assert wait_until(lambda: called(find_confined_program(process.pid)) == "sleep\n", 10)
        found = confinement.attest_process(process.pid, writable)
        process.kill()
    return found


def called(pid: int | None) -> str:
    return Path(f"/proc/{pid}/comm").read_text() if pid is not None else ""


def test_it_is_measured(tmp_path: Path) -> None:
    free = found_of(["sleep", "60"], ())
    confined = found_of(HYPERVISOR.wrap_command(["sleep", "60"], [tmp_path]), (tmp_path,))
    assert free is not None
    assert confined is not None
    assert not free.protects_files
    assert confined.protects_files
    assert confined.no_new_privileges
    assert confinement.describe_confinement(confined) != confinement.describe_confinement(free) == "nothing"


def test_a_path_that_nobody_was_given_is_noticed(tmp_path: Path) -> None:
    """What is writable beside what was asked for makes the mounts no protection."""
    found = found_of(HYPERVISOR.wrap_command(["sleep", "60"], [tmp_path]), ())
    assert found is not None
    assert not found.mounts


def test_a_guest_that_nothing_confines_is_warned_about() -> None:
    assert confinement.list_remarks(MachineFacts()) == []
    assert confinement.list_remarks(MachineFacts(confined=ConfinementFacts(landlock=True))) == []
    assert (
        "this host's files"
        in confinement.list_remarks(MachineFacts(confined=ConfinementFacts(seccomp=True)))[0]
    )
    weak_share = ConfinementFacts(landlock=True, mounts=True, shares=ConfinementFacts())
    assert confinement.list_remarks(MachineFacts(confined=weak_share)) != []

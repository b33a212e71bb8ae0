"""Which processors machines get: chosen on constructed hosts, and what this process does to itself for real."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from guestmark.core import registry
from guestmark.core.errors import AttestationError, UsageError
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.placement import (
    FREE,
    PINNED,
    Processor,
    Topology,
    choose_processors,
    format_processor_list,
    parse_processor_list,
)
from guestmark.core.platform_spec import HOST
from guestmark.platforms import affinity

USABLE = sorted(os.sched_getaffinity(0))


def host(*processors: Processor) -> Topology:
    return Topology(processors)


def cores(number: int, first: int = 0) -> list[Processor]:
    return [Processor(first + index, (0, first + index)) for index in range(number)]


TWO = host(*cores(2))
# Processor 0 and 4 are threads of one core, as Linux numbers them mostly.
SMT = host(*(Processor(number, (0, number % 4)) for number in range(8)))
NUMA = host(*(Processor(number, (number // 4, number % 4), node=number // 4) for number in range(8)))
BIG_LITTLE = host(
    *(Processor(number, (0, number), capacity=446 if number < 4 else 1024) for number in range(8))
)


@pytest.mark.parametrize(("text", "numbers"), [("0", (0,)), ("2-3", (2, 3)), ("5,0-1", (0, 1, 5))])
def test_lists_are_read_and_written_as_linux_does(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_processor_list(text) == numbers
    assert parse_processor_list(format_processor_list(numbers)) == numbers


def test_levels_have_one_spelling() -> None:
    assert registry.parse_settings([r"placement=Pinned,free,cpus=3\,1\,2,cpus=0"]) == {
        "placement": ("pinned", "free", "cpus=1-3", "cpus=0")
    }


@pytest.mark.parametrize("level", ["cpus=", "cpus=3-1", "cpus=a", "tight", "cpus=-1", "cpus=123456"])
def test_other_levels_are_refused(level: str) -> None:
    with pytest.raises(UsageError, match="placement"):
        registry.parse_settings([f"placement={level}"])


def test_of_two_processors_the_machine_has_one_and_the_rest_the_other() -> None:
    found = choose_processors(TWO, PINNED, 1)
    assert (found.machine, found.emulator, found.control) == ((1,), (1,), (0,))
    assert found.one_each
    assert not found.remarks


def test_of_three_processors_the_emulator_has_one_of_its_own() -> None:
    found = choose_processors(host(*cores(3)), PINNED, 1)
    assert (found.machine, found.emulator, found.control) == ((2,), (1,), (0,))


def test_a_machine_without_threads_of_its_own_is_in_one_place() -> None:
    found = choose_processors(TWO, PINNED, 1, emulator=False)
    assert (found.machine, found.emulator, found.control) == ((1,), (1,), (0,))


def test_a_machine_that_takes_all_shares_them() -> None:
    found = choose_processors(TWO, PINNED, 2)
    assert (found.machine, found.emulator, found.control) == ((0, 1), (0, 1), (0, 1))
    assert found.one_each
    assert found.remarks == ("the control plane shares the machine's processors",)


def test_more_virtual_processors_than_there_are_share_them_and_it_is_said() -> None:
    found = choose_processors(TWO, PINNED, 4)
    assert found.machine == (0, 1)
    assert not found.one_each
    assert "4 virtual processors share 2 processors" in found.remarks


def test_none_said_is_all_of_them() -> None:
    assert choose_processors(SMT, PINNED, 0).machine == tuple(range(8))


def test_hyper_threads_of_the_machines_cores_stay_idle() -> None:
    found = choose_processors(SMT, PINNED, 2)
    used = {*found.machine, *found.emulator, *found.control}
    assert len({SMT.find_processor(number).core for number in found.machine}) == 2
    siblings = {
        number
        for number in range(8)
        if SMT.find_processor(number).core in {SMT.find_processor(own).core for own in found.machine}
    }
    assert used & siblings == set(found.machine)
    assert found.control == (0,)
    assert not set(found.emulator) & set(found.control)
    assert not found.remarks


def test_hyper_threads_of_one_core_are_taken_when_nothing_else_is_left_and_it_is_said() -> None:
    found = choose_processors(SMT, PINNED, 6)
    assert len(found.machine) == 6
    assert "some of the machine's processors are hyper-threads of one core" in found.remarks


def test_a_machine_and_its_emulator_are_on_one_node() -> None:
    found = choose_processors(NUMA, PINNED, 2)
    assert found.nodes == (1,)
    assert {NUMA.find_processor(number).node for number in (*found.machine, *found.emulator)} == {1}
    assert not {*found.machine} & {*found.emulator}
    assert found.control == (0,)
    assert choose_processors(NUMA, PINNED, 6).nodes == (0, 1)
    assert "the machine's processors are on several NUMA nodes" in choose_processors(NUMA, PINNED, 6).remarks


def test_the_big_cores_are_the_machines() -> None:
    found = choose_processors(BIG_LITTLE, PINNED, 2)
    assert found.machine == (6, 7)
    assert set(found.emulator) == {4, 5}
    assert found.control == (0,)
    assert {
        BIG_LITTLE.find_processor(number).capacity
        for number in choose_processors(BIG_LITTLE, PINNED, 4).machine
    } == {1024}
    assert "the machine's processors are not equally fast" in choose_processors(BIG_LITTLE, PINNED, 5).remarks


def test_a_restricted_mask_is_all_there_is() -> None:
    found = choose_processors(host(*cores(2, first=5)), PINNED, 1)
    assert (found.machine, found.emulator, found.control) == ((6,), (6,), (5,))
    alone = choose_processors(host(*cores(1, first=3)), PINNED, 1)
    assert (alone.machine, alone.emulator, alone.control) == ((3,), (3,), (3,))
    assert not alone.remarks


def test_a_list_is_the_virtual_processors_then_the_emulators() -> None:
    found = choose_processors(SMT, "cpus=2-4", 2)
    assert (found.machine, found.emulator) == ((2, 3), (4,))
    assert set(found.control) == {0, 1, 5, 6, 7}
    assert choose_processors(SMT, "cpus=2", 1).emulator == (2,)
    with pytest.raises(UsageError, match="may not use processor 7") as caught:
        choose_processors(TWO, "cpus=1,7", 1)
    assert caught.value.hint == "it may use 0-1"


def test_free_is_everywhere() -> None:
    found = choose_processors(NUMA, FREE, 1)
    assert found.machine == found.emulator == found.control == tuple(range(8))


def test_a_topology_is_read_from_sys(tmp_path: Path) -> None:
    for number, core in ((0, 0), (1, 1), (4, 0), (5, 1)):
        folder = tmp_path / f"cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n")
        (folder / "physical_package_id").write_text("0\n")
    (tmp_path / "cpu/cpu1/cpu_capacity").write_text("446\n")
    (tmp_path / "node/node1").mkdir(parents=True)
    (tmp_path / "node/node1/cpulist").write_text("4-5\n")
    assert affinity.read_topology({0, 1, 4}, tmp_path / "cpu") == host(
        Processor(0, (0, 0)), Processor(1, (0, 1), capacity=446), Processor(4, (0, 0), node=1)
    )


def cell(level: str | None, processors: int = 1) -> Cell:
    levels = {} if level is None else {"placement": level}
    return Cell("host", WorkloadSpec("exec"), HOST, levels, processors=processors)


@pytest.mark.skipif(len(USABLE) < 2, reason="one processor is everybody's")
def test_a_machine_and_this_process_are_put_apart_and_back() -> None:
    released = threading.Event()
    other = threading.Thread(target=released.wait)
    other.start()
    try:
        with affinity.take_seat(cell(PINNED), emulator=False) as seat:
            assert seat.placement is not None
            with affinity.mark_machine_start():
                child = subprocess.Popen(["sleep", "60"])
            try:
                assert os.sched_getaffinity(child.pid) == set(seat.placement.machine)
                assert os.sched_getaffinity(0) == set(seat.placement.control)
                assert os.sched_getaffinity(other.native_id or 0) == set(seat.placement.control)
                assert not set(seat.placement.machine) & set(seat.placement.control)
                facts = seat.attest(child.pid)
                assert facts is not None
                assert facts.machine == format_processor_list(seat.placement.machine)
                assert affinity.list_usable_processors() == set(
                    USABLE
                )  # what others may have is not what this one has now
                os.sched_setaffinity(child.pid, USABLE)
                found = format_processor_list(USABLE)
                with pytest.raises(AttestationError, match=f"asked for processor .*, found {found}"):
                    seat.attest(child.pid)
            finally:
                child.kill()
                child.wait()
        assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id or 0) == set(USABLE)
    finally:
        released.set()
        other.join()


@pytest.mark.skipif(len(USABLE) < 2, reason="one processor is everybody's")
def test_a_control_plane_that_was_moved_fails_the_trial() -> None:
    with affinity.take_seat(cell(PINNED), emulator=False) as seat:
        with affinity.mark_machine_start():
            child = subprocess.Popen(["sleep", "60"])
        os.sched_setaffinity(0, USABLE)
        try:
            with pytest.raises(AttestationError, match="the placement of the control plane"):
                seat.attest(child.pid)
        finally:
            child.kill()
            child.wait()


def test_a_machine_that_outlives_a_trial_leaves_everything_as_it_was() -> None:
    """As outer guests do, which several trials share."""
    outer = affinity.take_seat(cell("cpus=" + str(USABLE[0])), emulator=False)
    another = affinity.take_seat(cell("cpus=" + str(USABLE[-1])), emulator=False)
    outer.__enter__()
    another.__enter__()
    outer.__exit__(None, None, None)
    another.__exit__(None, None, None)
    assert sorted(os.sched_getaffinity(0)) == USABLE


def test_a_cell_from_before_there_were_placements_is_left_alone() -> None:
    with affinity.take_seat(cell(None), emulator=False) as seat:
        assert seat.placement is None
        assert sorted(os.sched_getaffinity(0)) == USABLE
        assert seat.attest(os.getpid()) is None

"""What hypervisors count, against programs that cause a known number of it, wherever and beside whatever they run."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from guestmark.engine.trial import CounterRecorder
from guestmark.platforms import counters
from guestmark.platforms.base import Machine
from guestmark.platforms.qemu.nested.platform import NestedGuest
from tests.framework import counted_programs
from tests.framework.guests import start
from tests.framework.marks import long, thorough

WITHIN = 0.02
WITHIN_NESTED = 0.01


def counted(machine: Machine, program: bytes) -> dict[str, float]:
    """How far each counter goes on while a program runs, as trials count it."""
    machine.agent.write_file("/run/counted", program, mode=0o755)
    counting = CounterRecorder(machine, apart=isinstance(machine, NestedGuest))
    counting.begin()
    assert machine.agent.exec(["/run/counted"], timeout_s=120).ok
    counting.end()
    counting.measure_ticks()
    return counting.compute_averages()


def caused(machine: Machine, counter: str, program: Callable[[int], bytes], times: int) -> float:
    """How many more are counted for a program that does it so often than for the same one that does not.

    A run of the same size comes first: it reads what the others find in memory, and has the kernel's code translated
    that brings a program of that size there, of which a busy host's guest needs more.
    """
    counted(machine, program(times))
    return counted(machine, program(times))[counter] - counted(machine, program(0))[counter]


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """A loop for each processor."""
    with contextlib.ExitStack() as stack:
        for _ in os.sched_getaffinity(0):
            loop = stack.enter_context(subprocess.Popen(["sh", "-c", "while :; do :; done"]))
            stack.callback(loop.kill)
        yield


@pytest.mark.parametrize("beside", [contextlib.nullcontext, busy_processors], ids=["alone", "beside loops"])
@pytest.mark.parametrize("factors", [{}, {"placement": "pinned"}], ids=["bare", "pinned"])
def test_stops_are_the_system_calls(
    beside: Callable[[], contextlib.AbstractContextManager[None]], factors: dict[str, str]
) -> None:
    with beside(), start("uml", memory="256M", **factors) as guest:
        stops = caused(guest, "uml_stops", counted_programs.system_calls, 20_000)
    assert stops == pytest.approx(20_000, rel=WITHIN)


# One guest each for both cases: it takes longer to start than to be counted in.
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("platform", "counter", "program", "times"),
    [
        thorough("tcg/uml", "uml_stops", counted_programs.system_calls, 20_000, name="stops"),
        pytest.param("tcg/kvm", "kvm_exits", counted_programs.identifications, 100_000, id="exits"),
    ],
)
def test_counts_inside_another_guest_are_those_of_the_program(
    platform: str, counter: str, program: Callable[[int], bytes], times: int
) -> None:
    with start(platform, memory="256M") as guest:
        alone = caused(guest, counter, program, times)
        with busy_processors():
            beside_loops = caused(guest, counter, program, times)
    assert alone == pytest.approx(times, rel=WITHIN_NESTED)
    assert beside_loops == pytest.approx(times, rel=WITHIN_NESTED)


@pytest.mark.parametrize(
    "beside",
    [contextlib.nullcontext, long(busy_processors)],
    ids=["alone", "beside loops"],
)
def test_blocks_and_flushes_are_those_of_the_program(
    beside: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    with beside(), start("tcg", memory="256M", placement="pinned") as guest:
        blocks = caused(guest, "tcg_blocks", counted_programs.jumps, 50_000)
        flushes = caused(guest, "tcg_tlb_flushes", counted_programs.protections, 5000) / 5000
    assert blocks == pytest.approx(50_000, rel=WITHIN)
    assert flushes >= 1 - WITHIN
    assert flushes == pytest.approx(round(flushes), rel=WITHIN)  # one for each mode whose TLB held something


def test_a_count_that_began_again_is_left_out() -> None:
    advanced = {"tcg_blocks": -4000.0, "tcg_code_bytes": -1e6, "tcg_flushes": 1.0, "tcg_tlb_flushes": 7.0}
    assert counters.drop_restarted(advanced) == {"tcg_flushes": 1.0, "tcg_tlb_flushes": 7.0}
    assert counters.drop_restarted({"tcg_blocks": 5.0, "tcg_flushes": 0.0}) == {
        "tcg_blocks": 5.0,
        "tcg_flushes": 0.0,
    }

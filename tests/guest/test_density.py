"""Fleets of real machines: a known footprint has a known slope, a known lock a known ceiling, and nothing is left."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric import Metric
from guestmark.setting.memory import HugePages
from guestmark.stats.scalability import fit_law
from guestmark.workloads import density
from guestmark.workloads.base import find_trial_class
from guestmark.workloads.density import Fleet
from guestmark.workloads.density.trial import DensityTrial
from tests.framework.cells import cell_of, plan_of
from tests.framework.guests import prepared
from tests.framework.marks import long

_MIB = 1 << 20


def fleet(platform: str, guests: int, **params: Any) -> tuple[dict[Metric, float], Fleet]:
    given = {"idle": "200ms", "time": "200ms", "command": ["true"], **params}
    trial = cell_of(platform, "density", {"guests": str(guests), **_memory(platform)}, **given)
    with prepared(trial) as (machine, workload):
        measured = {each.metric: each.value for each in workload.run(machine)}
        found = workload.facts.facts().find_fact(Fleet)
    assert found is not None
    return measured, found


def _memory(platform: str) -> dict[str, str]:
    return {} if platform == "host" else {"memory": "256M"}


@pytest.mark.parametrize("platform", ["bwrap", *(long(name) for name in ("host", "crun"))])
def test_a_known_footprint_has_a_known_slope(platform: str) -> None:
    small, large = (fleet(platform, 4, touch=touch)[0] for touch in ("8M", "72M"))
    for metric in (density.MEMORY, density.PSS, density.RSS):
        assert large[metric] - small[metric] == pytest.approx(64 * _MIB, rel=0.06), metric.name


def test_a_sandboxes_memory_is_its_control_groups() -> None:
    _, found = fleet("bwrap", 2)
    assert [each.machines for each in found.held] == [1, 2]
    if os.geteuid() == 0:
        assert all(each.groups is not None for each in found.held)


@pytest.mark.long
def test_a_guest_that_touches_memory_makes_its_hypervisor_larger() -> None:
    measured, _ = fleet("tcg", 2, touch="32M")
    assert measured[density.PSS] > 32 * _MIB
    assert 0 <= measured[density.IDLE] < 1.5


@pytest.fixture
def set_aside() -> Iterator[int]:
    """Huge pages for two guests of 256 MiB, which this host then lacks elsewhere; given back at the end."""
    number = HugePages.MEDIUM.folder / "nr_hugepages"
    if not number.exists() or not os.access(number, os.W_OK):
        pytest.skip("only root sets huge pages aside, where the kernel has them")
    before, wanted = number.read_text(), 2 * 128
    try:
        number.write_text(str(int(before) + wanted))
        if (HugePages.MEDIUM.count_free() or 0) < wanted:
            pytest.skip("this host has no room for 256 huge pages")
        yield wanted
    finally:
        number.write_text(before)


@pytest.mark.long
def test_huge_pages_that_were_set_aside_are_counted(set_aside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever other tests take meanwhile of what the host has left.
    monkeypatch.setattr("guestmark.workloads.density.trial.read_meminfo", lambda: {"MemAvailable": 1 << 40})
    huge = cell_of("tcg", "density", {"guests": "2", "memory": "256M", "hugepages": "2M"}, command=["true"])
    with prepared(huge) as (machine, workload):
        measured = {each.metric: each.value for each in workload.run(machine)}
        assert (HugePages.MEDIUM.count_free() or 0) < set_aside
    for metric in (density.MEMORY, density.PSS, density.RSS, density.AVAILABLE):
        assert measured[metric] > 64 * _MIB, metric.name
    many = cell_of("tcg", "density", {"guests": "4", "memory": "256M", "hugepages": "2M"})
    with pytest.raises(UsageError, match="4 machines need 512 pages of 2M, but this host has 256 free"):
        find_trial_class("density").check_request(plan_of(many), [many])


@pytest.mark.long
def test_a_program_that_slows_down_by_the_law_has_the_knee_that_it_was_given(tmp_path: Path) -> None:
    # Each run sleeps as long as the law says for the number of those who run now.
    slow = 'BEGIN { printf "%.3f", 0.1 * (1 + 0.05 * (n - 1) + 0.05 * n * (n - 1)) }'
    work = [
        "sh", "-c",
        f"cd {tmp_path}; : >$$; set -- *; sleep $(awk -v n=$# '{slow}' </dev/null); rm $$",
    ]  # fmt: skip
    _, found = fleet("host", 8, command=work, time="2s", touch="1M")
    assert [number for number, _ in found.grown] == [2, 4]
    points = [(1.0, found.solo), *((float(n), rate) for n, rate in found.grown), (8.0, sum(found.rates))]
    fitted = fit_law(points)
    assert fitted.error < 0.25, (fitted, points)
    # At 4.36 by the law; starting the programs costs time as well, so more than the tried numbers nobody can say.
    assert 2 < fitted.knee < 8, (fitted, points)


@pytest.mark.long
def test_a_program_that_holds_a_lock_all_the_time_gains_nothing(tmp_path: Path) -> None:
    measured, found = fleet("host", 4, command=["flock", f"{tmp_path}/lock", "sleep", "0.2"], time="2s")
    assert sum(found.rates) < 1.3 * found.solo
    assert measured[density.KEPT] < 0.35


def test_an_idle_machine_that_is_not_idle_is_seen() -> None:
    trial = cell_of("host", "density", {"guests": "2"}, idle="500ms", time="100ms", command=["true"])
    with prepared(trial) as (machine, workload):
        assert isinstance(workload, DensityTrial)
        busy = machine.agent.background(["sh", "-c", "while :; do :; done"])
        try:
            measured = {each.metric: each.value for each in workload.run(machine)}
        finally:
            busy.send_signal(9)
            busy.wait(10)
    assert (
        measured[density.IDLE] > 0.05
    )  # half of a processor or less, where others are busy, over two machines


def test_more_machines_than_fit_are_refused_before_one_is_started() -> None:
    many = cell_of("tcg", "density", {"guests": "500", "memory": "1G"})
    with pytest.raises(UsageError, match=r"500 machines of 1G do not fit: tcg has room for \d+ in the"):
        find_trial_class("density").check_request(plan_of(many), [many])


def test_a_program_that_is_killed_says_by_what() -> None:
    with pytest.raises(WorkloadError, match="sh was killed by signal 9"):
        fleet("host", 2, command=["sh", "-c", "kill -9 $$"])


def test_a_program_that_fails_says_so() -> None:
    with pytest.raises(WorkloadError, match="sh failed with 3: no"):
        fleet("host", 2, command=["sh", "-c", "echo no >&2; exit 3"])

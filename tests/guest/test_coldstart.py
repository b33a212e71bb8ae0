"""Starts of real machines: each phase has what belongs to it, and liars are found."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guestmark.core.errors import MachineError, UsageError
from guestmark.core.model import Cell
from guestmark.core.platform_spec import parse_platform
from guestmark.platforms import registry
from guestmark.platforms.base import Platform
from guestmark.platforms.host_like import HostPlatform
from guestmark.workloads.base import find_trial_class
from guestmark.workloads.coldstart import OneStart, Starts
from guestmark.workloads.common.starting import StartedMachine
from tests.framework.cells import cell, cell_of, plan_of
from tests.framework.guests import prepared
from tests.framework.marks import long

SLEEP_S = 0.6


def starts(platform: str, factors: dict[str, str] | None = None, **params: Any) -> list[OneStart]:
    given = {"starts": 4, "time": "20s", "touch": "4M", **params}
    with prepared(cell_of(platform, "coldstart", factors, **given)) as (machine, workload):
        workload.run(machine)
        found = workload.facts.facts().find_fact(Starts)
    assert found is not None
    return found.starts


@pytest.mark.parametrize("platform", ["host", "bwrap", "crun"])
def test_every_start_has_every_phase(platform: str) -> None:
    found = starts(platform)
    assert len(found) == 4
    for each in found:
        assert min(each.prepare, each.answer, each.touch, each.end) > 0
        assert each.create >= 0
        assert each.start_s < 5


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_guest_takes_most_of_its_start_between_hypervisor_and_answer(platform: str) -> None:
    [each] = starts(platform, starts=1)
    assert each.create + each.answer > each.prepare + each.touch


@pytest.mark.long
def test_a_restored_guest_starts_sooner_than_a_cold_one() -> None:
    cold, restored = (starts("tcg", {"start": start}, starts=1)[0] for start in ("cold", "restored"))
    assert restored.create + restored.answer < (cold.create + cold.answer) / 2


def test_a_burst_is_decided_at_one_moment() -> None:
    found = starts("bwrap", {"pattern": "burst-4"})
    assert len(found) == 4


def test_staggered_starts_are_all_kept() -> None:
    assert len(starts("host", {"pattern": "every-20ms"}, starts=6)) == 6


@pytest.mark.parametrize("launch", ["fork", "resumed"])
def test_what_is_not_made_anew_is_quicker(launch: str) -> None:
    """Of the touch, which both have, a busy machine makes what it likes, and of a few starts too: the best of many."""
    least = {"new": math.inf, launch: math.inf}
    for kind in [*least] * 3:
        found = starts("host", launch=kind, starts=20)
        least[kind] = min(least[kind], *(each.create + each.answer for each in found))
    assert least[launch] < least["new"]


@pytest.mark.long
def test_a_resumed_guest_has_its_memory_already() -> None:
    [new], [resumed] = (
        starts("tcg", starts=1, touch="32M"),
        starts("tcg", starts=1, touch="32M", launch="resumed"),
    )
    assert resumed.touch < new.touch
    assert resumed.start_s < new.start_s / 5


@pytest.mark.skipif(not os.access("/proc/sys/vm/drop_caches", os.W_OK), reason="needs root")
def test_starts_from_a_dropped_cache_are_measured() -> None:
    assert len(starts("bwrap", {"page_cache": "dropped"}, starts=2)) == 2


# --- what a phase is made of ------------------------------------------------------------------------------------


@dataclass
class Slowed(HostPlatform):
    """A process on this host whose start is slowed in one place."""

    where: str
    name: str = "host"
    calls: list[str] = field(default_factory=list)

    def _sleep(self, where: str) -> None:
        if where == self.where:
            time.sleep(SLEEP_S)

    @contextlib.contextmanager
    def start(self, cell: Cell) -> Iterator[Any]:
        self._sleep("prepare")
        with super().start(cell) as machine:
            self._slow(machine.agent, "ping", "answer")
            self._slow(machine.agent, "touch_memory", "touch")
            yield machine
            self._sleep("end")

    def _slow(self, agent: Any, name: str, where: str) -> None:
        plain: Callable[..., Any] = getattr(agent, name)

        def slowed(*arguments: Any, **named: Any) -> Any:
            self._sleep(where)
            return plain(*arguments, **named)

        setattr(agent, name, slowed)


def of_one(platform: Platform) -> dict[str, float]:
    started = StartedMachine.start(platform, cell(platform.name))
    started.touch_memory(1 << 20, 10)
    moments = started.compute_moments()
    ordered, gone = started.end_machine()
    return {
        "prepare": moments.exists,
        "create": moments.program - moments.exists,
        "answer": moments.answered - moments.program,
        "touch": moments.touched - moments.answered,
        "end": gone - ordered,
    }


def only(found: dict[str, float], where: str) -> None:
    assert found[where] >= SLEEP_S, found
    assert all(seconds < SLEEP_S / 2 for phase, seconds in found.items() if phase != where), found


@pytest.mark.parametrize("where", ["prepare", "answer", "touch", "end"])
def test_a_sleep_is_in_its_phase_and_in_no_other(where: str) -> None:
    only(of_one(Slowed(where)), where)


@pytest.mark.parametrize(
    ("where", "script"),
    [
        ("create", '[ "$1" = --version ] || sleep {s}; exec {real} "$@"'),
        ("end", '[ "$1" = --version ] && exec {real} --version; {real} "$@"; sleep {s}'),
    ],
)
def test_a_slow_runtime_of_a_sandbox_is_in_its_phase(
    where: str, script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    real = shutil.which("crun")
    assert real is not None
    (tmp_path / "crun").write_text(f"#!/bin/sh\n{script.format(s=SLEEP_S, real=real)}\n")
    (tmp_path / "crun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    only(of_one(registry.get_platform(parse_platform("crun"))), where)


# --- liars ------------------------------------------------------------------------------------------------------


def test_a_machine_that_says_that_it_began_late_is_found() -> None:
    class Late(HostPlatform):
        @contextlib.contextmanager
        def start(self, cell: Cell) -> Iterator[Any]:
            with super().start(cell) as machine:
                time.sleep(0.1)
                machine.started_at = time.monotonic()
                yield machine

    with pytest.raises(MachineError, match="first instruction ran -"):
        of_one(Late())


def test_a_machine_that_says_that_it_began_before_it_was_wanted_is_found() -> None:
    class Early(HostPlatform):
        @contextlib.contextmanager
        def start(self, cell: Cell) -> Iterator[Any]:
            with super().start(cell) as machine:
                machine.started_at -= 100
                yield machine

    with pytest.raises(MachineError, match="older than the decision to start it"):
        of_one(Early())


def test_what_a_runtime_leaves_behind_is_found(tmp_path: Path) -> None:
    class Leaking(HostPlatform):
        @contextlib.contextmanager
        def start(self, cell: Cell) -> Iterator[Any]:
            with super().start(cell) as machine:
                group = tmp_path / "group"
                group.mkdir()
                (group / "held").touch()
                machine.within = type(machine.within)(groups=(group,))
                yield machine

    with pytest.raises(MachineError, match=r"left .*group behind"):
        of_one(Leaking())


def test_more_machines_than_fit_are_refused_in_one_line() -> None:
    many = cell_of("bwrap", "coldstart", {"pattern": "burst-256", "memory": "1G"})
    with pytest.raises(UsageError, match=r"256 machines of 1G do not fit: bwrap has room for \d+ in the"):
        find_trial_class("coldstart").check_request(plan_of(many), [many])


def test_a_working_set_that_its_machine_cannot_hold_is_refused() -> None:
    small = cell_of("tcg", "coldstart", {"memory": "256M"}, touch="200M")
    with pytest.raises(UsageError, match="a machine with 256M of memory cannot touch 200M"):
        find_trial_class("coldstart").check_request(plan_of(small), [small])

"""Whichever part of a machine is killed, all of it ends: the supervisor used to leave User-Mode Linux's processes."""

import os

import pytest

from tests.adversary.kills import BLOWS, MACHINES, Blow, Machine, left_after

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="another user's hypervisors have no cage")


@pytest.mark.parametrize("blow", [BLOWS[0], Blow(("guestmark",), hung=("the supervisor",))], ids=str)
def test_nothing_is_left_of_user_mode_linux(blow: Blow) -> None:
    assert left_after(Machine("uml"), blow) == []


@pytest.mark.long
@pytest.mark.parametrize("blow", BLOWS[1:], ids=str)
def test_nothing_is_left_of_either_guest(blow: Blow) -> None:
    assert [left_after(Machine(platform), blow) for platform in ("uml", "tcg")] == [[], []]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name, machine in MACHINES.items() if machine.settings])
def test_nothing_is_left_of_guests_with_helpers(name: str) -> None:
    machine = MACHINES[name]
    assert {str(blow): left for blow in machine.blows if (left := left_after(machine, blow))} == {}

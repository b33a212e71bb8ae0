"""Whichever part of a machine is killed, all of it ends: the supervisor used to leave User-Mode Linux's processes."""

import os

import pytest

from tests.adversary.kills import BLOWS, MACHINES, NOBODY, Blow, Machine, left_after

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="another user's hypervisors have no cage")


@pytest.mark.parametrize("blow", [BLOWS[0], Blow(("guestmark",), hung=("the supervisor",))], ids=str)
def test_nothing_is_left_of_user_mode_linux(blow: Blow) -> None:
    assert left_after(Machine("uml"), blow) == []


@pytest.mark.parametrize(
    "killed",
    [
        ("the supervisor", "the cage's outer process"),
        ("guestmark", "the supervisor", "the cage's outer process"),
        ("guestmark", "the keeper", "the keeper's second process"),
    ],
)
def test_nothing_is_left_of_another_users_machine(killed: tuple[str, ...]) -> None:
    """Without namespaces: User-Mode Linux's helpers stayed, and guestmark waited for them."""
    assert left_after(Machine("uml", user=NOBODY), Blow(killed)) == []


def test_nothing_is_left_when_nobody_of_the_keeper_is() -> None:
    assert left_after(Machine("uml"), Blow(("guestmark", "the keeper", "the keeper's second process"))) == []


@pytest.mark.long
@pytest.mark.parametrize("blow", BLOWS[1:], ids=str)
def test_nothing_is_left_of_either_guest(blow: Blow) -> None:
    assert [left_after(Machine(platform), blow) for platform in ("uml", "tcg")] == [[], []]


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [name for name, machine in MACHINES.items() if machine.settings or machine.user]
)
def test_nothing_is_left_of_guests_with_helpers_or_of_other_users(name: str) -> None:
    machine = MACHINES[name]
    assert {str(blow): left for blow in machine.blows if (left := left_after(machine, blow))} == {}

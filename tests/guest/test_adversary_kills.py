"""Whichever part of a machine is killed, all of it ends: the supervisor used to leave User-Mode Linux's processes.

How soon it does is measured on a machine that does nothing else: `python -m tests.adversary`, whose table has every
blow on every machine. Here each blow falls on one of them, and on both where the hypervisor itself is hit.
"""

import os

import pytest

from tests.adversary.kills import BLOWS, MACHINES, NOBODY, Blow, Machine
from tests.adversary.kills import left_after as left_within

SLACK_S = 20.0


def left_after(machine: Machine, blow: Blow) -> list[str]:
    """What is left when everybody had time enough."""
    return left_within(machine, blow, slack_s=SLACK_S)


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


def platforms_for(number: int, blow: Blow) -> tuple[str, ...]:
    """The guests that a blow is tried on."""
    if "the hypervisor" in (*blow.killed, *blow.stopped, *blow.hung):
        return ("uml", "tcg")
    return (("uml", "tcg")[number % 2],)


@pytest.mark.long
@pytest.mark.parametrize(
    ("platform", "blow"),
    [(platform, blow) for number, blow in enumerate(BLOWS[1:]) for platform in platforms_for(number, blow)],
    ids=str,
)
def test_nothing_is_left_of_either_guest(platform: str, blow: Blow) -> None:
    assert left_after(Machine(platform), blow) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["`uml` of another user", "`uml`, a storage daemon", "`tcg`, virtiofsd"])
def test_nothing_is_left_of_guests_with_helpers_or_of_other_users(name: str) -> None:
    machine = MACHINES[name]
    # Every other blow: those on what has no helper and no other user fall above.
    tried = machine.blows[::2] if machine.user else machine.blows
    assert {str(blow): left for blow in tried if (left := left_after(machine, blow))} == {}

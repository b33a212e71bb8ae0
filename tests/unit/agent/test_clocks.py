"""A duration on the machine's clock, brought to the host's, whatever the speed of the machine's clock."""

import pytest

from guestmark.agent.clocks import Ping, convert_to_host_clock

MS = 1_000_000


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.001, 12.6])
def test_the_speed_of_the_machines_clock_does_not_matter(speed: float) -> None:
    def guest(host_ms: float) -> int:
        return int(7_000 + host_ms * MS * speed)

    before = Ping(0, guest(0.2), int(0.4 * MS))
    after = Ping(180 * MS, guest(180.2), int(180.4 * MS))
    wall = convert_to_host_clock((guest(10), guest(170)), (before, after), (9 * MS, 171 * MS))
    assert wall.seconds == pytest.approx(0.160, abs=1e-6)
    assert wall.error_s == pytest.approx(0.0004)
    assert not wall.warning


def test_a_clock_that_jumped_is_cut_to_what_is_possible_and_said() -> None:
    before, after = Ping(0, 0, 1000), Ping(30 * MS, 30 * MS, 30 * MS + 1000)
    wall = convert_to_host_clock((5 * MS, 9_000 * MS), (before, after), (4 * MS, 20 * MS))
    assert wall.seconds <= 0.016
    assert "does not fit" in wall.warning

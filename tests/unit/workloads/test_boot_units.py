"""Units of systemd, as `systemctl show` prints them."""

from guestmark.workloads.boot import select_slowest_units


def test_the_slowest_units_come_first_and_what_never_started_is_left_out() -> None:
    shown = "\n\n".join(
        [
            "Id=slow.service\nInactiveExitTimestampMonotonic=1000000\nActiveEnterTimestampMonotonic=3500000",
            "ActiveEnterTimestampMonotonic=1200000\nId=quick.service\nInactiveExitTimestampMonotonic=1000000",
            "Id=never.service\nInactiveExitTimestampMonotonic=0\nActiveEnterTimestampMonotonic=0",
            "Id=failed.service\nInactiveExitTimestampMonotonic=5\nActiveEnterTimestampMonotonic=0",
            "Id=again.service\nInactiveExitTimestampMonotonic=9\nActiveEnterTimestampMonotonic=7",
            "Id=odd.service\nInactiveExitTimestampMonotonic=x\nActiveEnterTimestampMonotonic=",
            "",
        ]
    )
    found = select_slowest_units(shown, 12.5)
    assert [(unit.name, unit.seconds) for unit in found.slowest] == [
        ("slow.service", 2.5),
        ("quick.service", 0.2),
    ]
    assert (found.count, found.settled_s) == (2, 12.5)

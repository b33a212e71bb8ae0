"""The unit of a table of starts, of which some take microseconds and most some tenths of a second."""

import pytest

from guestmark.workloads.coldstart.sections import choose_unit


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        ([20e-6, 0.2, 0.21, 0.4], "ms"),
        ([20e-6, 25e-6, 30e-6], "µs"),
        ([20e-6, 1.5, 2.0, 3.0], "s"),
        ([0.0002, 0.003, 0.2], "ms"),
        ([], "s"),
    ],
)
def test_most_starts_decide_the_unit(seconds: list[float], name: str) -> None:
    assert choose_unit(seconds).name == name

"""Numbers for people: digits, units, alignment."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.metric import Metric
from guestmark.page.figures import (
    Unit,
    align_points,
    choose_unit,
    count_decimals,
    draw_bar,
    format_column_heading,
    format_estimate,
    format_estimate_pieces,
    format_number,
    format_percent,
    format_ratio,
)


@pytest.mark.parametrize(
    ("half_width", "expected"),
    [
        (0.0321, 3),
        (0.0354, 3),
        (0.0356, 2),
        (0.0949, 2),
        (0.098, 2),
        (0.1, 2),
        (1.2, 1),
        (4.0, 0),
        (355, 0),
        (1e-12, 9),
    ],
)
def test_decimals_follow_the_interval(half_width: float, expected: int) -> None:
    assert count_decimals(half_width, 1.0) == expected


def test_decimals_without_an_interval() -> None:
    assert [count_decimals(None, value) for value in (1.2345, 12.345, 1234.5, 0.0012345, 0.0)] == [
        2,
        1,
        0,
        5,
        1,
    ]


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_what_is_shown_is_within_a_third_of_the_interval(mean: float, half: float) -> None:
    shown = float(format_number(mean, count_decimals(half, mean)).replace("\u202f", "").replace(" ", ""))
    assert abs(shown - mean) <= 0.5 * half


@pytest.mark.parametrize(
    ("unit", "values", "expected"),
    [
        ("s", [1.5, 30.0], "s"),
        ("s", [0.5, 30.0], "ms"),
        ("s", [0.9999], "s"),
        ("s", [2e-5], "µs"),
        ("s", [1e-7, 100.0], "ms"),
        ("s", [4.7e-4, 8.6], "ms"),
        ("s", [0.0], "s"),
        ("s", [], "s"),
        ("B", [12e6], "MB"),
        ("B/s", [2.5e9, 1e9], "GB/s"),
        ("events/s", [1e9], "events/s"),
    ],
)
def test_units_fit(unit: str, values: list[float], expected: str) -> None:
    assert choose_unit(unit, values).name == expected


def test_figures_as_shown() -> None:
    seconds = choose_unit("s", [0.5])
    assert format_estimate(0.51234, (0.5, 0.52468), seconds) == ("512", "12")
    assert format_estimate(0.51234, None, seconds) == ("512", "")
    assert format_estimate(12e6, (12e6, 12e6), choose_unit("B", [12e6])) == ("12.0", "")
    assert format_ratio(1.2345, (1.1945, 1.2745)) == "×1.23 [1.19, 1.27]"
    assert format_ratio(31.1, (30.4, 31.8)) == "×31.1 [30.4, 31.8]"
    assert format_ratio(1.0, (1.0, 1.0)) == "×1.00 [1.00, 1.00]"
    assert format_number(1234567.0, 0) == "1 234 567"
    assert format_number(-0.0001, 2) == "0.00"
    assert [format_percent(share) for share in (0, 0.0049, 0.0123, 0.5)] == ["0 %", "0.49 %", "1.2 %", "50 %"]
    assert format_column_heading(Metric("wall_s", "s"), seconds) == "wall, ms"
    assert (
        format_column_heading(Metric("speed", "events/s"), choose_unit("events/s", [])) == "speed, events/s"
    )
    assert format_column_heading(Metric("answer", ""), choose_unit("", [])) == "answer"


def test_points_stand_under_each_other() -> None:
    assert align_points(["1.25", "10", "", "100.5"]) == ["  1.25", " 10   ", "      ", "100.5 "]


def test_bars() -> None:
    assert draw_bar(10, 10, 8) == "█" * 8
    assert draw_bar(5, 10, 8) == "█" * 4
    assert draw_bar(1e-9, 10, 8) == "▏"
    assert draw_bar(0, 10, 8) == ""
    assert draw_bar(float("nan"), 10, 8) == ""


def test_a_mean_has_its_ends_where_they_are_not_symmetric() -> None:
    nanoseconds = Unit(1.0, "ns")
    assert format_estimate_pieces(1.24, (1.2, 1.28), nanoseconds) == ("1.24", "±", "0.04")
    assert format_estimate_pieces(13156.0, (2166.0, 79_900.0), nanoseconds) == ("13 000", "[2200, 80 000]")
    assert format_estimate_pieces(38.0, None, nanoseconds) == ("38.0",)


def test_a_ratio_is_never_zero() -> None:
    assert format_ratio(2.0, (1.002, 4.1)) == "×2.0 [1.002, 4.1]"
    assert format_ratio(1.2, (0.9996, 1.45)) == "×1.20 [0.9996, 1.45]"
    assert format_ratio(1.001, (1.00001, 1.002)) == "×1.0010 [1.0000, 1.0020]"
    assert format_ratio(0.267, (0.0058, 2.1)) == "×0.3 [<0.03, 2.1]"
    assert format_ratio(0.6, (0.2, 15.0)) == "×0.6 [0.2, >6]"
    assert format_ratio(0.0031, (0.0004, 0.02)) == "×0.003 [0.0004, 0.020]"
    assert format_ratio(2.0, (0.0, 19.0)) == "×2 [0, 19]"


def test_limits_that_are_known_to_no_power_of_ten_have_no_digits() -> None:
    assert format_ratio(4.1, (0.00001, 2_581_993.0)) == "×4 [<0.4, >40]"
    assert format_ratio(4.1, (0.00001, 38.0)) == "×4 [<0.4, 38]"
    assert format_ratio(2.4, (0.06, 97.0)) == "×2 [<0.2, >20]"
    assert format_ratio(2.0, (0.0, math.inf)) == "×2.00 [0.00, inf]"

"""Durations, sizes, percentages and numbers: every usual spelling, and a refusal for the rest."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("1.5m", 90),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (" 2 min ", 120),
        ("1d", 86400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "m", "10x", "-5s", "1h30", "1e3s", "5 s s", "9" * 400])
def test_bad_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        units.parse_duration(text)


@pytest.mark.parametrize(
    ("text", "share"), [("2%", 0.02), ("0.02", 0.02), (" 0.5 % ", 0.005), ("1e-3", 0.001)]
)
def test_fractions(text: str, share: float) -> None:
    assert units.parse_fraction(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["2", "0", "0%", "100%", "-1%", "x", "%", "nan", "inf%"])
def test_bad_fractions(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        units.parse_fraction(text)


def test_a_bare_two_asks_whether_percent_is_meant() -> None:
    with pytest.raises(ValueError, match="did you mean 2%"):
        units.parse_fraction("2")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 2**29),
        ("512MiB", 2**29),
        ("512 mb", 2**29),
        ("1g", 2**30),
        ("0.5G", 2**29),
        ("4096", 4096),
        ("1KiB", 1024),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "0", "-1M", "1.0001K", "1iB", "12Q", "1e3", "١M"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        units.parse_size(text)


@given(st.integers(min_value=1, max_value=2**60))
def test_a_formatted_size_reads_back(size: int) -> None:
    assert units.parse_size(units.format_size(size)) == size


@pytest.mark.parametrize(
    ("text", "number"),
    [("12", 12), ("-0.5", -0.5), ("1e3", 1000), ("1,234.5", 1234.5), ("1,234,567", 1234567), (" .5 ", 0.5)],
)
def test_numbers(text: str, number: float) -> None:
    assert units.parse_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "1,5", "12,34", "1.234,5", "nan", "inf", "1_000", "0x10", "1e999", "٣", "1 2"]
)
def test_bad_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        units.parse_number(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_reads_back(value: float) -> None:
    assert units.parse_number(repr(value)) == value


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_thousands_separators_do_not_change_the_number(value: int) -> None:
    assert units.parse_number(f"{value:,}") == value


@given(st.text())
def test_parsers_only_ever_raise_value_error(text: str) -> None:
    for parse in (units.parse_duration, units.parse_fraction, units.parse_size, units.parse_number):
        try:
            value = parse(text)
        except ValueError as error:
            message = str(error)
        else:
            message = ""
            assert math.isfinite(value)
        assert "\n" not in message  # one line, whatever the text was


@given(st.floats(min_value=0, max_value=1e7))
def test_a_duration_is_shown_with_its_unit(seconds: float) -> None:
    shown = units.format_duration(seconds)
    assert shown.split()[-1] in {"s", "min", "h"}
    assert seconds < 100 or " 0 " not in shown


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["uml", "tcg", "uml"], "uml, tcg"),
        (["primes, tcg", "dd, a byte at a time, tcg"], "primes, tcg · dd, a byte at a time, tcg"),
        ([], ""),
    ],
)
def test_names_that_hold_commas_are_told_apart(names: list[str], shown: str) -> None:
    assert units.join_names(names) == shown


@pytest.mark.parametrize("length", [1, 30, 49, 60, 200])
@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_names_in_a_remark_take_two_lines(length: int, count: int) -> None:
    names = [f"{number:0{length}}" for number in range(count)]
    text = units.list_first_names(names, "cell")
    shown = [name for name in names if re.search(rf"\b{name}\b", text)]
    assert names[0] in text
    assert len(text) <= max(length, 100) + len(" and 49 more cells")
    if len(shown) < count:
        assert text.endswith(f" and {count - len(shown)} more cell{'s' * (count - len(shown) > 1)}")

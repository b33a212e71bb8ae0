"""`--scale`: sizes, durations and counts, in every spelling they come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.context import Caller
from guestmark.core.errors import UsageError
from guestmark.core.model import Plan
from guestmark.core.units import format_size, parse_duration, parse_size
from guestmark.engine.budget import SCALES, choose_scale
from guestmark.plan.library import find_plan, list_plan_names
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.plan.scale import parse_scale, scale_table, scale_value


@pytest.mark.parametrize(
    ("value", "factor", "result"),
    [
        (3000, 0.05, 150),
        (3, 0.05, 1),
        (0.5, 0.5, 0.25),
        ("300", 0.1, "30"),
        ("1500M", 0.05, "75M"),
        ("1.5G", 0.5, "768M"),
        ("1500MiB", 0.001, "2M"),
        ("1500M", 1e-6, "1M"),
        ("64K", 0.5, "32K"),
        ("64K", 0.001, "4K"),
        ("30s", 0.1, "3s"),
        ("5min", 0.5, "150s"),
        ("1h30min", 2, "10800s"),
        ("500ms", 0.5, "0.25s"),
        (["1G", "2G"], 2, ["2G", "4G"]),
    ],
)
def test_scaled(value: object, factor: float, result: object) -> None:
    assert scale_value(value, factor) == result


@pytest.mark.parametrize("value", ["ext4", "10m", True, {}, None, "", "1X"])
def test_what_cannot_be_scaled_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"scaled|minutes or MiB"):
        scale_value(value, 0.5)


@given(st.integers(1, 1 << 45), st.floats(1e-4, 1e3))
def test_sizes_stay_whole_blocks(size: int, factor: float) -> None:
    before = size * 4096
    after = parse_size(scale_value(format_size(before), factor))
    unit = 1 << 20 if before % (1 << 20) == 0 else 4096
    assert after % unit == 0
    assert after >= unit
    assert abs(after - before * factor) <= unit


@given(st.integers(1, 100_000), st.floats(1e-2, 1e3))
def test_durations_are_multiplied(seconds: int, factor: float) -> None:
    assert parse_duration(scale_value(f"{seconds}s", factor)) == pytest.approx(seconds * factor, rel=1e-5)


@given(st.integers(1, 10_000), st.floats(1e-6, 1.0))
def test_durations_stay_measurable(milliseconds: int, factor: float) -> None:
    """Whatever a workload's shortest time is, a plan that was within it stays so down to 10 ms."""
    after = parse_duration(scale_value(f"{milliseconds}ms", factor))
    assert after == pytest.approx(max(milliseconds * factor / 1000, min(milliseconds, 10) / 1000), rel=1e-5)


@pytest.mark.parametrize("name", list_plan_names())
def test_a_built_in_plan_has_every_scale_that_a_budget_may_choose(name: str) -> None:
    text, where = find_plan(name)
    for scale in SCALES:
        assert load_outline(text, where, scale=scale).metrics


def test_only_names_that_are_there() -> None:
    table = {"a": 4, "b": {"c": "8M", "d": 1}, "e": 1}
    assert scale_table(table, ["a", "b.c", "z", "e.f"], 0.5) == {"a": 2, "b": {"c": "4M", "d": 1}, "e": 1}
    assert table["b"] == {"c": "8M", "d": 1}


@pytest.mark.parametrize(("text", "value"), [("0.05", 0.05), ("5%", 0.05), ("2", 2.0), (" 50 % ", 0.5)])
def test_parse_scale(text: str, value: float) -> None:
    assert parse_scale(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e3", "half", "0%", "9999999"])
def test_parse_scale_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a factor|must be above"):
        parse_scale(text)


@given(st.integers(1, 60), st.integers(1, 5000), st.sampled_from(SCALES))
def test_of_a_product_the_count_shrinks_first(count: int, mib: int, factor: float) -> None:
    scaled = scale_table({"files": count, "size": f"{mib}M"}, ["files*size"], factor)
    files, size = scaled["files"], parse_size(scaled["size"]) / 2**20
    assert 1 <= files <= count
    assert size <= mib
    # Whole MiB of each file, at least one.
    assert files * size == pytest.approx(count * mib * factor, abs=files)
    # With one file fewer, the others would be larger than they were.
    assert files == 1 or (files - 1) * mib < count * mib * factor


def test_files_of_the_full_size_remain_as_long_as_there_are_any() -> None:
    whole = {"files": 5, "size": "100M", "port": 0}
    sizes = {}
    for scale in (1.0, 0.5, 0.2, 0.1, 0.05):
        scaled = scale_table(whole, ["files*size"], scale)
        sizes[scale] = scaled["files"], scaled["size"]
    assert sizes == {1.0: (5, "100M"), 0.5: (3, "83M"), 0.2: (1, "100M"), 0.1: (1, "50M"), 0.05: (1, "25M")}


PLAN = """
schema = "guestmark-plan/1"
name = "boots"
title = "Which boot is faster?"
platforms = ["tcg"]
workloads.netboot.params = { files = 4, size = "8M" }
"""


@pytest.mark.parametrize(
    ("marked", "refusal"),
    [
        ('scale = ["files*nothing"]', "'files*nothing' is neither a parameter nor a factor"),
        ('scale = ["size*files"]', "size*files: '8M' is not a count"),
        ("workloads.netboot.least_scale = 0", "least_scale"),
        ("workloads.netboot.least_scale = 1.5", "least_scale"),
    ],
)
def test_marks_that_mean_nothing_are_refused(marked: str, refusal: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_outline(PLAN.replace("platforms", f"{marked}\nplatforms"), "boots.toml", scale=0.5)
    assert refusal in refused.value.hint


MARKED = 'scale = ["files*size"]\nworkloads.netboot.least_scale = 0.25\nplatforms'


def assemble_at(scale: float, more: str = "") -> Plan:
    text = PLAN.replace("platforms", MARKED) + more + 'cost = { tcg = "90s" }\n'
    return assemble_plan(load_outline(text, "boots.toml", scale=scale), Caller())


def test_a_workload_shrinks_no_further_than_it_allows() -> None:
    sizes = {}
    for scale in SCALES:
        params = assemble_at(scale).cells[0].workload.params
        sizes[scale] = params["files"], parse_size(params["size"]) >> 20
    assert sizes == {1.0: (4, 8), 0.5: (2, 8)} | dict.fromkeys(SCALES[2:], (1, 8))
    # No budget chooses a scale at which nothing would be smaller.
    assert choose_scale(assemble_at, None, 20.0).context.scale == 0.2
    assert choose_scale(assemble_at, None, 1e6).context.scale == 1.0


def test_one_workload_that_shrinks_further_lets_a_budget_go_on() -> None:
    def assemble(scale: float) -> Plan:
        return assemble_at(
            scale, 'workloads.other = { kind = "netboot", params = { files = 100, size = "8M" } }\n'
        )

    assert choose_scale(assemble, None, 20.0).context.scale == 0.01

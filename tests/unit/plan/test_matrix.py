"""Factors, the matrix, baselines and null cells."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core import registry
from guestmark.core.errors import UsageError
from guestmark.core.factor import Factor
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import parse_platforms
from guestmark.plan.matrix import NullCells, change_baseline, expand_workload

WORKLOAD = WorkloadSpec("exec", {"argv": ["true"]}, "true")


def cells(on: str, settings: Sequence[str] = (), **more: Any) -> tuple[Cell, ...]:
    return expand_workload(WORKLOAD, parse_platforms([on]), registry.parse_settings(settings), **more).cells


def ids(*arguments: Any, **more: Any) -> list[str]:
    return [cell.id for cell in cells(*arguments, **more)]


def test_levels_get_one_spelling() -> None:
    assert registry.parse_settings(["memory=1024 MiB,0.5g"]) == {"memory": ("1G", "512M")}


def test_factors_of_outer_guests_are_for_nested_platforms() -> None:
    assert ids("tcg,tcg/uml", ["outer=block,trial"]) == [
        "tcg",
        "tcg/uml outer=block",
        "tcg/uml outer=trial",
        "tcg#2",
    ]
    with pytest.raises(UsageError, match="factor outer_cpu cannot be set on tcg") as caught:
        ids("tcg", [r"outer_cpu=max\,svm=off"])
    assert "nested platforms" in caught.value.hint
    with pytest.raises(UsageError, match="is not one of block, trial"):
        registry.parse_settings(["outer=run"])


def test_a_comma_inside_a_level_is_escaped() -> None:
    assert registry.parse_settings([r"cpu=host\,-vmx,max"]) == {"cpu": ("host,-vmx", "max")}


@pytest.mark.parametrize(
    ("setting", "telling"),
    [
        ("memroy=1G", "did you mean 'memory'"),
        ("memory", "e.g. --set memory="),
        ("memory=", "the guest's memory"),
        ("memory=1X", "the guest's memory"),
        ("memory=1M", "the guest's memory"),
        ("memory=1G,1024M", "give each level once"),
        ("smp=0", "processors"),
        ("smp=two", "processors"),
        ("cpu=a b", "processor model"),
        ("kernel=/no/such/kernel", "kernel"),
        ("kernel_args=a\nb", "kernel"),
        ("=1", "known:"),
    ],
)
def test_bad_settings_say_what_to_do(setting: str, telling: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.parse_settings([setting])
    assert telling in caught.value.hint


def test_a_factor_is_given_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        registry.parse_settings(["smp=1", "smp=2"])


def test_the_matrix_has_every_combination_in_order() -> None:
    assert ids("tcg", ["memory=256M,512M", "smp=1,2"], null=NullCells.NONE) == [
        "tcg memory=256M smp=1",
        "tcg memory=256M smp=2",
        "tcg memory=512M smp=1",
        "tcg memory=512M smp=2",
    ]


def test_a_factor_applies_where_it_can_and_the_rest_is_said() -> None:
    matrix = expand_workload(
        WORKLOAD, parse_platforms(["host,uml,tcg"]), {"smp": ("1", "2")}, null=NullCells.NONE
    )
    assert [cell.id for cell in matrix.cells] == ["host", "uml", "tcg smp=1", "tcg smp=2"]
    assert matrix.notes == ("smp does not apply to host, uml",)


def test_a_factor_that_applies_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match="memory cannot be set on host"):
        cells("host", ["memory=1G"])


def test_the_first_platform_is_the_baseline_and_has_a_null_copy() -> None:
    host, uml, null = cells("host,uml")
    assert (host.baseline, uml.baseline, null.baseline) == (True, False, False)
    assert (null.id, null.null_of, str(null.platform)) == ("host#2", "host", "host")


def test_a_repeated_platform_is_a_null_cell_and_not_doubled() -> None:
    assert ids("host,host") == ["host", "host#2"]
    assert ids("host,uml,uml") == ["host", "uml", "host#2", "uml#2"]
    assert ids("host,host,host", null=NullCells.NONE) == ["host", "host#2", "host#3"]


def test_null_copies_of_all_cells() -> None:
    assert ids("host,uml", null=NullCells.ALL) == ["host", "uml", "host#2", "uml#2"]
    assert ids("host,uml", null=NullCells.NONE) == ["host", "uml"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("tcg", "tcg memory=256M"),
        ("tcg memory=512M", "tcg memory=512M"),
        ("memory=0.5G", "tcg memory=512M"),
        ("host", "host"),
    ],
)
def test_a_baseline_can_be_named_in_several_ways(asked: str, found: str) -> None:
    matrix = cells("host,tcg", ["memory=256M,512M"], baseline=asked)
    assert [cell.id for cell in matrix if cell.baseline] == [found]


def test_a_baseline_that_is_not_listed_is_measured_too() -> None:
    assert ids("uml", baseline="host", null=NullCells.NONE) == ["host", "uml"]


@pytest.mark.parametrize("asked", ["hots", "memory=1G", "tcg smp=2", ""])
def test_a_baseline_that_is_no_cell_is_refused(asked: str) -> None:
    with pytest.raises(UsageError):
        cells("host,tcg", ["memory=256M"], baseline=asked)


def test_describing_a_factor_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = registry.index_workload_kinds()["fio"]
    other = type("Other", (kind,), {"factors": (Factor("memory", "", str),)})
    monkeypatch.setattr(registry, "index_workload_kinds", lambda: {"fio": other})
    with pytest.raises(ValueError, match="'memory' is defined twice"):
        registry.factors.__wrapped__()


platforms = st.lists(st.sampled_from(["host", "uml", "tcg", "kvm"]), min_size=1, max_size=6)


@given(platforms, st.sampled_from(list(NullCells)), st.booleans())
def test_ids_are_unique_and_there_is_one_baseline(
    names: list[str], null: NullCells, with_levels: bool
) -> None:
    settings = {"memory": ("256M", "512M")} if with_levels and set(names) - {"host"} else {}
    found = expand_workload(WORKLOAD, parse_platforms(names), settings, null=null).cells
    assert len({cell.id for cell in found}) == len(found)
    assert sum(cell.baseline for cell in found) == 1
    assert all(
        cell.null_of in {other.id for other in found if other.null_of is None}
        for cell in found
        if cell.null_of
    )
    assert {str(cell.platform) for cell in found} == set(names)


def test_a_measured_run_can_be_held_against_another_cell() -> None:
    measured = cells("host,tcg,uml", ["memory=1G,2G"])
    assert [cell.id for cell in measured if cell.baseline] == ["host"]
    held = change_baseline(measured, "tcg memory=2G")
    assert [cell.id for cell in held if cell.baseline] == ["tcg memory=2G"]
    assert [replace(cell, baseline=False) for cell in held] == [
        replace(cell, baseline=False) for cell in measured
    ]
    # Of several that are meant, the first.
    assert [cell.id for cell in change_baseline(measured, "uml") if cell.baseline] == ["uml memory=1G"]
    with pytest.raises(UsageError, match="baseline"):
        change_baseline(measured, "tcg memory=4G")


def test_where_a_baseline_is_missing_the_old_one_stands() -> None:
    def group(name: str, on: str) -> list[Cell]:
        return [replace(cell, group=name, id=f"{name} {cell.id}") for cell in cells(on, null=NullCells.NONE)]

    held = change_baseline([*group("write", "host,tcg"), *group("read", "host,uml")], "tcg")
    assert [cell.id for cell in held if cell.baseline] == ["write tcg", "read host"]

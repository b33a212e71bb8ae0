"""Rows are named by what differs: two rows of one table never have the same name."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.model import Cell, CellStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.names import name_across_workloads, name_groups, name_rows
from guestmark.stats.analysis import CellResult, WorkloadResult

DURABLE = "innodb_flush_log_at_trx_commit"


def names(*workloads: WorkloadSpec) -> list[str]:
    tcg = PlatformSpec.read("tcg")
    results = [
        CellResult(Cell(f"tcg {number}", workload, tcg), CellStatus.OK, "", (), {}, {})
        for number, workload in enumerate(workloads)
    ]
    table = WorkloadResult(workloads[0], (), tuple(results), {}, ())
    return [" ".join(name.parts) for name in name_rows(table, results)[1]]


@pytest.mark.parametrize("key", ["", "same"])
def test_settings_tell_rows_apart(key: str) -> None:
    servers = [
        WorkloadSpec("oltp", {"rows": 9, "settings": {DURABLE: level}}, "oltp", key=key)
        for level in (0, 1, 2)
    ]
    found = names(*servers)
    assert all(f"{DURABLE}={level}" in name for level, name in enumerate(found))
    assert not any("rows" in name for name in found)


def test_keys_tell_rows_apart_that_have_one_label() -> None:
    found = names(*(WorkloadSpec("fio", {"job": key}, "fio", key=key) for key in ("sync", "lazy")))
    assert [name.split()[0] for name in found] == ["sync", "lazy"]


def test_labels_are_enough_where_they_differ() -> None:
    found = names(*(WorkloadSpec("exec", {"argv": [word]}, word, key=word) for word in ("true", "false")))
    assert [name.split()[0] for name in found] == ["true", "false"]


@pytest.mark.parametrize(("asked", "shown"), [(False, False), (True, True)])
def test_placement_has_a_column_where_no_other_factor_tells_it(asked: bool, shown: bool) -> None:
    levels = [{"pattern": "one", "placement": "pinned"}, {"pattern": "burst-4", "placement": "free"}]
    if asked:
        levels.append({"pattern": "one", "placement": "free"})
    host, starts = PlatformSpec.read("host"), WorkloadSpec("coldstart")
    results = [
        CellResult(Cell(f"host {number}", starts, host, each), CellStatus.OK, "", (), {}, {})
        for number, each in enumerate(levels)
    ]
    headings, found = name_rows(WorkloadResult(starts, (), tuple(results), {}, ()), results)
    assert ("placement" in headings) is shown
    assert len({name.parts for name in found}) == len(levels)


FACTORS = {"nic": ["e1000", "virtio-net", "rtl8139"], "console": ["vga", "none"], "smp": ["1", "4"]}


@given(
    st.lists(st.sampled_from(list(itertools.product(*FACTORS.values()))), min_size=1, unique=True),
    st.lists(st.integers(0, 2), min_size=12, max_size=12),
    st.lists(st.sampled_from(["tcg", "uml"]), min_size=1, unique=True),
)
def test_rows_that_share_a_name_are_alike_and_differ_in_one_factor(
    levels: list[tuple[str, str, str]], kinds: list[int], platforms: list[str]
) -> None:
    boot = WorkloadSpec("netboot", {}, "network boot")
    results, kind_of = [], {}
    for platform in platforms:
        for level, kind in zip(levels, kinds, strict=False):
            cell = Cell(
                f"{platform} {level}",
                boot,
                PlatformSpec.read(platform),
                dict(zip(FACTORS, level, strict=True)),
            )
            results.append(CellResult(cell, CellStatus.OK, "", (), {}, {}))
            kind_of[cell.id] = kind

    def are_alike(some: Sequence[CellResult]) -> bool:
        return len({kind_of[result.cell.id] for result in some}) == 1

    groups = name_groups(results, are_alike)
    assert sorted(result.cell.id for _, group in groups for result in group) == sorted(kind_of)
    assert len({name for name, _ in groups}) == len(groups)
    for _, group in groups:
        numbers = [len({result.cell.factors[name] for result in group}) for name in FACTORS]
        # Factors that vary together are one.
        assert {number for number in numbers if number > 1} <= {len(group)}
        assert are_alike(group)
        assert len({result.cell.platform for result in group}) == 1


def test_a_shared_name_lists_the_levels_it_stands_for() -> None:
    results = []
    for nic, console in itertools.product(FACTORS["nic"][:2], FACTORS["console"]):
        cell = Cell(
            f"{nic} {console}",
            WorkloadSpec("netboot"),
            PlatformSpec.read("tcg"),
            {"nic": nic, "console": console},
        )
        results.append(CellResult(cell, CellStatus.OK, "", (), {}, {}))
    groups = name_groups(results, lambda some: all(result.cell.factors["nic"] == "e1000" for result in some))
    assert [name for name, _ in groups] == [
        "netboot e1000 (vga, none)",
        "netboot virtio-net vga",
        "netboot virtio-net none",
    ]
    assert [name for name, _ in name_groups(results, lambda _: False)] == list(
        name_across_workloads(results).values()
    )

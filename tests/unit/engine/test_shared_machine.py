"""Which cells share a machine, what it is started by, and in which order they run on it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guestmark.core.model import Cell, Plan, Policy
from guestmark.engine.shared_machine import group_cells, make_shared_start
from guestmark.engine.trial_schedule import order_cells
from guestmark.setting.disk import Disks
from tests.framework.cells import cell_of

DISK = {"size": "32M", "location": "/dev/shm"}


def make_cells(*changes: Mapping[str, str], platform: str = "tcg", kind: str = "fill") -> tuple[Cell, ...]:
    cells = []
    for number, change in enumerate(changes):
        made = cell_of(platform, kind, {**DISK, **change}, amount="1M", content="zero")
        cells.append(replace(made, id=f"cell {number}"))
    return tuple(cells)


def group_ids(cells: tuple[Cell, ...], *, share: bool = True) -> list[list[str]]:
    plan = Plan("test", cells, Policy(share_machine=share), ())
    return [[cell.id.removeprefix("cell ") for cell in group] for group in group_cells(plan, cells)]


def test_cells_share_a_machine_if_they_differ_in_disks_and_work_alone() -> None:
    cells = make_cells(
        {},
        {"format": "qcow2"},
        {"memory": "512M"},
        {"filesystem": "ext3", "mount": "sync"},
        {"smp": "2"},
        {"block_size": "64K"},
        {"memory": "512M", "preallocation": "full"},
        {"bus": "ide"},
        {"start": "restored"},
        {"network": "user"},
        {"image": "/x.qcow2"},
    )

    assert group_ids(cells) == [["0", "1", "3", "5"], ["2", "6"], ["4"], ["7"], ["8"], ["9"], ["10"]]
    assert group_ids(cells, share=False) == [[str(number)] for number in range(11)]


@pytest.mark.parametrize(
    ("kind", "params"),
    [("exec", {"command": ["true"]}), ("boot", {}), ("oltp", {"server": "mariadb", "test": "read_only"})],
)
def test_some_workloads_have_a_machine_of_their_own(kind: str, params: dict[str, Any]) -> None:
    one = replace(cell_of("tcg", kind, **params), id="cell 0")

    assert group_ids((one, replace(one, id="cell 1"))) == [["0"], ["1"]]


def test_a_null_copy_and_the_host_share_with_nobody() -> None:
    first, second = make_cells({}, {})
    (host,) = make_cells({}, platform="host")
    copy = replace(first, id="cell 2", null_of="cell 0")

    assert group_ids((first, second, copy, replace(host, id="cell 3"))) == [["0", "1"], ["2"], ["3"]]


def test_a_machine_has_no_more_disks_than_its_bus_holds() -> None:
    sizes = [len(group) for group in group_ids(make_cells(*[{}] * 40))]

    assert sum(sizes) == 40
    assert max(sizes) == 16


def test_images_that_do_not_fit_at_once_are_spread_over_machines() -> None:
    sizes = [len(group) for group in group_ids(make_cells(*[{"size": "4T", "preallocation": "full"}] * 3))]

    assert sizes == [1, 1, 1]


@pytest.mark.parametrize("platform", ["tcg", "uml"])
def test_a_shared_machine_has_the_disks_of_all(platform: str) -> None:
    """Each disk is what its cell asked for, under a name of its own; a source that several read is attached once."""
    copies = make_cells({}, {"filesystem": "ext3", "mount": "sync"}, platform=platform, kind="dd")
    fills = make_cells({"preallocation": "full"}, platform=platform)
    cells = (*copies, replace(fills[0], id="cell 2"))

    start = make_shared_start(cells)

    made = {disk.name: disk for disk in start.carrier.view(Disks)}
    assert len(made) == 4
    for cell in cells:
        attached = [replace(made[name], alias="") for name in start.names[cell.id]]
        assert sorted(attached, key=str) == sorted(cell.view(Disks), key=str)
    assert start.names["cell 0"] & start.names["cell 1"]
    assert not start.names["cell 0"] & start.names["cell 2"]


@given(
    st.integers(0, 2**32),
    st.integers(0, 100),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.booleans(),
)
def test_cells_of_a_machine_run_one_after_another(
    seed: int, block: int, sizes: list[int], chained: bool
) -> None:
    cells = iter(make_cells(*[{}] * sum(sizes)))
    groups = [tuple(next(cells) for _ in range(size)) for size in sizes]
    every = [cell for group in groups for cell in group]

    order = [cell.id for cell in order_cells(seed, block, every, chained=chained, groups=groups)]

    assert sorted(order) == sorted(cell.id for cell in every)
    for group in groups:
        places = sorted(order.index(cell.id) for cell in group)
        assert places == list(range(places[0], places[0] + len(group)))


def test_every_cell_of_a_machine_comes_first_equally_often() -> None:
    group = make_cells({}, {}, {})
    first = [order_cells(3, block, group, groups=[group])[0].id for block in range(0, 4800, 16)]

    assert all(60 < first.count(cell.id) < 140 for cell in group)

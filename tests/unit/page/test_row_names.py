"""Rows are named by what differs: two rows of one table never have the same name."""

import pytest

from guestmark.core.model import Cell, CellStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.names import name_rows
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

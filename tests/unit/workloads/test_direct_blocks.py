"""The size of a direct copy's requests depends on the machine: it is kept, and told where rows differ in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from guestmark.agent.client import Agent
from guestmark.core.model import Cell
from guestmark.platforms.host_like import Host
from guestmark.workloads.disk.copying import DirectTrial
from tests.framework.cells import cell_of, plan_of

MB = 1 << 20


def direct(platform: str = "tcg", **factors: str) -> Cell:
    return cell_of(platform, "direct", factors)


SMALL, LARGE, SERVED = direct(memory="256M"), direct(memory="1G"), direct(memory="1G", bus="vhost-user")
SAME = direct(memory="256M", block_size="8M")


@pytest.mark.parametrize(
    ("cells", "memory", "size", "told"),
    [
        ((SMALL, LARGE), 230 * MB, 16 * MB, "a request is of 16M"),
        ((LARGE, SMALL), 980 * MB, 32 * MB, ""),
        ((SERVED, LARGE), 980 * MB, 8 * MB, "block_size=8M makes them equal"),
        ((SMALL, direct("host")), 230 * MB, 16 * MB, "of up to 32M"),
        ((SMALL, direct("tcg", memory="256M", filesystem="xfs")), 230 * MB, 16 * MB, ""),
        ((SAME, LARGE), 230 * MB, 8 * MB, ""),
    ],
)
def test_requests_of_another_size_are_told(
    cells: tuple[Cell, ...], memory: int, size: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agent, "read_facts", lambda _self: SimpleNamespace(mem_total_kib=memory >> 10))
    trial = DirectTrial(plan_of(*cells), cells[0])
    for _ in range(2):
        assert trial.choose_block(Host(Agent.__new__(Agent), ())) == size
    assert trial.facts.facts().kept["block_bytes"] == size
    assert len(trial.warnings) == bool(told)
    assert told in "".join(trial.warnings)

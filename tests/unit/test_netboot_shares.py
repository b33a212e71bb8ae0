"""Who was slow in a network boot, in words, from shares and causes as trials record them."""

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from guestmark.capture.model import Causes, Trace
from guestmark.core.findings import Facts, flat
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.nodes import Bullets, Paragraph
from guestmark.stats.analysis import analyse
from guestmark.workloads.netboot import Netboot, sections
from tests.framework.known import a
from tests.framework.runs import constructed

BOOT = WorkloadSpec("netboot", {}, "network boot")
EMPTY: dict[str, object] = {
    "file": "", "connections": [], "format": None, "compression": None, "connection_count": 0, "start_ns": None,
    "shares": {"client": None, "server": None, "unknown": None}, "relative_error": 0.0, "counters": {},
    "limits": [], "endpoints": [], "sequence": None, "error": None,
}  # fmt: skip


def said(causes: Causes, *cells: Mapping[str, float]) -> tuple[list[str], str]:
    """What is said of each cell, by its metrics, and of all; every trial's capture had the same causes."""
    names = [f"tcg rom={number}" for number in range(len(cells))]
    figures = dict(zip(names, cells, strict=True))
    run = constructed(
        [(Cell(name, BOOT, PlatformSpec.read("tcg"), {}, name == names[0]), 1.0) for name in names], blocks=3
    )
    trace = msgspec.structs.replace(msgspec.convert(EMPTY, Trace), causes=causes)
    facts = Facts(json.loads(json.dumps(flat(Netboot(picture=trace)))))  # as the ledger keeps it
    metrics = {name: Metric(name, "1") for values in cells for name in values}
    trials = tuple(
        replace(
            trial,
            facts=facts,
            measurements=tuple(
                Measurement(metrics[name], value, (value,)) for name, value in figures[trial.cell_id].items()
            ),
        )
        for trial in run.trials
    )
    run = replace(run, plan=replace(run.plan, metrics=tuple(metrics.values())), trials=trials)
    (workload,) = analyse(run.plan, run.trials).workloads
    bullets, paragraph = sections.shares(workload, run)
    told = ["".join(span.text for span in item) for item in a(Bullets, bullets).items]
    return told, "".join(span.text for span in a(Paragraph, paragraph).text)


def test_only_causes_that_no_distance_explains_are_named() -> None:
    causes = Causes(1.0, 2.0, network_s=4.0, window_s=2.0, recovery_s=0.5, idle_s=0.5)
    (told,), whole = said(causes, {"client_share": 0.7, "server_share": 0.2})
    assert told.endswith(
        "client 70 %, server or the network to it 20 %, neither answering 10 %; of all, receive window closed 20 %, "
        "loss recovery 5 %, idle 5 %"
    )
    assert "network 4" not in told
    assert whole == "Slow (more than half of the time) is the client in all."


@pytest.mark.parametrize("causes", [Causes(), Causes(1.0, 2.0, network_s=3.0)])
def test_nothing_is_said_of_causes_that_are_unknown_or_absent(causes: Causes) -> None:
    (told,), _ = said(causes, {"client_share": 0.3, "server_share": 0.3})
    assert told.endswith("client 30 %, server or the network to it 30 %, neither answering 40 %")


def test_each_cell_has_its_own_slow_side() -> None:
    cells = ({"client_share": 0.8, "server_share": 0.1}, {"client_share": 0.1, "server_share": 0.8})
    _, whole = said(Causes(), *cells)
    assert whole == ("Slow (more than half of the time) is the client in tcg rom=0; the server in tcg rom=1.")
    _, whole = said(Causes(), cells[0], {"client_share": 0.4, "server_share": 0.4})
    assert whole.endswith("the client in tcg rom=0; neither in tcg rom=1.")


def test_a_server_that_repeats_had_waited() -> None:
    lost = {"client_share": 0.1, "server_share": 0.8, "retransmitted_bytes": 2.5e6}
    (told,), _ = said(Causes(), lost)
    assert told.endswith("(2.5 MB lost and sent again, after waiting for it)")
    (told,), _ = said(Causes(), {**lost, "client_share": 0.85, "server_share": 0.1})
    assert told.endswith("(2.5 MB lost and sent again)")
    (told,), _ = said(Causes(), {**lost, "retransmitted_bytes": 3e4})
    assert "sent again" not in told

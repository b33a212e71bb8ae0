"""Who was slow in a network boot, in words, from shares and causes as trials record them."""

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from guestmark.capture.model import Causes, Trace
from guestmark.core.findings import Facts, flatten_fact
from guestmark.core.metric import Measurement, Metric
from guestmark.core.model import Cell, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.page.nodes import Bullets, Paragraph
from guestmark.stats.analysis import analyse_run
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
    facts = Facts(json.loads(json.dumps(flatten_fact(Netboot(picture=trace)))))  # as the ledger keeps it
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
    (workload,) = analyse_run(run.plan, run.trials).workloads
    bullets, paragraph = sections.render_shares(workload, run)
    told = ["".join(span.text for span in item) for item in a(Bullets, bullets).items]
    return told, "".join(span.text for span in a(Paragraph, paragraph).text)


LATENCY = "by response latency alone: client {} %, server or the network to it {} %, neither {} %"


def test_the_verdict_is_by_cause_and_the_published_measure_has_its_name() -> None:
    """As in a report that named the server for all, above the client's buffer as the largest cause."""
    causes = Causes(0.5, 1.0, client_receive_buffer_s=6.0, latency_s=1.5, idle_s=1.0)
    (told,), whole = said(causes, {"client_share": 0.2, "server_share": 0.7})
    assert told.endswith(
        "client's receive buffer 60 %, path latency 15 %, server 10 %, idle 10 %, client 5 %; "
        + LATENCY.format(20, 70, 10)
    )
    assert whole == "Slow side (more than half of the time, by cause): the client's receive buffer in all."
    _, whole = said(Causes(4.0, 2.0, latency_s=4.0), {"client_share": 0.2, "server_share": 0.7})
    assert whole == "Slow side (more than half of the time, by cause): nothing alone in all."


def test_without_causes_the_published_measure_is_all_there_is() -> None:
    cells = ({"client_share": 0.8, "server_share": 0.1}, {"client_share": 0.1, "server_share": 0.8})
    (told, _), whole = said(Causes(), *cells)
    assert told.endswith(LATENCY.format(80, 10, 10))
    by_latency = "Slow side (more than half of the time, by response latency alone):"
    assert whole == f"{by_latency} the client in tcg rom=0; the server in tcg rom=1."
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

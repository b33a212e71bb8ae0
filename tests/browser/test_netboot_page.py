"""A run's page with captured connections, laid out by a real browser: both endpoints of every cell, inside."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from guestmark.capture.binary import analyse_file
from guestmark.capture.model import reduce_for_drawing
from guestmark.core.findings import Facts, flatten_fact
from guestmark.core.model import WorkloadSpec
from guestmark.report.export_format import Format
from guestmark.report.formats import export_run
from guestmark.workloads.netboot import Netboot
from tests.framework import traffic as ct
from tests.framework.browser import browser, lay_out
from tests.framework.runs import memory_sweep


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    browser()
    ct.need("dumpcap")
    folder = tmp_path_factory.mktemp("page")
    capture = folder / "trace.pcapng"
    with ct.dumping(capture):
        listener, stop = ct.echo_server(b"a" * 200_000, 0.001)
        ct.talk(listener.getsockname(), 40, 200_000, 0.003)
        port = listener.getsockname()[1]
        stop()
    picture = reduce_for_drawing(analyse_file(capture, filter_by=str(port), sequence=True))
    facts = Facts(json.loads(json.dumps(flatten_fact(Netboot(picture=picture)))))  # as the ledger keeps it
    run = memory_sweep()
    trials = tuple(replace(trial, facts=facts) for trial in run.trials)
    booted = WorkloadSpec("netboot", {}, "network boot")
    cells = tuple(replace(cell, workload=booted) for cell in run.plan.cells)
    run = replace(run, plan=replace(run.plan, cells=cells), trials=trials)
    text = export_run(run, Format.HTML).decode()
    assert len(text) < 400_000
    return lay_out(text, folder)


def test_each_cell_has_a_client_and_a_server(laid_out: dict[str, Any]) -> None:
    assert laid_out["resources"] == 0
    assert "Response latency of each endpoint" in laid_out["text"]
    drawing = next(drawing for drawing in laid_out["drawings"] if drawing["id"] == "distributions")
    roles = [thing[6] for thing in drawing["things"] if thing[0] == "text"]
    cells = {trial.cell_id for trial in memory_sweep().trials if "#" not in trial.cell_id}
    assert roles.count("client") == roles.count("server") == len(cells) >= 2


def test_everything_is_inside(laid_out: dict[str, Any]) -> None:
    named = {drawing["id"]: drawing for drawing in laid_out["drawings"] if drawing["id"]}
    assert {"distributions", "sequence-server"} <= set(named)
    for drawing in named.values():
        for tag, *margins, _, _ in drawing["things"]:
            assert min(margins) > -2, (drawing["id"], tag, margins)

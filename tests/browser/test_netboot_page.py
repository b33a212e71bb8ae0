"""A run's page with captured connections, laid out by a real browser: both endpoints of every cell, inside."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).parent))

import capture_traffic as ct
from report_runs import memory_sweep
from test_capture_picture import PROBE

from guestmark.capture.binary import analyse_file
from guestmark.capture.excerpt import PICTURE, drawn
from guestmark.report.html import page


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail("chromium is missing: apt-get install chromium")
    ct.need("dumpcap")
    folder = tmp_path_factory.mktemp("page")
    capture, probed = folder / "trace.pcapng", folder / "probed.html"
    with ct.dumping(capture):
        listener, stop = ct.echo_server(b"a" * 200_000, 0.001)
        ct.talk(listener.getsockname(), 40, 200_000, 0.003)
        port = listener.getsockname()[1]
        stop()
    kept = json.loads(
        json.dumps(drawn(analyse_file(capture, filter_by=str(port), sequence=True)))
    )  # as the ledger keeps it
    run = memory_sweep()
    trials = tuple(replace(trial, attestation={**trial.attestation, PICTURE: kept}) for trial in run.trials)
    text = page(replace(run, trials=trials))
    assert "http" not in text.replace("http-equiv", "")
    assert len(text) < 400_000
    probed.write_text(text.replace("</body>", PROBE + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    flags += [f"--user-data-dir={folder}/profile", "--window-size=1100,1400", "--virtual-time-budget=3000"]
    command = [chromium, *flags, "--dump-dom", probed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[:2000]
    answer: dict[str, Any] = json.loads(html.unescape(found[1]))
    return answer


def test_each_cell_has_a_client_and_a_server(laid_out: dict[str, Any]) -> None:
    assert laid_out["resources"] == 0
    assert "Response latency of each endpoint" in laid_out["text"]
    drawing = next(one for one in laid_out["drawings"] if one["id"] == "distributions")
    roles = [thing[6] for thing in drawing["things"] if thing[0] == "text"]
    cells = {trial.cell_id for trial in memory_sweep().trials if "#" not in trial.cell_id}
    assert roles.count("client") == roles.count("server") == len(cells) >= 2


def test_everything_is_inside(laid_out: dict[str, Any]) -> None:
    named = {one["id"]: one for one in laid_out["drawings"] if one["id"]}
    assert {"distributions", "sequence-server"} <= set(named)
    for drawing in named.values():
        for tag, *margins, _, _ in drawing["things"]:
            assert min(margins) > -2, (drawing["id"], tag, margins)

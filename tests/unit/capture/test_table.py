"""What the terminal shows, at every width, and how the command ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.framework import PACKAGES
from tests.framework import captures as cf

MAIN = "import sys; from guestmark.cli import main; sys.exit(main())"


def guestmark(
    *arguments: str, columns: int = 150, stdin: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "COLUMNS": str(columns)}
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "capture", *arguments],
        capture_output=True,
        timeout=60,
        env=environment,
        input=stdin,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.pcap"
    path.write_bytes(cf.pcap(cf.frames(cf.conversation())))
    return path


@pytest.mark.parametrize("columns", [80, 100, 150])
def test_nothing_is_cut_off(trace: Path, columns: int) -> None:
    done = guestmark(str(trace), columns=columns)
    assert done.returncode == 0
    assert "10.0.6.2:1028 → 10.0.6.1:8000" in done.stdout
    assert "975 µs" in done.stdout
    assert "client 92 %, server 6 %, network/unknown 2 %" in done.stdout
    assert "…" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 120])
def test_by_endpoint(trace: Path, columns: int) -> None:
    done = guestmark(str(trace), "--by", "endpoint", columns=columns)
    assert "10.0.6.1:8000" in done.stdout
    assert "300 µs" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= columns


def test_parquet_csv_and_json_have_the_same_rows(trace: Path, tmp_path: Path) -> None:
    import json

    import polars as pl

    parquet, rows = tmp_path / "out.parquet", tmp_path / "out.csv"
    assert guestmark(str(trace), "-f", "parquet", "-o", str(parquet)).returncode == 0
    assert guestmark(str(trace), "-f", "csv", "-o", str(rows)).returncode == 0
    (connection,) = json.loads(guestmark(str(trace), "-f", "json").stdout)["files"][0]["connections"]
    for frame in (pl.read_parquet(parquet), pl.read_csv(rows)):
        (row,) = frame.to_dicts()
        assert row["server_unique_bytes"] == connection["server"]["unique_bytes"] == 2000
        assert row["client_response_p99_s"] == connection["client"]["response"]["p99_s"]


def test_a_damaged_file_is_shown_and_ends_with_one(trace: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(trace.read_bytes()[:-5])
    done = guestmark(str(cut), str(trace))
    assert done.returncode == 1
    assert done.stdout.count("10.0.6.2:1028 →") == 2
    assert f"guestmark: {cut}: at byte " in done.stderr
    assert "Traceback" not in done.stderr


def test_standard_input_and_usage(trace: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = guestmark("-", "--plot", str(page), stdin=trace.read_bytes())
    assert done.returncode == 0
    assert "sequence-server" in page.read_text()
    assert guestmark(str(trace), "--filter", "a b").returncode == 2
    assert guestmark("-", "-f", "csv", "--plot", str(page), stdin=b"").returncode == 2
    assert guestmark(str(trace), "-f", "parquet").returncode == 2

"""Measures figures of sysbench, fio and time on the host: through guestmark, and by hand before and after."""

import json
import re
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.truth import peers

_CHECKOUT = Path(__file__).resolve().parents[2]
_RUNS = 8


def _commands(directory: Path) -> dict[str, tuple[list[str], str, str]]:
    """Return, for each figure, its command, its form for `--metric`, and the pattern that reads it."""
    return {
        "sysbench cpu, events/s": (
            ["sysbench", "cpu", "--cpu-max-prime=2000", "--time=1", "run"], "rate:1/s:higher",
            r"events per second: *([0-9.]+)",
        ),
        "fio random reads of 4 KiB, cached, bytes/s": (
            ["fio", "--name=read", "--rw=randread", "--bs=4k", "--size=64M", f"--filename={directory}/file",
             "--runtime=1", "--time_based", "--ioengine=psync", "--output-format=json"], "rate:B/s:higher",
            r'"read"[^}]*?"bw_bytes" *: *([0-9]+)',
        ),
    }  # fmt: skip


def _by_hand(command: list[str], pattern: str) -> float:
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(pattern, said)
    assert found is not None, said
    return float(found.group(1))


def _timed(command: list[str]) -> float:
    said = subprocess.run(["/usr/bin/time", "-f", "%e", *command], capture_output=True, text=True, check=True)
    return float(said.stderr.split()[-1])


def _exec(directory: Path, command: list[str], metric: str, *options: str) -> float:
    """Return the median over blocks of what `guestmark exec --on host` reads."""
    done = subprocess.run(
        [_CHECKOUT / "guestmark", "exec", "--on", "host", "--null", "none", "--blocks", str(_RUNS), "--iterations", "1",
         "--warmup", "0", "--quiet", "--json", "-", "--ledger", directory / "ledger.sqlite", *options, "--", *command],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (cell,) = json.loads(done.stdout)["cells"]
    return float(statistics.median(trial["iterations"][metric][0] for trial in cell["trials"]))


def measure_figures() -> dict[str, Any]:
    """Measure half of the runs by hand, then guestmark's, then the other half by hand."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="guestmark-truth-") as name:
        directory = Path(name)
        for figure, (command, metric, pattern) in _commands(directory).items():
            theirs = [_by_hand(command, pattern) for _ in range(_RUNS // 2)]
            ours = _exec(directory, command, metric.partition(":")[0], "--metric", f"{metric}={pattern}")
            theirs += [_by_hand(command, pattern) for _ in range(_RUNS // 2)]
            rows.append({"figure": figure, "ours": ours, "theirs": statistics.median(theirs)})
        command = [str(peers.BUILD / "spin"), "500000000"]
        theirs = [_timed(command) for _ in range(_RUNS // 2)]
        ours = _exec(directory, command, "wall_s")
        theirs += [_timed(command) for _ in range(_RUNS // 2)]
        rows.append(
            {"figure": "/usr/bin/time, s of counted work", "ours": ours, "theirs": statistics.median(theirs)}
        )
    return {"by_hand": rows}

"""Judges the same two commands by the peers' own programs, on runs that hyperfine made."""

import csv
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import ttest_ind

from guestmark.platforms.base import Machine

BUILD = Path(__file__).resolve().parents[2] / "target" / "truth"
BENCHSTAT = "golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da"
SAMPLES = 10  # of benchstat, each the mean of its share of the runs, as `go test -count=10` makes them
_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What a user reads: the ratio B / A, its half-width if the tool prints one, and slower, faster or nothing."""

    ratio: float
    half_width: float | None
    claim: str  # "slower", "faster" or ""


def install_peers() -> dict[str, str]:
    """Build the work, and download missing peers; return by name why a peer is not available."""
    BUILD.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("spin.c")
    _run("gcc", "-O2", "-static", "-pthread", "-o", BUILD / "spin", source)
    missing = {}
    if shutil.which("hyperfine") is None:
        sys.exit("hyperfine is not installed (package hyperfine); every peer's runs are made with it")
    if not _pyperf().exists():
        venv.create(BUILD / "peers", with_pip=True)
        try:
            _run(_python(), "-m", "pip", "install", "-q", "-r", Path(__file__).with_name("requirements.txt"))
        except SystemExit as error:
            missing["pyperf"] = str(error)
    if not (BUILD / "benchstat").exists():
        try:
            _run("go", "install", BENCHSTAT, env={**os.environ, "GOBIN": str(BUILD)})
        except SystemExit as error:
            missing["benchstat"] = str(error)
    return missing


def _python() -> Path:
    return BUILD / "peers" / "bin" / "python"


def _pyperf() -> Path:
    return BUILD / "peers" / "bin" / "pyperf"


def _run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    except FileNotFoundError as error:
        raise SystemExit(f"{command[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{' '.join(map(str, command))}: {error.stderr.strip()}") from error


def hyperfine_command(commands: Sequence[Sequence[str]], runs: int, target: str) -> list[str]:
    """Return one call for all commands, one after the other, as users write it."""
    return ["hyperfine", "-N", "--warmup", "3", "--runs", str(runs), "--export-json", target,
            *(" ".join(command) for command in commands)]  # fmt: skip


def on_host(commands: Sequence[Sequence[str]], runs: int) -> list[list[float]]:
    """Return the seconds of every run of every command."""
    target = BUILD / "hyperfine.json"
    _run(*hyperfine_command(commands, runs, str(target)))
    return _times(target.read_text())


def in_guest(machine: Machine, commands: Sequence[Sequence[str]], runs: int) -> list[list[float]]:
    """Return the same times, measured inside one booted guest by the guest's clock, as its user would."""
    target = "/tmp/guestmark-truth.json"
    done = machine.agent.exec(hyperfine_command(commands, runs, target), timeout_s=_LIMIT_S)
    if done.status != 0:
        sys.exit(f"hyperfine in the guest: {done.stderr.decode(errors='replace')}")
    return _times(machine.agent.exec(["cat", target], timeout_s=60).stdout)


def _times(document: str | bytes) -> list[list[float]]:
    return [result["times"] for result in json.loads(document)["results"]]


def judge_by_hyperfine(a: Sequence[float], b: Sequence[float]) -> Finding:
    """Return the ratio of means and its σ, as hyperfine prints them ("1.02 ± 0.03 times faster").

    A difference counts as claimed if 1 is further from the ratio than σ.
    """
    mean_a, mean_b = statistics.mean(a), statistics.mean(b)
    ratio = mean_b / mean_a
    sigma = ratio * math.hypot(statistics.stdev(a) / mean_a, statistics.stdev(b) / mean_b)
    return Finding(ratio, sigma / ratio, _claim(ratio) if abs(ratio - 1) > sigma else "")


def judge_by_welch(a: Sequence[float], b: Sequence[float]) -> Finding:
    """Judge hyperfine's runs by Welch's t test, α = .05, as its `scripts/welch_ttest.py` does."""
    ratio = statistics.mean(b) / statistics.mean(a)
    p = float(ttest_ind(a, b, equal_var=False).pvalue)
    return Finding(ratio, None, _claim(ratio) if p < 0.05 else "")


def judge_by_pyperf(a: Sequence[float], b: Sequence[float]) -> Finding | None:
    """Judge by `pyperf compare_to`: Student's t test on the means, α = .05; None without pyperf."""
    if not _pyperf().exists():
        return None
    for name, times in (("a", a), ("b", b)):
        runs = [{"values": [seconds]} for seconds in times]
        document = {
            "version": "1.0",
            "metadata": {"name": "work", "unit": "second"},
            "benchmarks": [{"runs": runs}],
        }
        (BUILD / f"{name}.json").write_text(json.dumps(document))
    said = _run(_python(), "-m", "pyperf", "compare_to", BUILD / "a.json", BUILD / "b.json")
    ratio = statistics.mean(b) / statistics.mean(a)
    return Finding(ratio, None, "" if "not significant" in said.lower() else _claim(ratio))


def judge_by_benchstat(a: Sequence[float], b: Sequence[float]) -> Finding | None:
    """Judge by benchstat: Mann and Whitney's U test (α = .05) on ten samples each, and medians; None without it."""
    if not (BUILD / "benchstat").exists():
        return None
    medians = []
    for name, times in (("a", a), ("b", b)):
        samples = [statistics.mean(times[i * len(times) // SAMPLES : (i + 1) * len(times) // SAMPLES])
                   for i in range(SAMPLES)]  # fmt: skip
        medians.append(statistics.median(samples))
        lines = (f"BenchmarkWork 1 {1e9 * sample:.0f} ns/op" for sample in samples)
        (BUILD / f"{name}.txt").write_text("\n".join(lines) + "\n")
    said = _run(BUILD / "benchstat", "-format", "csv", BUILD / "a.txt", BUILD / "b.txt")
    row = next(row for row in csv.reader(io.StringIO(said)) if row and row[0].startswith("Work"))
    ratio = medians[1] / medians[0]
    return Finding(ratio, None, "" if row[5] == "~" else _claim(ratio))


def _claim(ratio: float) -> str:
    return "slower" if ratio > 1 else "faster"


PEERS = {
    "hyperfine": judge_by_hyperfine,
    "with Welch": judge_by_welch,
    "pyperf": judge_by_pyperf,
    "benchstat": judge_by_benchstat,
}

"""A run that fails is one failing run: its trial keeps the others, and the report says how often it happens."""

import json
from pathlib import Path

import numpy as np
import pytest

from guestmark.stats.tails import estimate_failed_share
from tests.framework.command_line import CommandLine

SOMETIMES = """
import pathlib, sys
counter = pathlib.Path(sys.argv[1])
number = int(counter.read_text()) if counter.exists() else 0
counter.write_text(str(number + 1))
sys.exit(3 if number % 5 == 4 else 0)
"""


@pytest.fixture
def failing(tmp_path: Path) -> tuple[str, str, str]:
    """A command of which one run in five fails."""
    script = tmp_path / "sometimes.py"
    script.write_text(SOMETIMES)
    return ("python3", str(script), str(tmp_path / "count"))


def test_one_failing_run_does_not_take_its_trial_with_it(
    guestmark: CommandLine, failing: tuple[str, str, str]
) -> None:
    """Where one run in five fails "21 of 23 trials failed"."""
    found = guestmark("exec", "--blocks", 5, "--iterations", 10, "--json", "-", "--", *failing)
    assert found.status == 1
    (cell, *_) = json.loads(found.stdout)["cells"]
    assert [trial["status"] for trial in cell["trials"]] == ["ok"] * 5
    told = [{**cell["shared"]["attestation"], **trial["attestation"]} for trial in cell["trials"]]
    kept = [len(trial["iterations"]["wall_s"]) for trial in cell["trials"]]
    assert [(each["failed_runs"], each["tried_runs"]) for each in told] == [(2, 10)] * 5
    assert kept == [8] * 5
    assert cell["status"] == "partial"
    assert cell["reason"].startswith("fails in 20 % [")
    assert "of runs (10 of 50): the command failed with exit status 3" in cell["reason"]


def test_the_report_says_how_often(guestmark: CommandLine, failing: tuple[str, str, str]) -> None:
    found = guestmark("exec", "--blocks", 3, "--iterations", 10, "--", *failing)
    assert found.status == 1
    assert "fails in 20 % [" in " ".join(found.stdout.split())


def test_a_trial_of_failing_runs_alone_fails(guestmark: CommandLine) -> None:
    found = guestmark("exec", "--blocks", 2, "--iterations", 4, "--json", "-", "--", "false")
    assert found.status == 3
    (cell, *_) = json.loads(found.stdout)["cells"]
    assert {trial["status"] for trial in cell["trials"]} == {"failed"}
    assert {trial["cause"] for trial in cell["trials"]} == {"exit status"}


@pytest.mark.parametrize("runs", [1, 7])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_the_interval_of_the_share_holds_it(runs: int, share: float) -> None:
    generator = np.random.default_rng(runs)
    held = 0
    for _ in range(200):
        failed = generator.binomial(runs, share, 20).astype(float)
        found, (low, high) = estimate_failed_share(failed, np.full(20, float(runs)))
        assert found == pytest.approx(failed.sum() / (20 * runs))
        held += low <= share <= high
    assert held >= 182  # fewer once in 100 such tests at .95
    with pytest.raises(ValueError, match="at least one run"):
        estimate_failed_share(np.zeros(2), np.zeros(2))

"""bench/truth: what it counts, and that its contest runs from end to end."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from bench.truth import results

CHECKOUT = Path(__file__).resolve().parents[3]


def record(scenario: str, ours: str, theirs: str) -> dict[str, object]:
    judged = {"ratio": 1.0, "half_width": 0.02, "claim": ours, "seconds": 5.0}
    peer = {"ratio": 1.0, "half_width": None, "claim": theirs}
    return {
        "scenario": scenario, "platform": "host", "guestmark": judged, "peers": {"seconds": 5.0, "pyperf": peer},
    }  # fmt: skip


def test_every_claim_about_equal_commands_is_false() -> None:
    records = [record("A/A", claim, "faster") for claim in ("", "slower", "faster", "")]
    assert results.count_claims(records, "guestmark", "A/A") == (0, 2, 4)
    assert results.count_claims(records, "pyperf", "A/A") == (0, 4, 4)
    assert results.count_claims(records, "benchstat", "A/A") == (0, 0, 0)


def test_a_slowdown_is_found_as_one_or_not_at_all() -> None:
    records = [record("+5 %", claim, "slower") for claim in ("slower", "faster", "")]
    assert results.count_claims(records, "guestmark", "+5 %") == (1, 1, 3)
    assert results.count_claims(records, "pyperf", "+5 %") == (3, 0, 3)
    assert "1/3 [0.06, 0.79]; ±2.0 %; 1 faster" in results.render_tables(records)


def test_wilsons_interval() -> None:
    assert results.wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert results.wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("hyperfine") is None or shutil.which("gcc") is None, reason="needs hyperfine and gcc"
)
def test_the_short_form(tmp_path: Path) -> None:
    into = tmp_path / "comparisons.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "bench.truth", "--short", "--into", into], cwd=CHECKOUT, capture_output=True,
        text=True, env=os.environ | {"PYTHONPATH": "python"}, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compared = [json.loads(line) for line in into.read_text().splitlines()]
    assert compared
    assert "| A/A | host |" in done.stdout
    assert all("hyperfine" in found["peers"] for found in compared)
    equal = [found["guestmark"]["ratio"] for found in compared if found["scenario"].startswith("A/A")]
    assert equal
    assert all(0.5 < ratio < 2 for ratio in equal)  # a busy host may make noise, not another factor

"""What a run's own values say about the run: carry-over, position, trend, clocks."""

from typing import Any

import numpy as np
import pytest

from guestmark.stats import Finding, Severity, detect_clock_disagreement, detect_order_effects, detect_trend
from guestmark.stats.validity import subtract_carry_over
from tests.framework.known import known

CELLS = ("host", "host#2", "tcg")
KIND = {"host#2": "host"}


def run(
    seed: int,
    blocks: int = 20,
    *,
    carry: float = 0.0,
    at_first: float = 0.0,
    spikes: float = 0.0,
    effect: float = 0.0,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Values and positions, in random order; after tcg, or in first position, a trial takes longer."""
    generator = np.random.default_rng(seed)
    values = {name: np.empty(blocks) for name in CELLS}
    positions = {name: np.empty(blocks) for name in CELLS}
    before = ""
    for block in range(blocks):
        common = generator.normal(0, 0.05)
        for place, i in enumerate(generator.permutation(len(CELLS))):
            log = common + generator.normal(0, 0.02) + carry * (before == "tcg") + at_first * (place == 0)
            log += (generator.random() < spikes) * generator.exponential(0.5) + effect * (CELLS[i] == "tcg")
            values[CELLS[i]][block], positions[CELLS[i]][block] = np.exp(log), place
            before = CELLS[i]
    return values, positions


def found(seed: int, **options: Any) -> dict[str, Finding]:
    return {
        finding.name: finding for finding in detect_order_effects(*run(seed, **options), "host", kind=KIND)
    }


def test_what_a_guest_leaves_behind_is_found_and_corrected_for() -> None:
    findings = [found(seed, carry=0.05, effect=0.1).get("carry-over") for seed in range(40)]
    warned = [finding for finding in findings if finding is not None and finding.severity is Severity.WARNING]
    assert len(warned) >= 34
    assert np.mean([finding.effect for finding in warned]) == pytest.approx(0.05, abs=0.01)
    ratios = np.array([finding.corrected["tcg"] for finding in warned])
    assert np.log(ratios[:, 0]).mean() == pytest.approx(0.1, abs=0.006)
    covered = (ratios[:, 1] <= np.exp(0.1)) & (np.exp(0.1) <= ratios[:, 2])
    assert covered.mean() >= 0.85
    assert "ratios are corrected for it, by up to" in warned[0].message
    assert not any(finding.cells for finding in warned)


def test_what_trials_owe_is_what_is_subtracted() -> None:
    values, positions = run(3, 40, carry=0.05, effect=0.1)
    finding = found(3, blocks=40, carry=0.05, effect=0.1)["carry-over"]
    freed = {name: subtract_carry_over(values[name], finding.carried, name) for name in CELLS}
    again = detect_order_effects(freed, positions, "host", kind=KIND)
    assert "carry-over" not in {other.name for other in again}
    assert 0 < known(finding.carried).error["tcg"] < 0.02


@pytest.mark.parametrize("options", [{}, {"spikes": 0.1}, {"blocks": 8}])
def test_sound_runs_are_seldom_warned_of(options: dict[str, Any]) -> None:
    warned = [
        [one for one in found(seed, **options).values() if one.severity is Severity.WARNING]
        for seed in range(200)
    ]
    wrong = sum(map(bool, warned))
    assert wrong <= 9  # one in a hundred is two; more than nine would have a chance of .0001


def test_a_slow_first_position_is_a_warning_and_no_bias() -> None:
    findings = [found(seed, at_first=0.05).get("position") for seed in range(20)]
    assert sum(finding is not None for finding in findings) >= 18
    assert {finding.severity for finding in findings if finding is not None} == {Severity.WARNING}


def test_a_spike_hides_no_carry_over() -> None:
    hits = sum("carry-over" in found(seed, carry=0.06, spikes=0.05) for seed in range(40))
    assert hits >= 30


def test_order_that_was_not_random_or_too_few_blocks_say_nothing() -> None:
    values, positions = run(1, carry=0.05)
    fixed = {name: np.full(20, float(i)) for i, name in enumerate(CELLS)}
    assert detect_order_effects(values, fixed, "host") == ()
    few = {name: series[:3] for name, series in values.items()}
    assert detect_order_effects(few, {name: series[:3] for name, series in positions.items()}, "host") == ()


def test_failed_trials_ran_all_the_same() -> None:
    values, positions = run(2, 40, carry=0.05)
    for name in CELLS:
        values[name][::7] = np.nan
    assert "carry-over" in {
        finding.name for finding in detect_order_effects(values, positions, "host", kind=KIND)
    }


def test_a_ratio_that_changes_in_the_course_of_the_run_is_found() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, 20)
    growing = noise + np.linspace(0, 0.1, 20)
    growing[4] = np.nan
    finding = detect_trend(growing, 0.03)
    assert known(finding).severity is Severity.WARNING
    assert known(finding).effect == pytest.approx(0.105, abs=0.02)
    assert detect_trend(noise, 0.03) is None
    assert known(detect_trend(noise / 10 + np.linspace(0, 0.01, 20), 0.03)).severity is Severity.NOTE
    assert detect_trend(np.full(20, 0.1), 0.03) is None
    assert detect_trend(growing[:6], 0.03) is None


def test_a_trend_is_seldom_seen_where_there_is_none() -> None:
    d = np.random.default_rng(2).normal(0, 0.02, (1_000, 12))
    assert sum(detect_trend(row, 0.03) is not None for row in d) <= 22


def test_clocks_that_disagree() -> None:
    host = [1.0, 2.0, 3.0]
    assert detect_clock_disagreement(host, [1.001, 2.001, 3.0]) is None
    assert known(detect_clock_disagreement(host, [0.98, 1.96, 2.94])).severity is Severity.WARNING
    far = detect_clock_disagreement(host, [0.9, 1.8, 2.7])
    assert known(far).severity is Severity.SEVERE
    assert known(far).effect == pytest.approx(0.1)
    assert "-10.0 %" in known(far).message
    assert detect_clock_disagreement([0.0, float("nan")], [1.0, 1.0]) is None


def test_clocks_are_not_read_more_finely_than_messages_allow() -> None:
    assert detect_clock_disagreement([0.010, 0.011], [0.0092, 0.0102]) is None
    assert detect_clock_disagreement([0.010, 0.011], [0.0088, 0.0098]) is not None

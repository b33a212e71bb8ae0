"""Several runs of one question: the session is the unit, and what one session has in common misleads nobody."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from guestmark.core.gate import Gate
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import open_ledger
from guestmark.ledger.store import Ledger
from guestmark.stats.across_runs import (
    FEWEST_RUNS,
    ChangeVerdict,
    PastRatio,
    compare_two_runs,
    estimate_single_session_error,
    mean_over_sessions,
)
from guestmark.stats.gates import MeasuredRatio, Outcome, RatioClaim, judge_ratios
from tests.framework.known import known
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import EXEC
from tests.unit.stats.test_history import ENVIRONMENT, a_run

ELSEWHERE = {**ENVIRONMENT, "machine": "another"}


def past(log_ratio: float) -> PastRatio:
    ratio = math.exp(log_ratio)
    return PastRatio("", 0.0, ratio, ratio * 0.999, ratio * 1.001, 10)


@pytest.mark.parametrize("sessions", [2, 3, 5, 12])
def test_the_mean_over_sessions_is_missed_one_time_in_twenty(sessions: int) -> None:
    generator = np.random.default_rng(sessions)
    missed = 0
    for _ in range(3000):
        found = mean_over_sessions(np.exp(generator.normal(0.7, 0.03, sessions)).tolist())
        low, high = known(found.ci)
        missed += not low <= math.exp(0.7) <= high
    assert 0.035 <= missed / 3000 <= 0.065
    assert mean_over_sessions([2.0]).ci is None
    with pytest.raises(ValueError, match="above 0"):
        mean_over_sessions([])


@pytest.mark.parametrize("runs", [FEWEST_RUNS, 10])
def test_one_session_strays_further_one_time_in_twenty(runs: int) -> None:
    """The claim is about the mean of all sessions; Student's prediction interval is about the mean of those seen."""
    generator = np.random.default_rng(runs)
    further = 0
    for _ in range(3000):
        *earlier, now = generator.normal(0, 0.02, runs + 1)
        reach = math.log1p(known(estimate_single_session_error([past(log) for log in earlier])))
        further += abs(now) > reach
    assert further / 3000 <= 0.05
    assert estimate_single_session_error([past(0.0)] * (FEWEST_RUNS - 1)) is None


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def ids(ledger: Ledger) -> list[str]:
    return [run.id for run in ledger.list_runs()]


@pytest.mark.long
def test_sessions_that_differ_decide_what_one_session_would_claim(ledger: Ledger, tmp_path: Path) -> None:
    for ratio, where in ((2.3, ENVIRONMENT), (2.0, ELSEWHERE), (2.15, ENVIRONMENT)):
        a_run(ledger, ratio, environment=where)
    first, second, third = ids(ledger)
    limit = ("--fail-if", "uml > x2.1")
    alone = guestmark("gate", first, *limit, GUESTMARK_LEDGER=ledger.where)
    assert alone.returncode == 1  # its blocks agree, and it is one session
    together = guestmark(
        "gate",
        first,
        second,
        third,
        *limit,
        "--junit",
        str(tmp_path / "j.xml"),
        GUESTMARK_LEDGER=ledger.where,
    )
    assert together.returncode == 125, together.stderr
    assert "3 sessions" in together.stdout
    properties = ElementTree.parse(tmp_path / "j.xml").iter("property")
    assert [each.get("value") for each in properties] == [first, second, third]
    kept = guestmark(
        "gate", first, second, third, "--fail-if", "> x3", "--json", "-", GUESTMARK_LEDGER=ledger.where
    )
    assert kept.returncode == 0
    document = json.loads(kept.stdout)
    assert document["runs"] == [first, second, third]
    assert document["gates"][0]["n"] == 3
    assert document["gates"][0]["ratio"] == pytest.approx((2.3 * 2.0 * 2.15) ** (1 / 3), rel=0.01)
    assert guestmark("gate", first, first, *limit, GUESTMARK_LEDGER=ledger.where).returncode == 2
    assert guestmark("gate", first, second, GUESTMARK_LEDGER=ledger.where).returncode == 2  # no gate
    unknown = guestmark("gate", first, second, "--fail-if", "umk > 5%", GUESTMARK_LEDGER=ledger.where)
    assert unknown.returncode == 2


def test_a_session_without_the_cell_is_not_passed_over(ledger: Ledger) -> None:
    for blocks in (6, 6, 1):
        a_run(ledger, 2.0, blocks=blocks)
    found = guestmark(
        "gate", *ids(ledger), "--fail-if", "uml > x3", "--json", "-", GUESTMARK_LEDGER=ledger.where
    )
    (gate,) = json.loads(found.stdout)["gates"]
    assert (gate["outcome"], found.returncode) in {("kept", 0), ("unmeasured", 128)}
    if gate["outcome"] == "kept":
        assert gate["n"] == 3


def other_program(name: str) -> Cell:
    params = {**EXEC.params, "command": [name]}
    return Cell("uml", replace(EXEC, params=params), PlatformSpec.read("uml"), {}, processors=1)


def test_runs_of_different_programs_are_no_sessions_of_one(ledger: Ledger) -> None:
    for ratio, program in ((1.3, "./a"), (1.0, "./b"), (1.0, "./b"), (1.0, "./b")):
        a_run(ledger, ratio, uml=other_program(program))
    first, *others = ids(ledger)
    for words in (
        ("gate", first, *others[:2], "--fail-if", "uml > +5%"),
        ("compare", f"{first},{others[0]}", "last"),
    ):
        told = guestmark(*words, GUESTMARK_LEDGER=ledger.where)
        assert told.returncode == 2
        assert "different questions about" in told.stderr
    assert guestmark("gate", *others, "--fail-if", "uml > +5%", GUESTMARK_LEDGER=ledger.where).returncode == 0


def test_a_gate_about_power_cuts_is_judged_in_each_of_several_runs(ledger: Ledger) -> None:
    gates = ("uml > x3", "uml lost")
    for _ in range(3):
        a_run(ledger, 2.0, gates=gates)
    told = guestmark("gate", *ids(ledger), "--json", "-", GUESTMARK_LEDGER=ledger.where)
    found = [(gate["gate"], gate["outcome"]) for gate in json.loads(told.stdout)["gates"]]
    assert found == [("uml > x3", "kept"), *[("uml lost", "unmeasured")] * 3]
    assert told.returncode == 128


def test_a_cell_that_failed_in_the_later_run_fails_a_limit_on_all(ledger: Ledger) -> None:
    for ratio in (2.0, 2.02, 1.99, 2.01, 2.0):
        a_run(ledger, ratio)
    blocks = 6
    a_run(ledger, 2.0, failing=[("uml", block) for block in range(blocks)])
    told = guestmark("compare", ids(ledger)[0], "last", "--fail-above", "50%", GUESTMARK_LEDGER=ledger.where)
    assert told.returncode == 128, told.stdout


def test_the_level_of_a_comparison_is_divided_once() -> None:
    """What is called higher in the table breaks a limit at no change, and the other way round."""
    generator = np.random.default_rng(3)
    agreed = {True: 0, False: 0}
    for _ in range(300):
        earlier = [past(each) for each in generator.normal(0, 0.01, 8)]
        before, after = past(generator.normal(0, 0.01)), past(generator.normal(0.05, 0.01))
        change = compare_two_runs(before, after, earlier, 10)
        gate = Gate("> x1", (), "", 1.0, True)
        ratio = MeasuredRatio(change.ratio, change.ci, 10, change.runs - 1, claims=change.claims)
        claims = [RatioClaim(gate, f"cell {number}", "wall_s", ratio) for number in range(10)]
        higher = change.verdict is ChangeVerdict.HIGHER
        assert {judged.outcome is Outcome.BROKEN for judged in judge_ratios(claims)} == {higher}
        agreed[higher] += 1
    assert min(agreed.values()) > 20


def test_sides_of_several_sessions_are_compared_session_by_session(ledger: Ledger) -> None:
    for ratio in (2.0, 2.02, 1.99, 2.4, 2.43, 2.39):
        a_run(ledger, ratio, environment=ELSEWHERE if ratio in {2.02, 2.43} else ENVIRONMENT)
    every = ids(ledger)
    before, after = ",".join(every[:3]), ",".join(every[3:])
    shown = guestmark("compare", before, after, "--fail-if", "uml > +10%", GUESTMARK_LEDGER=ledger.where)
    assert shown.returncode == 1, shown.stderr
    assert "Sessions: 3 of before, 3 of after." in shown.stdout
    assert "session by session" in shown.stdout
    assert "broken uml > +10%" in shown.stdout
    told = json.loads(
        guestmark("compare", before, after, "--json", "-", GUESTMARK_LEDGER=ledger.where).stdout
    )
    assert told["schema"] == "guestmark-sessions/1"
    assert told["sides"] == {"before": every[:3], "after": every[3:]}
    ratio = next(cell for cell in told["cells"] if cell["of"] == "wall_s vs host")
    assert ratio["verdict"] == "higher"
    assert ratio["sessions"] == [3, 3]
    one = guestmark("compare", f"{every[0]},", every[1], "--fail-if", "> 5%", GUESTMARK_LEDGER=ledger.where)
    assert one.returncode == 125
    assert "side with one session does not show how much" in " ".join(one.stdout.split())
    for wrong in ((before, after, every[0]), (before, before), (",", after)):
        assert guestmark("compare", *wrong, GUESTMARK_LEDGER=ledger.where).returncode == 2


def test_a_gate_says_how_far_one_session_strays(ledger: Ledger) -> None:
    for ratio in (2.0, 2.1, 1.95, 2.05):
        a_run(ledger, ratio)
    limit = ("--fail-if", "uml > x3")
    few = guestmark("gate", "last", *limit, GUESTMARK_LEDGER=ledger.where)
    assert "one session" not in few.stdout  # three earlier runs say too little
    a_run(ledger, 2.0)
    told = guestmark("gate", "last", *limit, GUESTMARK_LEDGER=ledger.where)
    assert "one session lies within ±" in " ".join(told.stdout.split())
    assert "(from 4 earlier runs here)" in " ".join(told.stdout.split())

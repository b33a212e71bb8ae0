"""Runs beside each other: the variation between runs is learned, and what cannot be known is not claimed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from guestmark.core.errors import UsageError
from guestmark.ledger import open_ledger
from guestmark.ledger.store import Ledger
from guestmark.report.limits_between_runs import judge_comparisons
from guestmark.report.render import markdown
from guestmark.report.run_comparison import compare_runs, make_document, make_page
from guestmark.stats.across_runs import FEWEST_RUNS, ChangeVerdict, PastRatio, compare_two_runs
from guestmark.stats.conditions.surroundings import compare_environments
from guestmark.stats.gates import Outcome
from tests.framework.known import known
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import host_uml_tcg, renamed
from tests.unit.stats.test_history import ENVIRONMENT, a_run


def past(log_ratio: float, half: float = 0.01, blocks: int = 10) -> PastRatio:
    ratio = math.exp(log_ratio)
    return PastRatio("", 0.0, ratio, ratio * math.exp(-half), ratio * math.exp(half), blocks)


def test_without_earlier_runs_nothing_is_claimed() -> None:
    found = compare_two_runs(past(0.0), past(0.5), [past(0.0)] * (FEWEST_RUNS - 1))
    assert (found.verdict, found.ci, found.spread) == (ChangeVerdict.UNKNOWN, None, None)
    assert found.ratio == pytest.approx(math.exp(0.5))
    assert found.within[0] > 1.5


def test_what_runs_differ_by_anyway_is_no_change() -> None:
    noisy = [past(value) for value in (0.0, 0.1, -0.1, 0.05, -0.05, 0.08)]
    quiet = [past(value) for value in (0.0, 0.002, -0.002, 0.001, -0.001, 0.0)]
    assert compare_two_runs(past(0.0), past(0.1), noisy).verdict is ChangeVerdict.ALIKE
    assert compare_two_runs(past(0.0), past(0.1), quiet).verdict is ChangeVerdict.HIGHER
    assert compare_two_runs(past(0.1), past(0.0), quiet).verdict is ChangeVerdict.LOWER
    assert known(compare_two_runs(past(0.0), past(0.1), noisy).spread) > 0.05
    assert known(compare_two_runs(past(0.0), past(0.1), quiet).spread) == 0.0


@pytest.mark.parametrize(("between", "runs"), [(0.0, 4), (0.02, 4), (0.05, 8), (0.02, 20)])
def test_equal_runs_are_called_different_one_time_in_twenty(between: float, runs: int) -> None:
    """What blocks alone say of equal runs is wrong far more often as soon as runs vary."""
    generator = np.random.default_rng(3)
    blocks, inside = 10, 0.01
    half = 2.262 * inside  # Student's .975 quantile with 9 degrees of freedom
    called = alone = 0
    for _ in range(1500):
        logs = generator.normal(0, math.hypot(between, inside), runs + 2)
        before, after, *earlier = [past(log, half, blocks) for log in logs]
        found = compare_two_runs(before, after, earlier)
        called += found.verdict is not ChangeVerdict.ALIKE
        alone += not found.within[0] <= 1 <= found.within[1]
    assert called / 1500 <= 0.065
    if between:
        assert alone / 1500 > 0.2


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def test_memory_that_differs_by_what_a_kernel_keeps_is_the_same() -> None:
    def found(before: int, after: int) -> dict[str, str]:
        return compare_environments({"memory_bytes": before}, {"memory_bytes": after})[1]

    assert found(1_424_740_352, 1_414_057_984) == {}
    assert found(2 << 30, 4 << 30) == {"memory": "2 GiB → 4 GiB"}


def test_cells_are_matched_and_surroundings_told(ledger: Ledger) -> None:
    for _ in range(5):
        a_run(ledger, 2.0, environment={**ENVIRONMENT, "packages": {"libc6": "2.36-9", "seabios": "1.16"}})
    upgraded = {"kernel": {"release": "6.12"}, "packages": {"libc6": "2.41-12", "new": "1"}}
    a_run(ledger, 2.4, environment={**ENVIRONMENT, **upgraded})
    ids = [run.id for run in ledger.list_runs()]
    found = compare_runs(ledger, ledger.load_run(ids[0]), ledger.load_run(ids[-1]))
    (pair,) = found.pairs
    assert pair.cell == "uml"
    assert pair.change.runs == 4
    assert pair.change.ratio == pytest.approx(1.2, rel=0.01)
    assert pair.change.verdict is ChangeVerdict.HIGHER
    assert found.decisive == {"kernel": "6.1.0-41-amd64 → 6.12"}
    assert found.other == {"package libc6": "2.36-9 → 2.41-12"}
    text = markdown.render(make_page([found]))
    assert "kernel 6.1.0-41-amd64 → 6.12" in text
    assert "higher" in text
    limits = ["uml > +10%", "uml wall_s > x1.3", "> +20%", "< -10%", "< +10%", "< +40%"]
    judged = judge_comparisons([found], limits)
    assert [one.outcome for one in judged] == [
        Outcome.BROKEN, Outcome.KEPT, Outcome.UNDECIDED, Outcome.KEPT, Outcome.KEPT, Outcome.BROKEN,
    ]  # fmt: skip
    assert {(one.cell, one.metric) for one in judged} == {("uml", "wall_s")}
    assert "broken uml > +10% (uml, wall_s): ×1.2" in markdown.render(make_page([found], judged)).replace(
        "\\", ""
    )
    assert [gate["outcome"] for gate in make_document([found], judged)["gates"]][:2] == ["broken", "kept"]
    with pytest.raises(UsageError, match="unknown"):
        judge_comparisons([found], ["tgc > +5%"])
    assert make_document([found])["comparisons"][0]["cells"][0]["earlier_runs"] == 4


def test_of_two_machines_nothing_is_claimed(ledger: Ledger) -> None:
    for _ in range(5):
        a_run(ledger, 2.0)
    a_run(ledger, 4.0, environment={**ENVIRONMENT, "machine": "another"})
    ids = [run.id for run in ledger.list_runs()]
    found = compare_runs(ledger, ledger.load_run(ids[0]), ledger.load_run(ids[-1]))
    assert not found.same_host
    assert [pair.change.verdict for pair in found.pairs] == [ChangeVerdict.UNKNOWN]
    (judged,) = judge_comparisons([found], ["> +10%"])
    assert judged.outcome is Outcome.UNDECIDED
    assert judged.ratio == pytest.approx(2, rel=0.01)
    assert "another machine" in markdown.render(make_page([found]))


def test_on_the_command_line(ledger: Ledger) -> None:
    for _ in range(2):
        a_run(ledger, 2.0)
    first = ledger.list_runs()[0].id
    shown = guestmark("compare", first, "last", "--fail-above", "5%", GUESTMARK_LEDGER=ledger.where)
    assert shown.returncode == 125
    assert "The recorded environments do not differ" in shown.stdout
    assert "no verdict" in shown.stdout
    limited = guestmark("compare", first, "last", "--fail-if", "uml > +5%", GUESTMARK_LEDGER=ledger.where)
    assert limited.returncode == 125
    assert "undecided uml > +5%" in limited.stdout
    assert guestmark("compare", first, "--fail-if", "> 5%", GUESTMARK_LEDGER=ledger.where).returncode == 2
    told = guestmark("compare", first, "last", "--json", "-", GUESTMARK_LEDGER=ledger.where)
    assert json.loads(told.stdout)["schema"] == "guestmark-comparison/1"
    assert guestmark("compare", first, GUESTMARK_LEDGER=ledger.where).returncode == 2
    assert guestmark("compare", first, first, GUESTMARK_LEDGER=ledger.where).returncode == 2


def test_values_stand_side_by_side_also_where_no_ratio_does(ledger: Ledger) -> None:
    for ratio in (2.0, 3.0):
        a_run(ledger, ratio, blocks=5)  # too few for a ratio's interval
    older, newer = (ledger.load_run(run.id) for run in ledger.list_runs())
    found = compare_runs(ledger, older, newer)
    assert found.pairs == ()
    by_cell = {each.cell: each for each in found.values}
    uml = by_cell["uml"]
    assert known(uml.after).median / known(uml.before).median == pytest.approx(1.5, rel=0.03)
    text = markdown.render(make_page([found]))
    assert "after / before" in text
    assert "×1.5" in text
    assert "no verdict" in text
    (made,) = make_document([found])["comparisons"]
    assert [one["cell"] for one in made["values"]] == list(by_cell)


def test_two_runs_of_one_command_each_are_compared_whatever_it_is(tmp_path: Path) -> None:
    file = str(tmp_path / "l.sqlite")
    for seconds in ("0.01", "0.2"):
        done = guestmark(
            "exec", "--on", "host", "--null", "none", "-r", "2", "--ledger", file, "sleep", seconds
        )
        assert done.returncode == 0
    with open_ledger(file, writable=False) as opened:
        older, newer = (opened.load_run(run.id) for run in opened.list_runs())
        (values,) = compare_runs(opened, older, newer).values
    assert known(values.after).median > 2 * known(values.before).median


@pytest.mark.parametrize("label", ["sysbench cpu run", "./new"])
def test_runs_of_different_commands_are_told_apart(ledger: Ledger, label: str) -> None:
    """Their times stood side by side under the platforms' names alone, as if of one command."""
    stored = []
    for run in (host_uml_tcg(blocks=8), renamed(host_uml_tcg(blocks=8), label)):
        run_id = ledger.create_run(run.plan, {}, run.seed)
        for trial in run.trials:
            ledger.store_trial(run_id, trial)
        stored.append(ledger.load_run(run_id))
    text = markdown.render(make_page([compare_runs(ledger, stored[0], stored[1])]))
    said = f"Different workloads: sysbench cpu run before, {label} after"
    assert text.replace("\\", "").count(said) == (label == "./new")

"""What `stats` decides for reports: executions, matrices, published figures, and limits between runs."""

import math

import pytest

from guestmark.core.gate import Gate
from guestmark.core.metric import Better
from guestmark.core.metric_spec import WALL
from guestmark.core.model import Published, PublishedFigure
from guestmark.stats.analysis import analyse_run
from guestmark.stats.distribution import arrange_matrix, find_quartiles
from guestmark.stats.executions import collect_executions, collect_iterations, compute_relative_speed
from guestmark.stats.gates import MeasuredRatio, Outcome, RatioClaim, judge_ratios
from guestmark.stats.published import compute_published_ratio, convert_ratio, find_figure, is_same_work
from tests.framework.known import known
from tests.framework.runs import host_uml_tcg

LIMIT = Gate("tcg > +5%", ("tcg",), "", 1.05, True)


def test_executions_are_described_as_hyperfine_does() -> None:
    run = host_uml_tcg(blocks=3)
    trials = [trial for trial in run.trials if trial.cell_id == "host"]
    found = known(collect_executions(trials, WALL.name))
    assert list(found.values) == collect_iterations(trials, WALL.name)
    assert min(found.values) <= found.median <= max(found.values)
    assert collect_executions(trials, "no such metric") is None
    assert known(collect_executions(trials[:1], WALL.name)).mean > 0


def test_errors_of_a_quotient_add_as_relative_errors() -> None:
    quotient, error = compute_relative_speed(2.0, 0.2, 1.0, 0.1)
    assert quotient == 2.0
    assert error == pytest.approx(2 * math.hypot(0.1, 0.1))
    assert compute_relative_speed(2.0, None, 1.0, 0.1) == (2.0, None)


def test_quantiles_are_those_of_the_values() -> None:
    assert find_quartiles([4.0, 1.0, 2.0, 3.0, 5.0]) == (1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_matrix_needs_two_things_that_vary() -> None:
    run = host_uml_tcg(blocks=6)
    results = analyse_run(run.plan, run.trials).workloads[0].shown_cells
    platforms = {result.cell.id: str(result.cell.platform) for result in results}
    assert arrange_matrix([("platform", platforms)], results, WALL) is None


def test_the_published_ratio_of_two_cells_needs_two_figures() -> None:
    cells = {cell.id: cell for cell in host_uml_tcg().plan.cells}
    host, uml, tcg = cells["host"], cells["uml"], cells["tcg"]
    figures = (PublishedFigure({"platform": "uml"}, 8.0, 4.0), PublishedFigure({"platform": "tcg"}, 32.0))
    published = Published("a paper", "wall_s", "s", "time", figures)
    assert compute_published_ratio(tcg, uml, published) == 4.0
    assert compute_published_ratio(tcg, host, published) is None
    assert find_figure(host, published) is None


def test_times_and_throughputs_of_the_same_work_are_one_publication() -> None:
    def publish(percent_of: str, **values: float) -> Published:
        figures = tuple(PublishedFigure({"platform": name}, value) for name, value in values.items())
        return Published("", "", "", percent_of, figures)

    seconds = publish("time", a=2.0, b=4.0)
    assert is_same_work(seconds, publish("throughput", a=50.0, b=25.0))
    assert not is_same_work(seconds, publish("time", a=50.0, b=25.0))
    assert not is_same_work(seconds, publish("throughput", a=7.0, b=7.0))
    # Any two figures of one cell have a product.
    assert not is_same_work(publish("time", a=2.0), publish("throughput", a=7.0))
    assert convert_ratio(2.0, "time", Better.HIGHER) == 0.5


@pytest.mark.parametrize(
    ("ratio", "ci", "outcome"),
    [
        (1.2, (1.15, 1.25), Outcome.BROKEN),
        (1.0, (0.98, 1.02), Outcome.KEPT),
        (1.05, (1.0, 1.1), Outcome.UNDECIDED),
    ],
)
def test_a_limit_between_runs_is_judged_by_the_interval(
    ratio: float, ci: tuple[float, float], outcome: Outcome
) -> None:
    claim = RatioClaim(LIMIT, "tcg", "wall_s", MeasuredRatio(ratio, ci, 12, 10))
    (judged,) = judge_ratios([claim])
    assert judged.outcome is outcome


def test_more_claims_need_a_clearer_one() -> None:
    """A single claim that is just broken is undecided among ten, as each has a tenth of the level."""
    claim = RatioClaim(LIMIT, "tcg", "wall_s", MeasuredRatio(1.1, (1.055, 1.147), 12, 10))
    assert judge_ratios([claim])[0].outcome is Outcome.BROKEN
    assert {judged.outcome for judged in judge_ratios([claim] * 10)} == {Outcome.UNDECIDED}


def test_a_claim_without_a_ratio_says_why() -> None:
    missing, unknown = judge_ratios(
        [
            RatioClaim(LIMIT, "tcg", "wall_s", None),
            RatioClaim(LIMIT, "tcg", "wall_s", MeasuredRatio(1.5, None, 3, 2, "too few runs")),
        ]
    )
    assert (missing.outcome, missing.reason) == (Outcome.UNMEASURED, "at least one run has no such ratio")
    assert (unknown.outcome, unknown.reason) == (Outcome.UNDECIDED, "too few runs")

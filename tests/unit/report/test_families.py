"""Sentences about many cells share one error rate: an unchanged set is called changed in one report of twenty."""

import math
from dataclasses import replace

import numpy as np
import pytest

from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.report.ratio_history import RatioSeries, SeriesPoint, detect_drifts
from guestmark.report.ratio_history import make_document as series_document
from guestmark.report.sections import earlier_runs
from guestmark.stats.across_runs import ChangeVerdict, History, PastRatio, compare_two_runs
from guestmark.stats.analysis import analyse_run
from tests.framework.known import known
from tests.framework.runs import EXEC, constructed

CELLS = 11
REPORTS = 120
MOST = 13  # more of these in one of 100 such tests at .05
_BETWEEN = 0.03  # spread of ratios of one thing measured on different days
_HALF = 0.02  # of the intervals inside a run


def earlier(generator: np.random.Generator, middle: float, runs: int) -> list[PastRatio]:
    """What unchanged runs found of a ratio that is `middle`, a log."""
    found = []
    for number, d in enumerate(generator.normal(middle, math.hypot(_BETWEEN, _HALF / 2), runs)):
        found.append(
            PastRatio(str(number), float(number), math.exp(d), math.exp(d - _HALF), math.exp(d + _HALF), 12)
        )
    return found


@pytest.mark.parametrize("runs", [5, 10, 20])
def test_a_report_calls_unchanged_cells_changed_in_one_of_twenty(runs: int) -> None:
    """Eleven cells at 95 % each: .27 of reports with 5 earlier runs, .43 with 10."""
    base = Cell("base", EXEC, PlatformSpec.read("tcg"), {"memory": "1G"}, True)
    cells = [
        replace(base, id=f"cell {n}", baseline=False, factors={"memory": f"{n + 2}G"}) for n in range(CELLS)
    ]
    run = constructed([(base, 1.0), *((cell, 1.0) for cell in cells)])
    analysis = analyse_run(run.plan, run.trials)
    metric = run.plan.metrics[0].name
    now = {
        each.cell.id: known(known(each.comparison.get(metric)).ratio)
        for each in analysis.cells
        if each.comparison
    }
    generator = np.random.default_rng(runs)
    false = 0
    for _ in range(REPORTS):
        ratios = {
            cell: earlier(
                generator, math.log(ratio) - generator.normal(0, math.hypot(_BETWEEN, _HALF / 2)), runs
            )
            for cell, ratio in now.items()
        }
        beside = replace(analysis, history=History(ratios=ratios))
        told = [earlier_runs.make_document(each, beside) for each in beside.cells]
        false += any(found["outside"] for found in told if found is not None)
    assert false <= MOST


@pytest.mark.parametrize("runs", [6, 12])
def test_histories_drift_in_one_report_of_twenty(runs: int) -> None:
    generator = np.random.default_rng(runs)
    false = 0
    for _ in range(REPORTS):
        series = [
            RatioSeries(
                f"cell {n}",
                tuple(SeriesPoint(run, run.run_id) for run in earlier(generator, 0.0, runs)),
                None,
            )
            for n in range(CELLS)
        ]
        told = [each["drift"] for each in series_document(detect_drifts(series))["series"]]
        false += any(drift["shown"] for drift in told)
    assert false <= MOST


def test_a_drift_that_all_runs_show_is_found_among_many_cells() -> None:
    generator = np.random.default_rng(1)
    series = [
        RatioSeries(
            f"cell {n}",
            tuple(
                SeriesPoint(run, run.run_id)
                for k in range(9)
                for run in earlier(generator, 0.3 * k if n == 4 else 0.0, 1)
            ),
            None,
        )
        for n in range(CELLS)
    ]
    shown = [each["drift"]["shown"] for each in series_document(detect_drifts(series))["series"]]
    assert shown[4]
    assert sum(shown) == 1


@pytest.mark.parametrize("runs", [5, 10])
def test_two_runs_differ_in_one_comparison_of_twenty(runs: int) -> None:
    generator = np.random.default_rng(runs)
    false = 0
    for _ in range(REPORTS):
        found = []
        for _ in range(CELLS):
            before, after, *others = earlier(generator, 0.0, runs + 2)
            found.append(compare_two_runs(before, after, others, CELLS).verdict)
        false += any(verdict in {ChangeVerdict.HIGHER, ChangeVerdict.LOWER} for verdict in found)
    assert false <= MOST

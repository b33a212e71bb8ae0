"""Ratios over runs: the series, Otava's change points on planted steps, and what is written for others."""

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from guestmark.core.errors import GuestmarkError
from guestmark.core.model import Cell
from guestmark.core.platform_spec import PlatformSpec
from guestmark.ledger import open_ledger
from guestmark.ledger.run_annotations import Annotations
from guestmark.ledger.run_manager import RunManager
from guestmark.ledger.store import Ledger
from guestmark.page import charts
from guestmark.page.nodes import Chart
from guestmark.report import ratio_history, runs_overview
from guestmark.report.ratio_history import SeriesPoint, follow_ratios, select_series
from guestmark.report.render import html, markdown
from guestmark.stats.across_runs import ChangeVerdict, PastRatio, detect_drift
from guestmark.stats.change_points import find_change_points, has_otava
from tests.framework.known import known
from tests.framework.preloaded import call as guestmark
from tests.framework.runs import MEMORY
from tests.unit.stats.test_history import a_run

needs_otava = pytest.mark.skipif(not has_otava(), reason="Apache Otava is not installed")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with open_ledger(tmp_path / "ledger.sqlite") as opened:
        yield opened


def points(logs: list[float]) -> list[SeriesPoint]:
    return [
        SeriesPoint(
            PastRatio(f"r{number}", number, math.exp(log), math.exp(log - 0.01), math.exp(log + 0.01), 10),
            f"{number}",
        )
        for number, log in enumerate(logs)
    ]


def test_a_series_has_the_runs_that_asked_the_same(ledger: Ledger) -> None:
    for number in range(3):
        a_run(ledger, 2.0)
        ledger.annotate_run("last", Annotations(labels={"commit": f"c{number}"}))
    a_run(ledger, 2.0, environment={"machine": "another", "processor": {"count": 8}})
    gone = ledger.list_runs()[1].id
    RunManager(ledger).remove_run(gone)
    run = ledger.load_run(ledger.list_runs()[0].id)
    (found,) = follow_ratios(ledger, run, "commit")
    assert found.cell == "uml"
    assert [point.name for point in found.points] == ["c0", "c2"]
    assert found.changes is None  # too few
    with pytest.raises(GuestmarkError, match="no ratio to follow for cell 'kvm'"):
        select_series([found], "kvm")
    a_run(ledger, 2.0, blocks=5)
    (found,) = follow_ratios(ledger, run, "commit")
    assert [one.reason for one in found.unused] == ["measured on another machine", "fewer than 6 blocks"]
    text = markdown.render(ratio_history.make_page(run, [found]))
    assert "not counted: fewer than 6 blocks" in text
    assert "not counted: measured on another machine" in text
    assert text.count("×") >= 4  # every run that has a ratio shows it
    assert [one["reason"] for one in ratio_history.make_document([found])["series"][0]["unused"]] == [
        "measured on another machine",
        "fewer than 6 blocks",
    ]


def test_what_otava_and_others_read(ledger: Ledger) -> None:
    for number in range(3):
        a_run(ledger, 2.0)
        ledger.annotate_run("last", Annotations(labels={"commit": f"c{number}"}))
    found = follow_ratios(ledger, ledger.load_run("last"), "commit")
    rows = list(
        csv.DictReader(
            io.StringIO(
                ratio_history.make_otava_csv(found, {run.id: run.labels for run in ledger.list_runs()})
            )
        )
    )
    assert [row["commit"] for row in rows] == ["c0", "c1", "c2"]
    assert [float(row["uml"]) for row in rows] == pytest.approx([math.log(2)] * 3, abs=0.02)
    assert "<svg" in html.render(ratio_history.make_page(ledger.load_run("last"), found))
    shown = guestmark("history", GUESTMARK_LEDGER=ledger.where, COLUMNS="100")
    assert shown.returncode == 0, shown.stderr
    assert "c0" in shown.stdout
    assert "Change points were not searched for: at least 8 runs are needed" in shown.stdout
    told = guestmark("history", "--json", "-", GUESTMARK_LEDGER=ledger.where)
    (only_one,) = json.loads(told.stdout)["series"]
    assert [point["name"] for point in only_one["points"]] == ["c0", "c1", "c2"]


def test_runs_that_asked_something_else_are_not_listed(ledger: Ledger) -> None:
    a_run(ledger, 2.0)
    run = ledger.load_run("last")
    a_run(ledger, 2.0, blocks=5, uml=Cell("uml", MEMORY, PlatformSpec.read("uml"), {}, processors=1))
    (found,) = follow_ratios(ledger, run, "commit")
    assert not found.unused


def test_a_drift_is_shown_and_seldom_one_that_is_none() -> None:
    """Ratios that scatter by 2 % from run to run; the test of order is exact for any law, here also a skewed one."""
    generator = np.random.default_rng(4)
    for runs, least in ((8, 0.75), (12, 0.95)):
        false = found = covered = 0
        for _ in range(300):
            logs = generator.normal(0, 0.02, runs)
            skewed = generator.exponential(0.02, runs)
            shown = known(detect_drift([point.run for point in points(skewed.tolist())]))
            false += shown.verdict is not ChangeVerdict.ALIKE
            up = known(
                detect_drift(
                    [point.run for point in points((logs + np.linspace(0, math.log(1.1), runs)).tolist())]
                )
            )
            found += up.verdict is ChangeVerdict.HIGHER
            low, high = known(up.ci)
            covered += low <= 1.1 <= high
        assert false / 300 <= 0.05 + 0.03
        assert found / 300 >= least
        assert covered / 300 >= 0.93 - 0.04
    assert detect_drift([point.run for point in points([0.0] * 5)]) is None
    many = known(detect_drift([point.run for point in points(np.linspace(0, 0.1, 200).tolist())]))
    assert many.verdict is ChangeVerdict.HIGHER
    assert many.ratio == pytest.approx(math.exp(0.1))


def test_how_often_pairs_are_in_the_wrong_order_by_chance() -> None:
    from itertools import permutations

    from guestmark.stats.across_runs import _find_critical_discordances

    orders = [
        sum(a > b for i, a in enumerate(each) for b in each[i + 1 :]) for each in permutations(range(7))
    ]
    cut = _find_critical_discordances(7, 0.025)
    assert sum(order <= cut for order in orders) / len(orders) <= 0.025
    assert sum(order <= cut + 1 for order in orders) / len(orders) > 0.025
    assert (
        abs(_find_critical_discordances(60, 0.025) - _find_critical_discordances(61, 0.025)) < 30
    )  # where counting ends


def test_a_page_says_what_went_up(ledger: Ledger) -> None:
    for number in range(8):
        a_run(ledger, 2.0 * 1.02**number)
    found = follow_ratios(ledger, ledger.load_run("last"), "commit")
    shown = markdown.render(ratio_history.make_page(ledger.load_run("last"), found))
    assert "Drift: ×1.1" in shown
    assert "from the first of 8 runs to the last" in shown
    document = ratio_history.make_document(found)["series"][0]["drift"]
    assert document["shown"] is True


@needs_otava
def test_a_planted_step_of_two_per_cent_is_found_and_no_other() -> None:
    """40 runs with a step at the 25th, 100 times; and 200 times without any step."""
    generator = np.random.default_rng(11)
    found = alone = alarms = 0
    for _ in range(100):
        logs = generator.normal(0, 0.005, 40)
        logs[24:] += math.log(1.02)
        changes = find_change_points(np.exp(logs).tolist()) or ()
        near = [change for change in changes if abs(change.at - 24) <= 2]
        found += bool(near)
        alone += len(changes) == len(near) == 1
    for _ in range(200):
        alarms += bool(find_change_points(np.exp(generator.normal(0, 0.005, 40)).tolist()))
    assert found >= 98
    assert alone >= 93
    assert alarms / 200 <= 0.05


@needs_otava
def test_a_change_has_its_sides_and_what_to_do() -> None:
    made = points(
        [0.0, 0.001, -0.001, 0.002, 0.0, -0.002, 0.001, 0.0, 0.1, 0.101, 0.099, 0.1, 0.102, 0.1, 0.1]
    )
    (change,) = find_change_points([point.run.ratio for point in made]) or ()
    assert change.at == 8
    assert (change.before, change.after) == pytest.approx((1.0, math.exp(0.1)), rel=0.01)
    shown = str(
        ratio_history._make_change_nodes(ratio_history.RatioSeries("uml", tuple(made), (change,)), change)
    )
    assert "guestmark compare r7 r8" in shown


@pytest.mark.long
@needs_otava
def test_a_step_is_found_in_forty_stored_runs(ledger: Ledger) -> None:
    """From the ledger to the page: the 25th run and no other, with the command that compares around it."""
    generator = np.random.default_rng(4)
    for number, log in enumerate(generator.normal(0, 0.005, 40)):
        a_run(ledger, 2.0 * math.exp(log) * (1.02 if number >= 24 else 1.0))
    run = ledger.load_run("last")
    found = follow_ratios(ledger, run, "commit")
    (series_of_uml,) = found
    assert len(series_of_uml.points) == 40
    (change,) = known(series_of_uml.changes)
    assert abs(change.at - 24) <= 2
    assert change.after / change.before == pytest.approx(1.02, abs=0.005)
    text = re.sub(r'<span class="word">|</span>', "", html.render(ratio_history.make_page(run, found)))
    ids = [point.run.run_id for point in series_of_uml.points]
    assert f"guestmark compare {ids[change.at - 1]} {ids[change.at]}" in text
    assert f"guestmark compare {ids[change.at - 1]} {ids[change.at]} --confirm" in text


def test_the_page_of_all_runs_has_their_trends(ledger: Ledger, tmp_path: Path) -> None:
    for ratio in (2.0, 2.02, 3.0):
        a_run(ledger, ratio)
    page = tmp_path / "runs.html"
    done = guestmark("runs", "--html", str(page), GUESTMARK_LEDGER=ledger.where)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    runs = ledger.list_runs()
    assert len(runs) == 3
    assert all(run.id in text for run in runs)
    made = runs_overview.make_page(runs, ledger.read_all_ratios())
    (chart,) = [node for section in made.sections for node in section.nodes if isinstance(node, Chart)]
    assert isinstance(chart.drawing, charts.Series)
    (row,) = chart.drawing.rows
    assert row.label == "uml"
    assert [value for _, value in row.points] == pytest.approx([2.0, 2.02, 3.0], rel=0.02)
    assert "last / first" in text
    assert text.count("<svg viewBox") == 1
    RunManager(ledger).remove_run(runs[0].id)
    assert {row.run_id for row in ledger.read_all_ratios()} == {runs[1].id, runs[2].id}

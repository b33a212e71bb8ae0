"""A published experiment repeated is one page: questions with their answers, published ratios beside today's."""

import io
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from guestmark.core.context import Caller
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Plan, Published, PublishedFigure, RunState, Trial, TrialStatus
from guestmark.engine.question_status import keep_answerable_questions
from guestmark.ledger.model import StoredRun
from guestmark.page import figures
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Overrides, assemble_plan, override_outline
from guestmark.report.document import make_result_document
from guestmark.report.render.terminal import print_page
from guestmark.report.sections.answer_words import select_findings
from guestmark.report.sections.published import SIGNS, make_overview
from guestmark.report.short_report import make_then_and_now
from guestmark.stats import compare_table
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import Comparison, Verdict
from guestmark.stats.published import Repetition, find_figure, judge_repetition
from guestmark.stats.questions import PairAnswer, answer_plan_questions
from tests.unit.stats.test_compare import noisy

EXPERIMENTS: dict[str, Sequence[str]] = {
    "backends": ["uml", "tcg", "tcg/uml", "tcg/kvm"],
    "upload": ["tcg", "uml"],
    "sysbench": ["host", "uml", "tcg"],
    "netboot": ["tcg"],
    "filesystems": ["host", "tcg", "uml"],
}


def measured(plan: Plan, blocks: int) -> StoredRun:
    """A run of the plan in which every cell has every metric, each a little different."""
    cells = (
        replace(cell, factors={name: each for name, each in cell.factors.items() if name != "placement"})
        for cell in plan.cells
    )
    plan = replace(plan, cells=tuple(cells))  # which nothing here attests
    trials = []
    chance = random.Random(plan.name)
    level = {cell.id: math.exp(chance.gauss(0, 1)) for cell in plan.cells}
    for block, (order, cell) in itertools.product(range(blocks), enumerate(plan.cells)):
        value = level[cell.null_of or cell.id] * math.exp(chance.gauss(0, 0.02))
        held = tuple(
            Measurement(metric, value if metric.better is Better.LOWER else 1 / value, ())
            for metric in plan.metrics
            if cell.workload.name != "oltp" or "events" not in metric.name  # servers are timed otherwise
        )
        trials.append(Trial(cell.id, block, order, TrialStatus.OK, measurements=held, duration_s=value))
    return StoredRun("20261128-000000-abc", plan, ({},), 1, RunState.COMPLETE, 0.0, tuple(trials))


def list_compared_metrics(run: StoredRun) -> set[Metric]:
    answers = answer_plan_questions(analyse_run(run.plan, run.trials))
    pairs = itertools.chain.from_iterable(select_findings(answer, PairAnswer) for answer in answers)
    published = (run.plan.find_metric(each.metric) for each in run.plan.published)
    return {pair.metric for pair in pairs if pair.comparison is not None} | {
        each for each in published if each
    }


def page_of(run: StoredRun, width: int) -> str:
    out = io.StringIO()
    page = make_then_and_now(run, analyse_run(run.plan, run.trials), width=width, latest=True)
    print_page(page, Console(file=out, width=width, color_system=None))
    return out.getvalue()


@pytest.mark.parametrize("blocks", [3, 8])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_published_experiment_is_one_page(name: str, blocks: int) -> None:
    """At 80 columns: reports of 239 to 502 lines had their answer in the middle."""
    given = Overrides(on=EXPERIMENTS[name])
    plan, _ = keep_answerable_questions(
        assemble_plan(
            override_outline(load_outline(library.read_builtin(name), name, scale=0.01), given), Caller()
        ),
        (),
    )
    run = measured(plan, blocks)
    shown = page_of(run, 80)
    assert "Then and now (at scale 0.01), ×base" in shown
    asked = [question.ask for question in plan.questions]
    assert all(" ".join(ask.split()[:4]) in " ".join(shown.split()) for ask in asked)
    # A ratio means nothing without what it is a ratio of.
    for metric in list_compared_metrics(run):
        assert figures.name_metric(metric) in " ".join(shown.split()), shown
    lines = shown.splitlines()
    assert len(lines) <= 40, shown
    assert max(map(len, lines)) <= 80
    assert "more: guestmark show --details" in lines[-1]


@pytest.mark.parametrize(
    ("name", "platforms"),
    [*EXPERIMENTS.items(), ("startup", ["kvm", "uml"]), ("startup", ["tcg", "kvm", "uml"])],
    ids=str,
)
def test_a_perfect_repetition_disagrees_with_nothing(name: str, platforms: Sequence[str]) -> None:
    """Whatever the baseline of the run is: the publication may have had another one."""
    outline = override_outline(load_outline(library.read_builtin(name), name), Overrides(on=platforms))
    plan = assemble_plan(outline, Caller())
    run = measured(plan, 12)
    chance, trials = random.Random(name), []
    for trial in run.trials:
        cell = next(cell for cell in run.plan.cells if cell.id == trial.cell_id)
        figures = {each.metric: find_figure(cell, each) for each in plan.published}
        held = tuple(
            replace(measurement, value=figure.value * math.exp(chance.gauss(0, 0.03)))
            for measurement in trial.measurements
            if (figure := figures.get(measurement.metric.name)) is not None
        )
        trials.append(replace(trial, measurements=held))
    overview = make_overview(analyse_run(run.plan, trials))
    # The experiment has no figure for this baseline, so today's ratios can be compared with nothing.
    assert (overview is None) is (name == "startup" and "tcg" in platforms)
    if overview is not None:
        shown = [span.text for row in overview.rows for cell in row.cells for span in cell.pieces]
        assert any("✓" in text for text in shown)
        assert not any("✗" in text for text in shown), shown


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_document_has_every_published_ratio_of_the_page(name: str) -> None:
    outline = override_outline(
        load_outline(library.read_builtin(name), name), Overrides(on=EXPERIMENTS[name])
    )
    run = measured(assemble_plan(outline, Caller()), 6)
    analysis = analyse_run(run.plan, run.trials)
    overview = make_overview(analysis)
    assert overview is not None
    shown = [span.text for row in overview.rows for cell in row.cells for span in cell.pieces]
    listed = make_result_document(run, analysis)["published"]
    verdicts = [Repetition(each["verdict"]) for each in listed]
    for sign in "✓~±✗?":
        assert sum(sign in text for text in shown) == sum(SIGNS[each] == sign for each in verdicts)
    assert {each["cell"] for each in listed} <= {cell.id for cell in run.plan.cells}


def test_two_papers_about_the_same_cells_have_rows_of_their_own() -> None:
    """A later one without a name, or with another's, replaced the figures of the earlier one."""
    outline = override_outline(load_outline(library.read_builtin("upload"), "upload"), Overrides(on=["tcg"]))
    plan = assemble_plan(outline, Caller())
    ext3 = {"workload": "dd", "preallocation": "full", "filesystem": "ext3"}
    papers = []
    for source, metric, ratio in (("A", "wall_s", 1.6), ("B", "guest_flush_s", 30.0), ("C", "wall_s", 7.0)):
        figure = PublishedFigure(ext3, ratio, 1.0)
        papers.append(Published(source, metric, "s", "time", (figure,)))
    run = measured(replace(plan, published=tuple(papers)), 6)
    overview = make_overview(analyse_run(run.plan, run.trials))
    assert overview is not None
    shown = [" ".join(span.text for cell in row.cells for span in cell.pieces) for row in overview.rows]
    assert len(shown) == 3
    for then in ("1.6", "30", "7.0"):
        assert any(then in text for text in shown), shown


def over(level: float, spread: float = 0.01, blocks: int = 12) -> Comparison:
    values = {"base": noisy(1, blocks, spread=spread), "cell": noisy(2, blocks, level=level, spread=spread)}
    return compare_table(values, "base", better=Better.LOWER, margin=0.03)["cell"]


@pytest.mark.parametrize(
    ("now", "then", "word"),
    [
        (2.0, 2.0, Repetition.SAME),
        (1.5, 2.0, Repetition.DIRECTION),
        (0.5, 0.9, Repetition.DIRECTION),
        (0.5, 2.0, Repetition.OPPOSITE),
        (2.0, 1.01, Repetition.DIFFERS),
    ],
)
def test_what_became_of_a_published_ratio(now: float, then: float, word: Repetition) -> None:
    assert judge_repetition(over(now), then, 0.03) is word
    assert judge_repetition(over(1 / now), 1 / then, 0.03) is word  # of the inverse metric


def test_what_is_equal_now_may_have_been_different() -> None:
    equal = over(1.0, spread=0.003)
    assert equal.verdict is Verdict.NO_DIFFERENCE
    assert judge_repetition(equal, 1.3, 0.03) is Repetition.EQUAL
    assert judge_repetition(equal, 1.02, 0.03) is Repetition.SAME


def test_a_ratio_far_outside_todays_interval_is_not_repeated() -> None:
    bounded = over(1.01, spread=0.06)
    assert bounded.is_undecided
    assert bounded.ci is not None
    half = math.sqrt(bounded.ci[1] / bounded.ci[0])
    middle = bounded.ci[0] * half
    for sign in (-1, 1):
        assert judge_repetition(bounded, middle * half ** (2.1 * sign), 0.03) is Repetition.EXCLUDED
        assert judge_repetition(bounded, middle * half ** (1.9 * sign), 0.03) is Repetition.BOUNDED
    wide = over(1.01, spread=0.4)
    assert not wide.is_bounded
    assert judge_repetition(wide, 1.1, 0.03) is Repetition.OPEN
    few = over(1.01, spread=0.06, blocks=5)
    assert judge_repetition(few, 3.0, 0.03) is Repetition.OPEN


def test_what_is_not_known_is_open() -> None:
    assert judge_repetition(None, 2.0, 0.03) is Repetition.OPEN
    assert judge_repetition(over(1.1, spread=0.5), 1.7, 0.03) is Repetition.OPEN
    assert judge_repetition(over(2.0, blocks=2), 2.0, 0.03) is Repetition.OPEN
    with pytest.raises(ValueError, match="above 0"):
        judge_repetition(None, 0.0, 0.03)

"""What a run shows on a terminal of 80 columns and 24 lines, for each kind of run and every built-in plan."""

import io
import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from guestmark.core import registry
from guestmark.core.context import Caller
from guestmark.core.metric import Measurement
from guestmark.core.model import Cell, Plan, RunState, Trial, TrialStatus
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Page
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.report.render.terminal import draw_page
from guestmark.report.screen_report import LINES, make_screen_report
from guestmark.report.short_report import make_short_report
from guestmark.stats.analysis import analyse_run
from tests.framework.marks import long_but
from tests.framework.run_kinds import RUNS

WIDTH = 80


def drawn(page: Page) -> list[str]:
    return draw_page(page, Console(file=io.StringIO(), width=WIDTH)).splitlines()


def screen_of(run: StoredRun, lines: int = LINES) -> list[str]:
    analysis = analyse_run(run.plan, run.trials, run.unusable, environments=run.environments)
    page = make_screen_report(
        run, analysis, width=WIDTH, latest=True, lines=lines, count_lines=lambda page: len(drawn(page))
    )
    return drawn(page)


def plan_of(name: str) -> Plan:
    """The built-in plan with all of its cells, wherever it could be measured."""
    return assemble_plan(load_outline(library.read_builtin(name), name), Caller.current())


def measured(plan: Plan, blocks: int, *, state: RunState = RunState.COMPLETE, failing: int = 0) -> StoredRun:
    """A run of the plan, each cell with all the metrics of its workload; the last `failing` cells fail."""
    generator = np.random.default_rng(1)
    trials = []
    for block in range(blocks):
        for order, cell in enumerate(plan.cells):
            if order >= len(plan.cells) - failing:
                trials.append(
                    Trial(cell.id, block, order, TrialStatus.FAILED, "the guest died", duration_s=2.0)
                )
                continue
            trials.append(
                Trial(
                    cell.id,
                    block,
                    order,
                    TrialStatus.OK,
                    measurements=tuple(_measurements(cell, order, generator)),
                    started_at=1_795_296_580.0 + block,
                    duration_s=2.0,
                )
            )
    return StoredRun("20261121-213000-k3f", plan, ({},), 42, state, 1_795_296_600.5, tuple(trials), ())


def _measurements(cell: Cell, order: int, generator: np.random.Generator) -> list[Measurement]:
    kind = registry.workload_kind(cell.workload.name)
    found = []
    for metric in kind.list_metrics(kind.params_of(cell.workload)):
        value = (1 + order) * float(np.exp(generator.normal(0, 0.05)))
        found.append(Measurement(metric, value, (value,)))
    return found


def check_screen(shown: list[str], lines: int = LINES) -> None:
    assert len(shown) <= lines, "\n".join(shown)
    assert all(cell_len(line) <= WIDTH for line in shown)
    # How to see the rest, or how to go on, is the last word.
    assert any("--details" in line or "guestmark resume" in line for line in shown[-3:]), "\n".join(shown)


@pytest.mark.parametrize("name", list(RUNS))
def test_every_kind_of_run_fits_on_a_screen(name: str) -> None:
    shown = screen_of(RUNS[name]())
    assert len(shown) <= LINES, "\n".join(shown)


CASES: dict[str, Callable[[Plan], StoredRun]] = {
    "one block": lambda plan: measured(plan, 1),
    "decided": lambda plan: measured(plan, 6),
    "interrupted": lambda plan: measured(plan, 2, state=RunState.INTERRUPTED),
    "half failed": lambda plan: measured(plan, 2, failing=len(plan.cells) // 2),
}


# With twenty cells and more an analysis takes seconds. `test_answers_outlast_tables` and
# `test_a_higher_screen_shows_more` have such screens.
LARGE = {
    "backends", "coldstart", "fastest-safe", "filesystems", "memory-backing", "move", "programs", "restored",
    "sysbench", "upload",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", long_but(set(library.list_plan_names()) - LARGE, library.list_plan_names()))
def test_every_built_in_plan_fits_on_a_screen(name: str, case: str) -> None:
    check_screen(screen_of(CASES[case](plan_of(name))))


def test_answers_outlast_tables() -> None:
    plan = plan_of("filesystems")
    shown = "\n".join(screen_of(measured(plan, 8)))
    assert "Which filesystem is fastest in a guest?" in shown
    assert "of figures: --details" in shown


@pytest.fixture(scope="module")
def partly_measured() -> StoredRun:
    """Starts of which those of QEMU's guests were never measured."""
    run = measured(plan_of("coldstart"), 3)
    there = {cell.id for cell in run.plan.cells if str(cell.platform) not in {"kvm", "tcg"}}
    return replace(run, trials=tuple(trial for trial in run.trials if trial.cell_id in there))


@pytest.mark.parametrize("lines", range(9, 31, 3))
def test_no_question_stands_without_an_answer(partly_measured: StoredRun, lines: int) -> None:
    asked = {question.ask for question in partly_measured.plan.questions}
    shown = screen_of(partly_measured, lines)
    for question, answer in itertools.pairwise(shown):
        if question in asked:
            assert answer.strip(), "\n".join(shown)
            assert "--details" not in answer, "\n".join(shown)


def test_what_was_not_measured_is_no_row_of_dashes(partly_measured: StoredRun) -> None:
    for row in (shown := screen_of(partly_measured)):
        assert not re.fullmatch(r"[\w …-]+ {2,}(– *)+", row), "\n".join(shown)


def test_a_table_says_how_many_rows_it_leaves_out() -> None:
    plan = replace(plan_of("coldstart"), questions=())
    run = measured(plan, 2)
    whole = drawn(
        make_short_report(run, analyse_run(run.plan, run.trials, run.unusable), width=WIDTH, latest=True)
    )
    shown = screen_of(run)
    assert len(whole) > LINES
    assert any("more row" in line or "of figures" in line for line in shown)


def test_a_higher_screen_shows_more() -> None:
    run = measured(plan_of("coldstart"), 2)
    low, high = screen_of(run), screen_of(run, 60)
    assert len(low) < len(high) <= 60

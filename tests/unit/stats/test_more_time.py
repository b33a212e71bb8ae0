"""What more time would buy: foretold from runs that stopped, held against runs that went on."""

import re
from dataclasses import replace

import pytest

from guestmark.core.model import Policy, RunState, Trial
from guestmark.ledger.model import StoredRun
from guestmark.page.nodes import Command, Paragraph
from guestmark.page.text import join_plain_text
from guestmark.report.sections.more_time import make_nodes
from guestmark.stats import half_width
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import MIN_BLOCKS
from guestmark.stats.stopping import ExtensionForecast, extend_policy, forecast_more_time
from tests.framework.known import a, known
from tests.framework.runs import constructed, host_uml_tcg, memory_sweep


def told(run: StoredRun) -> ExtensionForecast | None:
    return forecast_more_time(run.plan, analyse_run(run.plan, run.trials))


def test_runs_that_are_precise_and_decided_need_no_more_time() -> None:
    assert told(host_uml_tcg()) is None
    assert make_nodes(analyse_run(host_uml_tcg().plan, host_uml_tcg().trials), host_uml_tcg()) == []


def test_what_is_foretold_comes_true() -> None:
    whole = memory_sweep(blocks=48)
    policy = replace(whole.plan.policy, precision=0.001)
    whole = replace(whole, plan=replace(whole.plan, policy=policy))
    half = replace(whole, trials=tuple(trial for trial in whole.trials if trial.block < 24))
    found = told(half)
    assert found is not None
    assert found.blocks == 24  # no further than there are already, however many the precision needs
    assert found.seconds == pytest.approx(sum(trial.duration_s for trial in half.trials), rel=0.01)
    assert [prospect.cell for prospect in found.cells] == [
        "tcg memory=2G",
        "tcg memory=4G",
    ]  # 8G is known to a twentieth of its own
    later = {
        result.cell.id: result.comparison["wall_s"]
        for result in analyse_run(whole.plan, whole.trials).cells[1:]
    }
    for prospect in found.cells:
        ci = later[prospect.cell].ci
        assert ci is not None
        assert prospect.then == pytest.approx(half_width(ci), rel=0.25)
        assert prospect.then < 0.8 * prospect.half_width


def test_no_more_blocks_than_the_precision_needs() -> None:
    run = memory_sweep(blocks=24)
    widest = max(prospect.half_width for prospect in known(told(precise(run, 0.0001))).cells)
    found = told(precise(run, 0.95 * widest))
    assert found is not None
    assert 1 <= found.blocks <= 6


def test_too_few_for_a_verdict_are_made_enough() -> None:
    run = memory_sweep(blocks=2)
    found = known(told(run))
    assert found.blocks == MIN_BLOCKS - 2
    (paragraph, then) = make_nodes(analyse_run(run.plan, run.trials), run)
    assert a(Command, then).command.endswith(f"--blocks {MIN_BLOCKS}")
    assert f"{found.blocks} more blocks (about" in join_plain_text(a(Paragraph, paragraph).text)


def precise(run: StoredRun, precision: float) -> StoredRun:
    return replace(run, plan=replace(run.plan, policy=replace(run.plan.policy, precision=precision)))


def test_the_report_says_it_with_a_command() -> None:
    run = host_uml_tcg(blocks=4)
    analysis = analyse_run(run.plan, run.trials)
    paragraph, command = make_nodes(analysis, run)
    assert isinstance(paragraph, Paragraph)
    assert isinstance(command, Command)
    assert "uml: ±" in join_plain_text(paragraph.text)
    assert "4 more blocks (about 2 min" in join_plain_text(paragraph.text)
    assert command.command == "guestmark resume 20261121-213000-k3f --blocks 8"
    assert make_nodes(analysis, replace(run, state=RunState.INTERRUPTED)) == []  # there it goes on anyway


def test_what_is_hardly_known_is_told_by_the_factor() -> None:
    def times(trial: Trial, factor: float) -> Trial:
        scaled = [replace(each, value=factor * each.value) for each in trial.measurements]
        return replace(trial, measurements=tuple(scaled))

    run = host_uml_tcg(blocks=4)
    odd = {("uml", 1): 2.5, ("uml", 2): 0.4}
    trials = [times(trial, odd.get((trial.cell_id, trial.block), 1.0)) for trial in run.trials]
    run = replace(run, trials=tuple(trials))
    text = join_plain_text(a(Paragraph, make_nodes(analyse_run(run.plan, run.trials), run)[0]).text)
    assert re.match(r"uml: a factor of \d\.\d now; 4 more blocks", text)


def test_many_cells_are_told_by_the_least_known() -> None:
    run = precise(memory_sweep(blocks=12), 0.0001)
    cells = [(cell, 1.0) for cell in run.plan.cells]
    more = [(replace(cell, id=f"{cell.id} {n}", baseline=False), 1.0) for n in range(2) for cell, _ in cells]
    run = precise(constructed([*cells, *more]), 0.0001)
    found = told(run)
    assert found is not None
    worst = max(found.cells, key=lambda prospect: prospect.half_width)
    text = join_plain_text(a(Paragraph, make_nodes(analyse_run(run.plan, run.trials), run)[0]).text)
    assert text.startswith(f"{worst.cell}: ±")
    assert f"(the least precise of {len(found.cells)})" in text


def test_a_run_that_goes_on_gets_time_for_what_is_still_to_come() -> None:
    run = host_uml_tcg(blocks=4)
    used = sum(trial.duration_s for trial in run.trials)
    policy = Policy(blocks=4, time_limit_s=100, precision=0.02)
    assert extend_policy(policy, run.trials, blocks=9).blocks == 9
    further = extend_policy(policy, run.trials, precision=0.01)
    assert (further.blocks, further.precision, further.max_blocks) == (None, 0.01, 204)
    assert further.time_limit_s == pytest.approx(used + 100)
    assert extend_policy(policy, run.trials, time_limit_s=5).time_limit_s == pytest.approx(used + 5)

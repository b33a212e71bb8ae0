"""Progress where standard error is no terminal: how many lines, how long, and what they say."""

import io
import time
from dataclasses import replace

import pytest
from rich.cells import cell_len

from guestmark.cli.console import Console
from guestmark.cli.live_progress import LiveProgress
from guestmark.cli.plain_progress import PlainProgress, describe_time_left
from guestmark.cli.style import Style
from guestmark.core.metric import Better, Measurement, Metric
from guestmark.core.model import Cell, Plan, Policy, Trial, TrialStatus, WorkloadSpec
from guestmark.core.platform_spec import PlatformSpec
from guestmark.core.rare import Rare
from guestmark.engine.progress import ProgressEstimate
from guestmark.stats.analysis import analyse_run
from guestmark.stats.stopping import EndForecast, TimeLeft

WALL = Metric("wall_s", "s", Better.LOWER)
CELLS = tuple(
    Cell(name, WorkloadSpec("exec"), PlatformSpec.read(name), baseline=name == "host", group="exec")
    for name in ("host", "tcg", "uml with a name that leaves little room for its figures")
)
PLAN = Plan("p", CELLS, Policy(min_blocks=10), (WALL,))


class Run:
    """A run whose blocks each take `block_s`, as an observer sees it."""

    def __init__(self, block_s: float, width: int | None = 80) -> None:
        self.now = 100.0
        self.block_s = block_s
        self.trials: list[Trial] = []
        self.lines = PlainProgress(clock=lambda: self.now, width=width)
        self.lines.started(PLAN, 0)

    def block(self, failing: str = "") -> None:
        number = len(self.trials) // len(CELLS)
        self.now += self.block_s
        for order, cell in enumerate(CELLS):
            value = Measurement(WALL, 0.1 * (order + 1), (0.1 * (order + 1),))
            trial = Trial(cell.id, number, order, TrialStatus.OK, measurements=(value,))
            if cell.id == failing:
                reason = "the command failed with exit status 1: " + "and it said why at length " * 9
                trial = replace(trial, status=TrialStatus.FAILED, reason=reason, measurements=())
            self.trials.append(trial)
            self.lines.trial_ended(cell, trial)
        if number < 4:  # what it says is of no matter later, and takes long to compute
            self.analysis = analyse_run(PLAN, self.trials)
        self.lines.block_ended(ProgressEstimate(number + 1, 40, TimeLeft(60.0, 70.0), self.analysis))


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    first, *lines = capsys.readouterr().err.splitlines()
    assert first.startswith("guestmark: 3 cells, at least 10 blocks")
    return lines


def test_a_slow_block_is_one_line_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(block_s=20.0)
    for _ in range(3):
        run.block()
    run.block(failing="tcg")
    lines = printed(capsys)
    assert len(lines) == 4
    assert all(cell_len(line) <= 79 for line in lines), lines
    assert lines[2].startswith("guestmark: block 3 of 40, about 65 s left: tcg ×2.0")
    assert lines[2].endswith("; …")
    assert "tcg failed: the command failed" in lines[3]


@pytest.mark.parametrize(
    ("least_s", "most_s", "said"),
    [
        (20.0, 40.0, "about 28 s"),
        (0.0, 0.0, "about 0 s"),
        (0.4, 7.2, "up to 8 s"),
        (12.3, 61.2, "10 to 65 s"),
        (47.0, 191.0, "45 s to 4 min"),
        (130.0, 1900.0, "2 to 32 min"),
        (3000.0, 9100.0, "50 min to 3 h"),
    ],
)
def test_a_forecast_is_as_exact_as_it_will_hold(least_s: float, most_s: float, said: str) -> None:
    left = TimeLeft(least_s, most_s)
    assert describe_time_left(left, 600.0) == f"{said} left"
    # A number of blocks is a forecast, too.
    assert ProgressEstimate(5, 12, left, analyse_run(PLAN, [])).is_goal_known is said.startswith("about")


def test_a_log_has_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(block_s=20.0, width=None)
    for _ in range(2):
        run.block()
    run.block(failing="tcg")
    *_, last = printed(capsys)
    assert "and it said why at length " * 8 in last
    assert f"{CELLS[2].id} ×3.0" in last
    assert "…" not in last


@pytest.mark.parametrize("planning", [False, True])
def test_what_will_be_known_and_when_is_said_to_whoever_asks(
    capsys: pytest.CaptureFixture[str], planning: bool
) -> None:
    run = Run(block_s=20.0, width=None)
    run.lines = PlainProgress(clock=lambda: run.now, show_forecast=planning)
    run.lines.started(PLAN, 0)
    run.block()
    foreseen = EndForecast(0.02, TimeLeft(40.0, 40.0), Rare(2.0, 0.05), 4620.0)
    run.lines.block_ended(ProgressEstimate(30, 40, TimeLeft(60.0, 70.0), run.analysis, foreseen))
    run.now += 20
    run.lines.block_ended(ProgressEstimate(31, 40, TimeLeft(60.0, 70.0), run.analysis, foreseen))
    assert ("1 h 17 min" in capsys.readouterr().err) is planning


def test_quick_blocks_share_a_line_and_a_failure_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(block_s=0.04)
    for number in range(250):
        run.block(failing="tcg" if number == 7 else "")
    lines = printed(capsys)
    assert 10 <= len(lines) <= 11  # in ten seconds
    assert all(cell_len(line) <= 79 for line in lines), lines
    assert [number for number, line in enumerate(lines) if "tcg failed" in line] == [1]


@pytest.mark.parametrize("block_s", [0.04, 20.0])
def test_a_reason_is_told_once(capsys: pytest.CaptureFixture[str], block_s: float) -> None:
    run = Run(block_s, width=None)
    for failing in ("tcg", "tcg", "host", "tcg", "host"):
        run.block(failing=failing)
    run.lines.note("that is all")
    *_, last = lines = printed(capsys)
    text = "\n".join(lines)
    assert text.count("and it said why at length " * 8) == 1
    assert text.count("host failed, too") == 1
    assert "tcg failed again" in text
    assert last == "guestmark: that is all"


def test_a_failure_in_the_last_block_is_told_although_the_block_never_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Run(block_s=20.0)
    with run.lines:
        run.lines.trial_ended(CELLS[1], Trial(CELLS[1].id, 0, 0, TrialStatus.FAILED, "no space is left"))
    assert printed(capsys) == ["guestmark: block 1: tcg failed: no space is left"]


def test_a_display_tells_a_reason_once() -> None:
    shown = io.StringIO()
    live = LiveProgress(Console(file=shown, width=80))
    live.started(PLAN, 0)
    for block in range(5):
        for order, cell in enumerate(CELLS):
            live.trial_ended(cell, Trial(cell.id, block, order, TrialStatus.FAILED, "no space is left"))
    assert shown.getvalue().count("no space is left") == 1
    assert shown.getvalue().count("failed, too") == len(CELLS) - 1


def test_a_narrow_display_keeps_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(block_s=20.0)
    run.block(failing="tcg")
    capsys.readouterr()
    shown = io.StringIO()
    with LiveProgress(Console(file=shown, width=80, style=Style.FULL)) as live:
        live.started(PLAN, 0)
        for cell, trial in zip(CELLS, run.trials, strict=True):
            live.trial_started(cell, 0)
            live.phase("measuring 2/2")
            live.trial_ended(cell, trial)
        live.block_ended(ProgressEstimate(17, 174, TimeLeft(360.0, 370.0), run.analysis))
    status = next(line for line in shown.getvalue().splitlines()[::-1] if "block" in line)
    assert "about 6 min 5 s left" in status
    assert "1 failed" in status
    assert "…" in status


def test_a_long_name_never_hides_its_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("write host", "sequential write tcg@sparc64 filesystem=ext2 format=raw,cache=none", "other")
    cells = tuple(replace(cell, id=name) for cell, name in zip(CELLS, names, strict=True))
    plan = replace(PLAN, cells=cells)
    now = [0.0]
    lines = PlainProgress(clock=lambda: now[0], width=80)
    lines.started(plan, 0)
    trials: list[Trial] = []
    for block in range(3):
        now[0] += 20
        for order, cell in enumerate(cells):
            value = Measurement(WALL, 0.1 * (order + 1), (0.1 * (order + 1),))
            trials.append(Trial(cell.id, block, order, TrialStatus.OK, measurements=(value,)))
        lines.block_ended(ProgressEstimate(block + 1, 40, TimeLeft(60.0, 70.0), analyse_run(plan, trials)))
    last = printed(capsys)[-1]
    assert cell_len(last) <= 79
    assert "cache=none ×2.0" in last


def test_a_line_is_about_cells_whose_questions_are_open(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(block_s=20.0)
    run.block()
    for resting in (frozenset({"tcg"}), frozenset(cell.id for cell in CELLS)):
        estimate = ProgressEstimate(2, 40, TimeLeft(60.0, 70.0), run.analysis, resting=resting)
        run.now += 20
        run.lines.block_ended(estimate)
    other = ProgressEstimate(3, 40, TimeLeft(60.0, 70.0), analyse_run(PLAN, []), resting=frozenset({"tcg"}))
    run.now += 20
    run.lines.block_ended(other)
    _, open_cells, none, no_figures = printed(capsys)
    assert open_cells.endswith("room for its figures ×3.00")
    assert "tcg" not in open_cells
    assert none == "guestmark: block 2 of 40, about 65 s left"
    assert "host: no figures yet" in no_figures


def test_rows_of_another_metric_have_figures_too(capsys: pytest.CaptureFixture[str]) -> None:
    rate, latency = Metric("events_per_s", "1/s", Better.HIGHER), Metric("latency_avg_s", "s", Better.LOWER)
    cells, trials = [], []
    for kind, metric in (("sysbench", rate), ("oltp", latency)):
        for order, platform in enumerate(("host", "tcg")):
            cell = replace(CELLS[order], id=f"{kind} {platform}", workload=WorkloadSpec(kind), group=kind)
            cells.append(cell)
            value = Measurement(metric, order + 1.0, (order + 1.0,))
            trials += [Trial(cell.id, block, 0, TrialStatus.OK, measurements=(value,)) for block in range(3)]
    plan = replace(PLAN, cells=tuple(cells), metrics=(rate, latency))
    estimate = ProgressEstimate(3, 40, TimeLeft(60.0, 70.0), analyse_run(plan, trials))
    for resting in ((), ("sysbench host", "sysbench tcg")):
        now = iter((0.0, 20.0))
        lines = PlainProgress(clock=lambda now=now: next(now))  # type: ignore[misc]
        lines.started(plan, 0)
        lines.block_ended(replace(estimate, resting=frozenset(resting)))
    both, only_oltp = (line for line in capsys.readouterr().err.splitlines() if "left" in line)
    assert "sysbench tcg ×2.00" in both
    assert both.count("oltp tcg latency avg ×2.00") == only_oltp.count("oltp tcg latency avg ×2.00") == 1


def test_a_long_block_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainProgress(quiet_s=0.2) as lines:
        lines.started(PLAN, 0)
        lines.trial_started(CELLS[0], 0)
        lines.trial_ended(CELLS[0], Trial("host", 0, 0, TrialStatus.OK))
        lines.trial_started(CELLS[1], 0)
        lines.phase("booting")
        time.sleep(0.5)
        lines.phase("measuring 1/3")
        time.sleep(0.2)
        for _ in range(5):  # what is said anyway takes its place
            time.sleep(0.1)
            lines.note("a remark")
    time.sleep(0.3)
    told = printed(capsys)
    assert told[0].startswith("guestmark: block 1, 1 of 3 cells done; tcg booting, ")
    assert any("tcg measuring 1/3, " in line for line in told)
    assert told[-5:] == ["guestmark: a remark"] * 5
    assert len(told) <= 9

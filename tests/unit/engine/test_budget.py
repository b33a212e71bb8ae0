"""`--for`: what is measured within some minutes, which questions are asked, and when they are answered."""

import json
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guestmark.core.context import Caller, Context
from guestmark.core.errors import UsageError
from guestmark.core.metric import Better
from guestmark.core.model import (
    Cell,
    Plan,
    Policy,
    Published,
    PublishedFigure,
    Question,
    QuestionKind,
    RunState,
)
from guestmark.core.units import parse_duration
from guestmark.engine import budget
from guestmark.engine.question_status import (
    COMPARING_QUESTIONS,
    compare_asked_pairs,
    keep_answerable_questions,
    split_question,
)
from guestmark.engine.time_estimate import TrialCosts, read_trial_costs
from guestmark.ledger.model import StoredRun
from guestmark.plan import library
from guestmark.plan.load import load_outline
from guestmark.plan.outline import Overrides, assemble_plan, note_unequal_processors, override_outline
from guestmark.stats import compare_table, is_precise_enough, stopping
from guestmark.stats.analysis import analyse_run
from guestmark.stats.compare import MIN_BLOCKS, Verdict
from guestmark.stats.paired import summarise_trials
from guestmark.stats.repetition import ANSWER_PRECISION
from tests.framework.cells import cell_of, plan_of
from tests.framework.command_line import CommandLine
from tests.unit.report.test_question_answers import EXT3, run_of

PLAN = """
schema = "guestmark-plan/1"
name = "sleeps"
title = "Which sleep is longer?"
platforms = ["host"]
metrics = ["wall_s"]

[workloads.short]
kind = "exec"
params.command = ["sleep", "0.02"]

[workloads.long]
kind = "exec"
params.command = ["sleep", "0.2"]

[workloads.dear]
kind = "exec"
params.command = ["sleep", "1.2"]

[workloads.dearer]
kind = "exec"
params.command = ["sleep", "1.5"]

[repetition]
min_blocks = 6
time_limit = "10min"
warmup = 0
iterations = 1
null = "none"

[[question]]
ask = "Is long slower?"
wants = "compare"
compare = { workload = "long" }
against = { workload = "short" }

[[question]]
ask = "Is dearer slower?"
wants = "compare"
compare = { workload = "dearer" }
against = { workload = "dear" }
"""


def built_in(name: str, scale: float = 1.0) -> Plan:
    return assemble_plan(load_outline(library.read_builtin(name), name, scale=scale), Caller())


def load_answerable(name: str, given: Overrides, scale: float) -> Plan:
    outline = load_outline(library.read_builtin(name), name, scale=scale)
    plan, _ = keep_answerable_questions(assemble_plan(override_outline(outline, given), Caller()), ())
    return plan


def test_a_budget_ends_in_an_answer_within_its_time(guestmark: CommandLine, tmp_path: Path) -> None:
    """Two questions fit before anything is known; later there is only time for the first, which is answered."""
    plan = tmp_path / "sleeps.toml"
    plan.write_text(PLAN)
    first = guestmark("run", str(plan), "--for", "13s", "--json", "-")
    assert "no time for" in first.stderr
    document = json.loads(first.stdout)
    assert document["run"]["state"] in {"complete", "stopped at the time limit"}
    asked = document["questions"]
    assert [(answer["ask"], answer["answered"]) for answer in asked] == [
        ("Is long slower?", True),
        ("Is dearer slower?", False),
    ]
    # What its blocks show is said, though they are too few.
    assert "more blocks would tell" in asked[1]["sentences"][0]
    # Now it is known what a trial takes, and said before the run.
    again = guestmark("run", str(plan), "--for", "9s", "--json", "-")
    assert "not asked, to stay within 9 s: Is dearer slower?" in again.stderr
    assert re.search(r"2 cells, about \d s for 6 blocks", again.stderr)


_DEARER_THAN_IT_IS = """
schema = "guestmark-plan/2"
name = "dear"
title = "Three commands, each of them declared to take as long as the budget"
platforms = ["host"]
metrics = ["wall_s"]
workloads.a = { kind = "exec", params.command = ["sleep", "0.01"] }
workloads.b = { kind = "exec", params.command = ["sleep", "0.02"] }
workloads.c = { kind = "exec", params.command = ["sleep", "0.03"] }
repetition = { blocks = 1, warmup = 0, iterations = 1, null = "none" }
cost = { host = "9s" }
"""
_ONE_BLOCK = """
[[question]]
ask = "Is it safe?"
wants = "durability"
"""


@pytest.mark.parametrize("more", ["", _ONE_BLOCK], ids=["blocks", "one block"])
def test_what_was_left_out_comes_back_once_a_run_shows_what_it_takes(
    guestmark: CommandLine, tmp_path: Path, more: str
) -> None:
    plan = tmp_path / "dear.toml"
    plan.write_text(_DEARER_THAN_IT_IS + more)
    done = guestmark("run", plan, "--for", "10s", "--json", "-", timeout=60)
    assert done.status == 0, done.stderr
    assert "left out to stay within 10 s: b host, c host" in done.stderr
    measured = [cell["id"] for cell in done.document()["cells"] if cell["trials"]]
    assert measured == ["a host", "b host", "c host"]


def test_limits_do_not_stand_beside_a_budget_that_others_measure(guestmark: CommandLine) -> None:
    refused = guestmark("run", "upload", "--prepare-only", "--for", "5m", "--blocks", "3")
    assert refused.status == 2
    assert "--for cannot be combined with --blocks" in refused.stderr


def test_limits_do_not_stand_beside_a_budget(guestmark: CommandLine) -> None:
    refused = guestmark("run", "upload", "--for", "5m", "--blocks", "3")
    assert refused.status == 2
    assert "--for cannot be combined" in refused.stderr


@pytest.mark.parametrize("minutes", ["2m", "5m", "10m", "30m"])
@pytest.mark.parametrize("name", ["upload", "filesystems", "powercut", "fastest-safe"])
def test_what_a_budget_leaves_fits_into_it_and_can_be_answered(name: str, minutes: str) -> None:
    budget_s = parse_duration(minutes)
    plan = budget.choose_scale(lambda scale: built_in(name, scale), None, budget_s)
    plan, _ = keep_answerable_questions(plan, ())
    known = read_trial_costs(plan, None)
    fitted, notes = budget.fit_to_budget(plan, plan.cells, known, budget_s, 5.0)
    cells = budget.select_planned_cells(fitted, fitted.cells)
    found = budget.estimate_run_cost(fitted, cells, known)
    if plan.context.tune is None:
        assert found.proofs_s + found.block_s * found.fewest + 5.0 <= budget_s
        assert found.fewest >= (1 if name == "powercut" else stopping.FEWEST_IF_SETTLED)
        assert fitted.questions
    assert 2 <= len(cells) <= len(plan.cells)
    originals = [cell for cell in plan.cells if cell.null_of is None]
    assert bool(notes) == any(cell not in cells for cell in originals)
    for cell in cells:  # each still has what it is compared with
        assert any(other.baseline and other.compares_with(cell) for other in cells)
    after = budget.drop_unmeasured_cells(fitted, ())
    assert after.cells == tuple(cells)
    assert all(split_question(question, after.cells) for question in after.questions)


@pytest.mark.parametrize("minutes", [2, 5, 12])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sysbench", Overrides(on=["host", "uml", "tcg"])),
        ("sysbench", Overrides(on=["host", "tcg"], settings=["cpu=kvm64,max"], only="workload=cpu,memory")),
        ("netboot", Overrides(settings=["protocol=http,tftp"])),
        ("upload", Overrides(on=["tcg", "uml"])),
        ("backends", Overrides(on=["uml", "tcg", "tcg/uml"])),
        ("filesystems", Overrides(settings=["filesystem=ext4,btrfs"])),
    ],
)
def test_what_was_named_is_measured_whatever_else_is_left_out(
    name: str, given: Overrides, minutes: int
) -> None:
    budget_s = 60.0 * minutes

    plan = budget.choose_scale(lambda scale: load_answerable(name, given, scale), None, budget_s)
    fitted, _ = budget.fit_to_budget(plan, plan.cells, read_trial_costs(plan, None), budget_s, 5.0)
    kept = {cell.id for cell in budget.select_planned_cells(fitted, fitted.cells)}
    assert plan.context.named
    for level in plan.context.named:
        assert kept.intersection(level), f"nothing is left of {level}"


PUBLISHED = [
    ("backends", Overrides(on=["uml", "tcg", "tcg/uml", "tcg/kvm"])),
    ("upload", Overrides()),
    ("sysbench", Overrides(on=["host", "uml", "tcg"])),
    ("netboot", Overrides()),
    ("filesystems", Overrides()),
]


@pytest.mark.parametrize(("name", "given"), PUBLISHED)
def test_a_quarter_of_an_hour_has_room_for_every_question(name: str, given: Overrides) -> None:
    plan = budget.choose_scale(lambda scale: load_answerable(name, given, scale), None, 900.0)
    fitted, _ = budget.fit_to_budget(plan, plan.cells, read_trial_costs(plan, None), 900.0, 5.0)
    kept = budget.select_planned_cells(fitted, fitted.cells)
    assert plan.questions
    for question in plan.questions:
        assert split_question(question, kept), question.ask


@pytest.mark.parametrize("name", [name for name, _ in PUBLISHED])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_question_is_asked_where_there_is_time_for_one_answer_to_each(
    name: str, data: st.DataObject
) -> None:
    plan = load_answerable(name, Overrides(), 0.01)
    prices = st.lists(st.floats(0.5, 60), min_size=len(plan.cells), max_size=len(plan.cells))
    costs = dict(zip((cell.id for cell in plan.cells), data.draw(prices), strict=True))
    needed: dict[str, Cell] = {}
    for question in plan.questions:
        pairs = []
        for part in split_question(question, plan.cells):
            pairs.append(sorted(part.cells, key=lambda cell: costs[cell.id])[:2])
        cheapest = min(pairs, key=lambda pair: sum(costs[cell.id] for cell in pair))
        needed |= {cell.id: cell for cell in cheapest}
    for cell in plan.cells:
        if cell.baseline and any(cell.compares_with(other) for other in needed.values()):
            needed[cell.id] = cell
    # A little more than so many blocks of these cells take, and far less than all cells take.
    enough_s = stopping.FEWEST_IF_SETTLED * sum(costs[cell_id] for cell_id in needed) + 10.0
    fitted, _ = budget.fit_to_budget(plan, plan.cells, TrialCosts(costs, 0, 0.0), enough_s, 5.0)
    kept = budget.select_planned_cells(fitted, fitted.cells)
    for question in plan.questions:
        assert split_question(question, kept), question.ask


@given(
    start_s=st.floats(0.1, 40),
    work_s=st.floats(0.1, 400),
    budget_s=st.floats(30, 20_000),
    least=st.sampled_from(budget.SCALES),
)
def test_sizes_shrink_only_where_that_saves_time(
    start_s: float, work_s: float, budget_s: float, least: float
) -> None:
    plans = {}
    for scale in budget.SCALES:
        plan = load_answerable("filesystems", Overrides(on=["tcg"]), max(scale, least))
        context = replace(plan.context, scale=scale, start={"tcg": start_s}, cost={"tcg": start_s + work_s})
        plans[scale] = replace(plan, context=context)
    chosen = budget.choose_scale(plans.__getitem__, None, budget_s).context.scale
    scales = [scale for scale in budget.SCALES if scale >= least]
    takes = {scale: len(plans[scale].cells) * (start_s + scale * work_s) for scale in scales}
    blocks_s = budget_s - 5.0
    smallest = scales[-1]
    # Every answer's six blocks fit, or nothing smaller would help.
    assert MIN_BLOCKS * takes[chosen] <= blocks_s * 1.001 or chosen == smallest
    for larger in scales[: scales.index(chosen)]:
        assert (MIN_BLOCKS + 2) * takes[larger] > blocks_s * 0.999
        assert takes[smallest] <= 0.801 * takes[larger] or MIN_BLOCKS * takes[larger] > blocks_s * 0.999


def test_a_baseline_is_never_left_alone_where_no_question_is_asked() -> None:
    given = Overrides(on=["tcg"], settings=["network=tap,user"])
    plan = assemble_plan(
        override_outline(load_outline(library.read_builtin("network"), "network"), given), Caller()
    )
    plan = replace(plan, questions=())  # as inside another guest, where none of them can be asked
    cells = [cell for cell in plan.cells if cell.null_of is None]
    assert len(cells) == 2
    for budget_s in (20.0, 60.0, 120.0):
        fitted, _ = budget.fit_to_budget(plan, plan.cells, read_trial_costs(plan, None), budget_s, 5.0)
        kept = {cell.id for cell in budget.select_planned_cells(fitted, fitted.cells)}
        assert {cell.id for cell in cells} <= kept


def test_a_single_trial_has_all_of_the_time_or_is_not_begun() -> None:
    plan = built_in("clones")
    (cell,) = plan.cells
    costs = TrialCosts({cell.id: 120.0}, 0, 0.0)
    fitted, notes = budget.fit_to_budget(plan, plan.cells, costs, 300.0, 5.0)
    assert (fitted.policy.blocks, notes) == (1, [])
    assert fitted.policy.trial_limit_s == pytest.approx(293.0)
    with pytest.raises(UsageError, match="60 s is too short for the only trial") as refused:
        budget.fit_to_budget(plan, plan.cells, costs, 60.0, 5.0)
    assert refused.value.hint == "use --for 130s"


def test_enough_time_asks_everything() -> None:
    plan, _ = keep_answerable_questions(built_in("upload", 0.05), ())
    known = read_trial_costs(plan, None)
    spent = (
        budget.fit_to_budget(plan, plan.cells, known, minutes * 60.0, 0.0)[0] for minutes in (1, 2, 4, 8, 16)
    )
    asked = [len(budget.drop_unmeasured_cells(each, ()).questions) for each in spent]
    assert asked[0] >= 1
    assert asked[-1] == len(plan.questions)


def test_a_question_that_cannot_be_answered_is_not_asked() -> None:
    plan = built_in("upload")
    proven = next(question for question in plan.questions if question.disk)
    without, notes = keep_answerable_questions(plan, ())
    assert proven not in without.questions
    assert any("it needs --prove" in note for note in notes)
    in_memory = replace(plan, context=replace(plan.context, prove=True))
    without, notes = keep_answerable_questions(in_memory, ())
    assert proven not in without.questions
    assert any("its disks are in memory" in note for note in notes)


def test_too_few_blocks_answer_nothing_and_say_so() -> None:
    plan = built_in("upload")
    short, notes = keep_answerable_questions(replace(plan, policy=replace(plan.policy, blocks=1)), ())
    assert not short.questions
    assert any("1 block cannot show a difference" in note for note in notes)
    few, _ = keep_answerable_questions(replace(plan, policy=replace(plan.policy, blocks=3)), ())
    assert few.questions  # what is far beyond any scatter is shown by three


@pytest.mark.parametrize("name", sorted(library.list_plan_names()))
def test_every_question_of_a_built_in_plan_can_be_answered_on_a_plain_machine(name: str) -> None:
    """By host, uml and tcg, and what is nested in tcg: settings of the plan itself must not take answers away."""
    outline = load_outline(library.read_builtin(name), name)
    plain = {"host", "uml", "tcg", "tcg/uml", "tcg/kvm"}
    on = [str(platform) for platform in outline.shape.platforms if str(platform) in plain]
    plan = assemble_plan(override_outline(outline, Overrides(on=on)), Caller())
    proven = [question for question in plan.questions if question.durability or question.disk]
    asked, _ = keep_answerable_questions(plan, ())
    assert all(question in proven for question in plan.questions if question not in asked.questions)
    parts = chain.from_iterable(split_question(question, plan.cells) for question in asked.questions)
    about = {cell.id for part in parts for cell in part.cells}
    # A guest's row that no question is about takes time for nothing. The host's rows may be the ceiling of others.
    guests = [
        cell for cell in plan.cells if not (cell.baseline or cell.null_of or cell.platform.is_this_host)
    ]
    assert not asked.questions or about.issuperset(cell.id for cell in guests)
    for question in plan.questions:
        if question.wants not in COMPARING_QUESTIONS:
            continue
        for part in split_question(question, plan.cells):
            first, *others = part.cells
            for other in others:
                unequal = note_unequal_processors(
                    [replace(first, baseline=True), replace(other, baseline=False)]
                )
                asked_for = {cell.factors.get("smp") for cell in (first, other)}
                assert not unequal or len(asked_for) > 1, unequal


def test_a_trial_costs_what_its_start_does_whatever_the_scale() -> None:
    whole, small = (read_trial_costs(built_in("upload", scale), None) for scale in (1.0, 0.05))
    assert isinstance(small, TrialCosts)
    for cell, seconds in small.trial_s.items():
        assert 0.05 * whole.trial_s[cell] < seconds < 0.2 * whole.trial_s[cell]


def test_a_plan_ends_when_its_questions_are_answered_whatever_the_other_cells_are() -> None:
    run = run_of({"ext2": 1.0, "ext3": 2.0, "ext4": 1.01, "xfs": 1.02}, EXT3, blocks=8)
    plan = replace(run.plan, policy=replace(run.plan.policy, blocks=None, min_blocks=6, precision=1e-4))
    analysis = analyse_run(plan, run.trials)
    everything = stopping.decide(plan, run.trials, 8, analysis, 100.0)
    assert everything.state is None  # the ratios of the others are not that precise
    pairs = compare_asked_pairs(plan, analysis, [cell.id for cell in plan.cells])
    assert pairs is not None
    asked = [pair.comparison for pair in pairs]
    assert len(asked) == 1  # ext3 over ext4, and nothing about the others
    assert stopping.decide(plan, run.trials, 8, analysis, 100.0, asked).state is RunState.COMPLETE
    equal = run_of({"ext2": 1.0, "ext3": 1.0, "ext4": 1.0}, EXT3, blocks=8)
    analysis = analyse_run(replace(plan, cells=equal.plan.cells), equal.trials)
    pairs = compare_asked_pairs(plan, analysis, [cell.id for cell in equal.plan.cells])
    assert pairs is not None
    asked = [pair.comparison for pair in pairs]
    assert stopping.decide(plan, equal.trials, 8, analysis, 100.0, asked).state is None


def open_cells(run: StoredRun, blocks: int) -> set[str]:
    """The cells that a run with a budget would measure after so many blocks."""
    plan = replace(run.plan, context=replace(run.plan.context, budget_s=600.0))
    analysis = analyse_run(plan, [trial for trial in run.trials if trial.block < blocks])
    pairs = compare_asked_pairs(plan, analysis, [cell.id for cell in plan.cells])
    published = budget.compare_published_cells(plan, plan.cells, analysis)
    return budget.find_open_cells(plan, pairs, published, plan.cells, analysis)


def test_a_published_ratio_is_open_until_it_has_a_verdict() -> None:
    """Three blocks show a difference far beyond any scatter, but not one of three times (`paired.early_p`)."""
    run = run_of({"ext2": 1.0, "ext3": 2.0, "ext4": 1.0, "xfs": 3.0}, EXT3)
    figures = (PublishedFigure({"filesystem": "xfs"}, 2.0, 1.0),)
    then = Published("then", "throughput", "MB/s", "throughput", figures)
    published = replace(run, plan=replace(run.plan, published=(then,)))
    assert open_cells(run, 2) == open_cells(run, 3) == {"ext3", "ext4"}
    for blocks in (2, 3):
        assert open_cells(published, blocks) == {"ext3", "ext4", "xfs", "ext2"}  # ext2 is the baseline
    assert not {"xfs", "ext2"} & open_cells(published, 6)
    # Nor does the run end before.
    plan = replace(published.plan, context=replace(published.plan.context, budget_s=600.0))
    analysis = analyse_run(plan, [trial for trial in run.trials if trial.block < 3])
    pairs = budget.compare_published_cells(plan, plan.cells, analysis)
    assert [(pair.first, pair.second) for pair in pairs] == [("xfs", "ext2")]
    open_yet = stopping.decide(plan, run.trials, 3, analysis, 100.0, [pair.comparison for pair in pairs])
    assert open_yet.state is None
    gone = [cell for cell in plan.cells if cell.id != "xfs"]
    assert not budget.compare_published_cells(plan, gone, analysis)


def test_what_becomes_of_flushes_takes_three_blocks() -> None:
    safe = Question("Is it safe?", QuestionKind.DURABILITY, where={"filesystem": ("xfs",)})
    run = run_of({"ext2": 1.0, "ext3": 1.0, "ext4": 1.0, "xfs": 3.0}, EXT3, safe)
    assert open_cells(run, 2) == {"ext3", "ext4", "xfs"}
    assert open_cells(run, 3) == {"ext3", "ext4"}
    compared = replace(EXT3, compare={"filesystem": ("xfs",)})
    asked_more = replace(run, plan=replace(run.plan, questions=(EXT3, safe, compared)))
    assert "xfs" in open_cells(asked_more, 2)


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_ending_when_the_answer_is_known_claims_no_more_than_chance_allows(spread: float) -> None:
    """Two equal cells, looked at after every block. Twelve or more of 120 would be claimed once in 100 times at 5 %."""
    random = np.random.default_rng(3)
    claims = 0
    for _ in range(120):
        a, b = np.exp(random.normal(0, spread, (2, 14)))
        for blocks in range(MIN_BLOCKS, 15):
            found = compare_table(
                {"a": a[:blocks], "b": b[:blocks]}, "b", better=Better.LOWER, margin=Policy().margin
            )["a"]
            if is_precise_enough(found, 0.03, ANSWER_PRECISION):
                break
        claims += found.verdict in {Verdict.FASTER, Verdict.SLOWER}
    assert claims < 12


@pytest.mark.parametrize("values", [(300.0, 26_012.0), (1e-9, 76.0, 40.0), (0.5, 0.51)])
def test_a_time_is_never_below_zero(values: tuple[float, ...]) -> None:
    found = summarise_trials(np.array(values))
    assert found.ci is not None
    assert 0 < found.ci[0] < found.mean < found.ci[1]


@pytest.mark.parametrize("budget", ["4m", "10m"])
def test_what_is_named_is_measured_whether_a_question_is_about_it_or_not(
    guestmark: CommandLine, budget: str
) -> None:
    """The plan's questions name no sandboxes."""
    listed = guestmark("run", "cpu", "--on", "host,bwrap,uml,tcg", "--for", budget, "--list").stdout
    assert {"primes bwrap", "syscalls bwrap"} <= set(listed.splitlines())


def test_a_platform_of_unknown_cost_does_not_shrink_a_large_budget(guestmark: CommandLine) -> None:
    done = guestmark("run", "sysbench", "--on", "host,bwrap,uml", "--for", "10h", "--list")
    assert "(0.01 of the plan's)" not in done.stderr


@given(st.floats(min_value=0.1, max_value=1e5))
def test_what_is_said_to_suffice_suffices(seconds: float) -> None:
    assert budget._round_up(seconds) >= seconds


def test_a_gated_row_that_was_never_measured_stays_for_its_gate() -> None:
    cells = [cell_of("host", "exec", command=["true"]), cell_of("uml", "exec", command=["true"])]
    cells = [replace(cells[0], id="host", baseline=True), replace(cells[1], id="uml")]
    plan = replace(plan_of(*cells), context=Context(no_time=("uml",), budget_s=60.0))
    assert [cell.id for cell in budget.drop_unmeasured_cells(plan, ()).cells] == ["host"]
    gated = replace(plan, context=replace(plan.context, gates=("uml > +5%",)))
    assert [cell.id for cell in budget.drop_unmeasured_cells(gated, ()).cells] == ["host", "uml"]


def test_no_cell_that_can_be_measured_is_no_fault() -> None:
    cell = replace(cell_of("host", "exec", command=["true"]), id="host", baseline=True)
    plan = replace(plan_of(cell), context=Context(budget_s=240.0))
    assert budget.refit_cells(plan, [], [], 241.0, (), lambda: TrialCosts({}, 0, 1.0)) == ()

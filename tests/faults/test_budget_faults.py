"""Budgets that are too short or far too long, and cells that fail, hang or take ten times as long as the others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine
from tests.framework.marks import long

PLAN = """
schema = "guestmark-plan/1"
name = "budgets"
title = "Which is slower?"
platforms = ["host"]
metrics = ["wall_s"]

[workloads.short]
kind = "exec"
params.command = ["sleep", "0.02"]

[workloads.long]
kind = "exec"
params.command = ["sleep", "0.2"]

[workloads.other]
kind = "exec"
params.command = {command}

[repetition]
min_blocks = 6
time_limit = "10min"
warmup = 0
iterations = 1
null = "none"

[[question]]
ask = "Is long slower?"
wants = "compare"
compare = {{ workload = "long" }}
against = {{ workload = "short" }}

[[question]]
ask = "Is the other slower?"
wants = "compare"
compare = {{ workload = "other" }}
against = {{ workload = "short" }}
"""


def run_plan(
    guestmark: CommandLine, folder: Path, command: Sequence[str], budget: str, *more: str
) -> tuple[Any, dict[str, bool], str]:
    """Return the document, which of its questions were answered, and what was said meanwhile."""
    plan = folder / "plan.toml"
    plan.write_text(PLAN.format(command=json.dumps(list(command))))
    done = guestmark("run", str(plan), "--for", budget, "--json", "-", *more, timeout=150)
    document = json.loads(done.stdout)
    answered = {answer["ask"]: bool(answer["answered"]) for answer in document["questions"]}
    return document, answered, done.stderr


def find_other(document: Any) -> Any:
    """Return the cell of the workload that tests choose."""
    return next(cell for cell in document["cells"] if cell["id"].startswith("other"))


def test_a_cell_that_always_fails_costs_no_other_its_answer(guestmark: CommandLine, tmp_path: Path) -> None:
    document, answered, said = run_plan(guestmark, tmp_path, ["false"], "20s")

    assert answered["Is long slower?"]
    assert "has failed 3 times and never succeeded" in said
    assert len(find_other(document)["trials"]) == 3


def test_a_budget_far_too_long_ends_with_the_last_answer(guestmark: CommandLine, tmp_path: Path) -> None:
    document, answered, _ = run_plan(guestmark, tmp_path, ["sleep", "0.4"], "10h")

    assert answered == {"Is long slower?": True, "Is the other slower?": True}
    assert document["run"]["state"] == "complete"


@pytest.mark.parametrize("budget", [long("5s"), "1s"])
def test_a_budget_far_too_short_says_so(guestmark: CommandLine, tmp_path: Path, budget: str) -> None:
    document, answered, said = run_plan(guestmark, tmp_path, ["sleep", "2"], budget)

    # A quiet machine answers the other question, whose commands are short, in a second.
    assert not answered.get("Is the other slower?")
    assert document["cells"]
    assert "is too short even for" in said or "no time for" in said or "not asked" in said


@pytest.mark.long
def test_cells_that_the_first_block_did_not_reach_are_named(guestmark: CommandLine, tmp_path: Path) -> None:
    # The first cell of this order takes all of the time.
    document, answered, said = run_plan(guestmark, tmp_path, ["sleep", "5"], "5s", "--seed", "4")

    assert len(find_other(document)["trials"]) == 1
    assert not any(answered.values())
    assert "no time for short host, long host, not measured at all" in said


@pytest.mark.long
def test_a_cell_that_takes_ten_times_as_long_leaves_the_others_their_answer(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    _, answered, _ = run_plan(guestmark, tmp_path, ["sleep", "2"], "20s")

    assert answered["Is long slower?"]


@pytest.mark.long
def test_a_cell_that_hangs_is_killed_within_a_part_of_the_budget(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    document, answered, said = run_plan(guestmark, tmp_path, ["sleep", "1000"], "70s")

    assert answered["Is long slower?"]
    # Whether it hangs or only needs longer than its share cannot be told: it is said, and nothing is called failed.
    assert not answered.get("Is the other slower?")
    assert (find_other(document)["status"], find_other(document)["trials"]) == ("pending", [])
    assert "no time for other host: its first trial was stopped after" in " ".join(said.split())
    assert document["run"]["failed"] == 0


def test_a_run_goes_on_after_its_budget(guestmark: CommandLine, tmp_path: Path) -> None:
    """Before, a resumed run kept the budget that was used up, left out every cell, and ended at once."""
    first, _, _ = run_plan(guestmark, tmp_path, ["sleep", "1"], "6s")
    before = sum(len(cell["trials"]) for cell in first["cells"])

    done = guestmark("resume", first["run"]["id"], "--time-limit", "60s", "--json", "-", timeout=150)

    document = json.loads(done.stdout)
    assert sum(len(cell["trials"]) for cell in document["cells"]) > before
    assert all(answer["answered"] for answer in document["questions"])


def test_a_level_that_no_platform_takes_is_refused_before_anything_runs(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(command='["true"]'))

    refused = guestmark("run", str(plan), "--for", "20s", "--set", "memory=1G")

    assert refused.status == 2
    assert "memory" in refused.stderr

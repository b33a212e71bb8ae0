"""The second edition of plans: factors of the user's own, what runs around a command, gates; figures out of JSON."""

import json
from pathlib import Path

import pytest

from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.gate import GATES
from guestmark.core.metric_spec import MetricSpec, parse_metric
from guestmark.core.model import Plan
from guestmark.plan.load import load
from guestmark.plan.outline import assemble
from guestmark.workloads.exec.workload import filled
from tests.framework.command_line import CommandLine

PLAN = """
schema = "guestmark-plan/2"
name = "levels"
title = "Which level?"
platforms = ["host"]
baseline = { level = 3 }
fail_if = ["level=1 > +400%"]

[factors]
level = [1, 3]

[workloads.gzip]
kind = "exec"
params.command = ["sh", "-c", "echo {level} >>{log}; awk '{print}' /dev/null"]
params.prepare = "echo before {level} >>{log}"
params.values.log = "LOG"

[repetition]
blocks = 2
iterations = 1
warmup = 0
null = "none"
"""


def made(text: str) -> Plan:
    return assemble(load(text, "plan.toml"), {})


def test_a_plan_has_factors_of_its_own() -> None:
    plan = made(PLAN)
    assert [cell.id for cell in plan.cells] == ["host level=1", "host level=3"]
    assert [cell.baseline for cell in plan.cells] == [False, True]
    assert filled(plan.cells[0])[2] == "echo 1 >>LOG; awk '{print}' /dev/null"
    assert plan.context[GATES] == ["level=1 > +400%"]


def test_the_first_edition_still_loads_and_has_none() -> None:
    with pytest.raises(UsageError) as caught:
        made(PLAN.replace("plan/2", "plan/1"))
    assert "unknown factor 'level'" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("level = [1, 3]", "levl = [1, 3]", "levl"),
        ("level = [1, 3]", "level = [1, 1]", "given twice"),
        ("{ level = 3 }", "{ level = 9 }", "no cell of the plan has level=9"),
        ("level=1 > +400%", "level=1 > much", "is not a limit"),
        ("guestmark-plan/2", "guestmark-plan/3", "schema"),
    ],
)
def test_mistakes_are_named(old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(PLAN.replace(old, new))
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_a_plan_of_the_second_edition_runs(guestmark: CommandLine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "plan.toml").write_text(PLAN.replace('"LOG"', json.dumps(str(log))))
    done = guestmark("run", tmp_path / "plan.toml", "--quiet", "--json", "-")
    assert done.status == 125, done.stderr  # two blocks cannot decide a gate
    lines = log.read_text().splitlines()
    assert sorted(lines) == ["1", "1", "3", "3", "before 1", "before 1", "before 3", "before 3"]
    assert all(lines[at] == f"before {lines[at + 1]}" for at in range(0, len(lines), 2))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("jobs.0.read.bw", '{"jobs": [{"read": {"bw": 1.5e3}}]}', 1500.0),
        ("n", 'starting\n{"n": 7}', 7.0),
        ("n", '{"n": "1,234"}', 1234.0),
        ("", "12", 12.0),
    ],
)
def test_figures_out_of_json(path: str, text: str, value: float) -> None:
    spec = parse_metric(f"bw:B/s:higher=json:{path}")
    assert MetricSpec.from_params(spec.to_params()) == spec
    assert spec.extract("no JSON", text) == value


@pytest.mark.parametrize(
    "text", ["", "{", '{"m": 1}', '{"n": null}', '{"n": true}', '{"n": NaN}', '{"n": [1]}', "[" * 99_999]
)
def test_json_without_the_figure_is_told(text: str) -> None:
    with pytest.raises(WorkloadError, match="no output is JSON with a number at 'n'"):
        parse_metric("n=json:n").extract(text)

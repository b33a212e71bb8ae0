"""The second edition of plans: factors of the user's own, what runs around a command, gates; figures out of JSON."""

import json
from pathlib import Path

import pytest

from guestmark.core.context import Caller
from guestmark.core.derived import parse_derived
from guestmark.core.errors import UsageError, WorkloadError
from guestmark.core.metric_spec import MetricSpec, parse_metric
from guestmark.core.model import Plan
from guestmark.plan.load import load_outline
from guestmark.plan.outline import assemble_plan
from guestmark.workloads.exec.plan import ExecOptions, build_plan
from guestmark.workloads.exec.trial import ExecTrial, substitute_levels
from tests.framework import CHECKOUT
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
    return assemble_plan(load_outline(text, "plan.toml"), Caller())


def test_a_plan_has_factors_of_its_own() -> None:
    plan = made(PLAN)
    assert [cell.id for cell in plan.cells] == ["host level=1", "host level=3"]
    assert [cell.baseline for cell in plan.cells] == [False, True]
    assert substitute_levels(plan.cells[0])[2] == "echo 1 >>LOG; awk '{print}' /dev/null"
    assert plan.context.gates == ("level=1 > +400%",)


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
    assert spec.extract_value("no JSON", text) == value


@pytest.mark.parametrize(
    "text", ["", "{", '{"m": 1}', '{"n": null}', '{"n": true}', '{"n": NaN}', '{"n": [1]}', "[" * 99_999]
)
def test_json_without_the_figure_is_told(text: str) -> None:
    with pytest.raises(WorkloadError, match="the output is not JSON with a number at 'n'"):
        parse_metric("n=json:n").extract_value(text)


def shown_in(page: str) -> list[str]:
    """The plans of the second edition that a page of the documentation shows."""
    blocks = (CHECKOUT / page).read_text().split("```toml\n")[1:]
    return [text for block in blocks if "guestmark-plan/2" in (text := block.partition("```")[0])]


def test_the_documented_plan_runs(guestmark: CommandLine, tmp_path: Path) -> None:
    first, second = shown_in("docs/reference/plan-commands.md")
    (tmp_path / "compress.toml").write_text(first)
    (tmp_path / "second.toml").write_text(second)
    done = guestmark(
        "run", tmp_path / "compress.toml", "--quiet", "--warmup", "0", "--override", "fail_if=[]", "--json", "-",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 0, done.stderr
    document = done.document()
    (trial,) = document["cells"][1]["trials"]
    measured, rounds = trial["measurements"], trial["iterations"]
    assert document["plan"]["metrics"][0]["name"] == "mb_per_s"
    size = len("".join(f"{number}\n" for number in range(1, 20001)))
    assert rounds["bytes"] == rounds["read"] == [size, size]
    for each, wall in zip(rounds["mb_per_s"], rounds["wall_s"], strict=True):
        assert each == pytest.approx(size / wall / 1e6)
    assert measured["seconds_a_level"] == pytest.approx(measured["wall_s"] / 9)
    around = trial["attestation"]["around_s"]
    counts = {name: len(times) for name, times in around.items()}
    assert counts == {"setup": 1, "prepare": 2, "check": 2, "conclude": 2, "cleanup": 1}
    assert set(trial["attestation"]["host_around_s"]) == {"prepare", "conclude"}
    assert not (tmp_path / "words").exists()
    listed = guestmark("run", tmp_path / "second.toml", "--list", cwd=tmp_path)
    assert listed.stdout.splitlines()[0] == "tcg level=1  # baseline"
    assert len(listed.stdout.splitlines()) == 4  # without a null copy, as the plan below has it
    assert "10 blocks" in listed.stderr


def test_what_runs_around_a_run(guestmark: CommandLine, tmp_path: Path) -> None:
    around = '\n[around.run]\nsetup = "echo setup >>LOG"\ncleanup = "echo cleanup >>LOG"\n[around.trial]\n'
    around += 'prepare = "echo prepare >>LOG"\nconclude = "echo conclude >>LOG"\n'
    (tmp_path / "plan.toml").write_text(PLAN.replace("fail_if", "# ") + around)
    words = ("run", tmp_path / "plan.toml", "--blocks", "1", "--quiet", "--json", "-")
    done = guestmark(*words, cwd=tmp_path)
    assert done.status == 0, done.stderr
    lines = (tmp_path / "LOG").read_text().split()
    assert lines[0] == "setup"
    assert lines[1] == "prepare"
    assert lines.count("conclude") == 2
    assert lines[-2:] == ["conclude", "cleanup"]
    failing = guestmark(*words, "--override", 'around.run.setup="exit 3"', cwd=tmp_path)
    assert failing.status not in {0, 2}
    assert "around.run.setup: the command failed with exit status 3" in failing.stderr
    assert (tmp_path / "LOG").read_text().split()[len(lines) :] == ["cleanup"]
    (tmp_path / "LOG").unlink()
    assert guestmark(*words, "--override", 'workloads.gzip.params.check="exit 1"', cwd=tmp_path).status == 3
    lines = (tmp_path / "LOG").read_text().split()
    assert lines.count("conclude") == lines.count("prepare") > 0  # also after a trial that failed
    failed = guestmark(*words, "--override", 'around.trial.prepare="exit 3"', cwd=tmp_path)
    assert failed.status == 3
    assert "around.trial.prepare" in failed.stdout


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("check", "exit 1", "--check: the command failed with exit status 1"),
        ("expect", "never said", "nothing in its output matches"),
        ("statuses", [3], "exit status 0"),
        ("metrics", ["n=file:LOG#json:n"], "LOG is not JSON with a number"),
    ],
)
def test_a_command_that_succeeds_may_still_have_failed(
    guestmark: CommandLine, tmp_path: Path, option: str, value: object, said: str
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("fail_if", "# "))
    override = f"workloads.gzip.params.{option}={json.dumps(value)}"
    done = guestmark(
        "run", tmp_path / "plan.toml", "--blocks", "1", "--quiet", "--override", override, "--json", "-",
        "--only", "level=1", cwd=tmp_path,
    )  # fmt: skip
    assert done.status == 3
    assert said in json.loads(done.stdout)["cells"][0]["trials"][0]["reason"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a + b * 2", 7.0),
        ("-a ** 2", -1.0),
        ("max(a, b, 2) / min(a, b)", 3.0),
        ("sqrt(b + 1) - abs(-a)", 1.0),
    ],
)
def test_arithmetic_of_derived_metrics(expression: str, value: float) -> None:
    assert parse_derived("m", expression).compute_value({"a": 1.0, "b": 3.0}) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    ["a b", "__import__('os')", "a.b", "a[0]", "True", "'a'", "f(a)", "max()", "a if a else b", "1" * 501],
)
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|longer"):
        parse_derived("m", text)


@pytest.mark.parametrize("text", ["1 / (a - 1)", "log(0 * a)", "1e300 ** 2", "(0 - a) ** 0.5"])
def test_what_has_no_value_fails_the_trial(text: str) -> None:
    with pytest.raises(WorkloadError, match="metric m: "):
        parse_derived("m", text).compute_value({"a": 1.0})


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[derived]\nx = "wal_s * 2"', "nothing measures wal_s"),
        ('[derived]\nwall_s = "user_s"', "wall_s is already measured"),
        ('[derived]\nx = "import os"', "is not an allowed expression"),
        ('[around.trials]\nprepare = "x"', "trials"),
    ],
)
def test_mistakes_of_new_tables_are_named(table: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        made(f"{PLAN}\n{table}\n")
    assert said in f"{caught.value.message} {caught.value.hint}"
    with pytest.raises(UsageError):
        made(PLAN.replace("plan/2", "plan/1") + '\n[derived]\nx = "wall_s * 2"\n')


def test_a_plan_that_extends_itself_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    (tmp_path / "b.toml").write_text('extends = "./a.toml"')
    with pytest.raises(UsageError, match="extends itself"):
        load_outline((tmp_path / "a.toml").read_text(), str(tmp_path / "a.toml"))
    with pytest.raises(UsageError, match="cannot be read"):
        load_outline('extends = "none.toml"', str(tmp_path / "a.toml"))
    with pytest.raises(UsageError, match="is not KEY=VALUE"):
        load_outline(PLAN, "plan.toml", overrides=["repetition.blocks"])


def test_derived_metrics_on_the_command_line(guestmark: CommandLine) -> None:
    done = guestmark(
        "exec", "--metric", "n=([0-9]+)", "--metric", "twice=expr:2 * n", "--blocks", "1", "--iterations", "1",
        "--null", "none", "--quiet", "--json", "-", "--", "echo", "21",
    )  # fmt: skip
    measured = json.loads(done.stdout)["cells"][0]["trials"][0]["measurements"]
    assert measured["twice"] == 42
    assert guestmark("exec", "--metric", "twice=expr:2 * m", "--", "true").status == 2


def test_a_plan_that_is_called_as_a_command_gets_a_plan_s_advice() -> None:
    plan = made(PLAN.replace('"levels"', '"exec"').replace('["sh", "-c",', '["echo {level} again",'))
    with pytest.raises(UsageError) as caught:
        ExecTrial.check_request(plan, plan.cells)
    assert caught.value.hint.startswith("did you mean: command = [")
    typed = build_plan(ExecOptions(caller=Caller()), ["echo again"])
    with pytest.raises(UsageError) as caught:
        ExecTrial.check_request(typed, typed.cells)
    assert caught.value.hint == "did you mean: -- echo again"

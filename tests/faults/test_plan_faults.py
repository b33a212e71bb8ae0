"""`guestmark run` and `plans` end to end: real runs on the host, bad plans, and runs that are broken off."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine, Result, all_trials
from tests.framework.known import known
from tests.framework.processes import wait_until

PLAN = """
schema = "guestmark-plan/1"
name = "sleeps"
title = "Is longer longer?"
platforms = ["host"]
baseline = { workload = "short" }
compare_within = ["platform"]
scale = ["values.ms"]

[workloads.short]
kind = "exec"
label = "a short sleep"
params.command = ["sleep", "0.0{ms}"]
params.values.ms = 2

[workloads.long]
kind = "exec"
params.command = ["sh", "-c", "sleep 0.08"]

[repetition]
blocks = 6
warmup = 0
iterations = 1

[[published]]
source = "Nobody"
metric = "wall_s"
unit = "s"
percent_of = "time"
figures = [
    { cell = { workload = "short" }, value = 2 },
    { cell = { workload = "long" }, value = 8 },
    { cell = { workload = "long", platform = "kvm" }, value = 9 },
]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.toml"
    file.write_text(PLAN)
    return file


def run(guestmark: CommandLine, plan: Path, *arguments: object, **more: Any) -> Result:
    return guestmark("run", plan, "--quiet", "--json", "-", *arguments, **more)


def cells_of(result: Result) -> dict[str, Any]:
    return {cell["id"]: cell for cell in result.document()["cells"]}


def test_a_plan_runs_and_compares_across_workloads(guestmark: CommandLine, plan: Path) -> None:
    result = run(guestmark, plan)
    assert result.status == 0, result.stderr
    cells = cells_of(result)
    assert cells["short host"]["baseline"]
    assert not cells["long host"]["baseline"]
    compared = cells["long host"]["vs_baseline"]["wall_s"]
    assert compared["ratio"] > 1.5
    # Other tests run on the same processors, which may be said to have made the ratio.
    assert compared["verdict"] == "slower" or compared["reason"] in {"foreign load", "interval too wide"}
    assert [cell["workload"] for cell in cells.values()][:2] == ["a short sleep", "sh -c 'sleep 0.08'"]
    assert result.document()["plan"]["published"][0]["figures"][2]["value"] == 9


def test_then_and_now(guestmark: CommandLine, plan: Path) -> None:
    brief = guestmark("run", plan, "--quiet", "--then", "--blocks", 3)
    assert brief.status == 0
    assert re.search(
        r"Then and now, ×base \(wall time\)\n.*\n.*\nlong +×[0-9.]+ [✓~✗?] +×4\.00\n", brief.stdout
    )
    result = guestmark("run", plan, "--quiet", "--then", "--details", "--blocks", 3)
    assert result.status == 0
    assert "Then and now" in result.stdout
    assert "×4.00  +300 %" in result.stdout
    assert "workload=long platform=kvm: 9 s" in result.stdout
    again = guestmark("show", "last", "--then", "--details")
    shown = again.stdout.splitlines()  # and besides, what the run was measured on
    assert [line for line in result.stdout.splitlines() if line not in shown] == []
    assert "Then and now" not in guestmark("show", "last").stdout
    refused = guestmark("run", "cpu", "--then")
    assert refused.status == 2
    assert "no published figures" in refused.stderr


def test_scale_reaches_the_command(guestmark: CommandLine, plan: Path) -> None:
    result = run(guestmark, plan, "--scale", 2, "--blocks", 1, "--null", "none")
    assert result.status == 0
    short = cells_of(result)["short host"]
    assert short["trials"][0]["measurements"]["wall_s"] >= 0.04
    assert "scale" in result.document()["plan"]["context"]


def test_only_and_list(guestmark: CommandLine, plan: Path) -> None:
    listed = guestmark("run", plan, "--list")
    assert listed.status == 0
    assert [line.split("  ")[0] for line in listed.stdout.splitlines()] == [
        "short host", "long host", "short host#2",
    ]  # fmt: skip
    assert "no estimate yet" in listed.stderr
    result = run(guestmark, plan, "--only", "workload=long", "--blocks", 2)
    assert result.status == 0
    assert set(cells_of(result)) <= {"long host", "long host#2"}
    assert "baseline is missing in host" in result.stderr
    again = guestmark("run", plan, "--list", "--only", "long host")
    assert "measured in earlier runs here" in again.stderr
    assert guestmark("runs").stdout.count("complete") == 1  # listing measures nothing


def test_plans_are_listed_and_printed_ready_to_run(guestmark: CommandLine, tmp_path: Path) -> None:
    listed = guestmark("plans")
    assert listed.status == 0
    assert "cpu  What does virtualization cost" in listed.stdout
    assert "sysbench  What does a guest cost sysbench" in listed.stdout
    assert "at most 1 h 30 min" in listed.stdout
    # At most two lines of a plan, and each fits a wide terminal.
    assert max(map(len, listed.stdout.splitlines())) <= 120
    assert not guestmark.ledger.exists()
    shown = guestmark("plans", "show", "cpu")
    mine = tmp_path / "mine.toml"
    mine.write_text(shown.stdout)
    cells = guestmark("run", "./mine.toml", "--list", "--on", "host")
    assert cells.stdout == guestmark("run", "cpu", "--list", "--on", "host").stdout
    assert cells.stdout.startswith("primes host  # baseline\n")
    wrong = guestmark("plans", "show", "cup")
    assert wrong.status == 2
    assert "did you mean 'cpu'" in wrong.stderr
    assert guestmark("plans", "shw").status == 2


def test_a_reader_that_goes_away_ends_a_list_like_everything_else(guestmark: CommandLine) -> None:
    process = guestmark.start("plans")
    known(process.stdout).close()
    assert process.wait(60) == 141
    assert known(process.stderr).read() == b""
    known(process.stderr).close()


@pytest.mark.parametrize(
    ("change", "telling"),
    [
        (("blocks = 6", "blocks = six"), "is not TOML"),
        (
            ("blocks = 6", "block = 6"),
            "line 21: repetition.block: unknown key 'block' (did you mean 'blocks'?",
        ),
        (('platforms = ["host"]', 'platforms = ["hots"]'), "did you mean 'host'"),
        (('kind = "exec"', 'kind = "exce"'), "did you mean 'exec'"),
        (('"values.ms"', '"values.s"'), "neither a parameter nor a factor"),
        (("values.ms = 2", 'values.ms = "ext4"'), "cannot be scaled"),
    ],
)
def test_a_bad_plan_starts_nothing(
    guestmark: CommandLine, plan: Path, change: tuple[str, str], telling: str
) -> None:
    assert change[0] in PLAN
    plan.write_text(PLAN.replace(*change))
    result = guestmark("run", plan)
    assert result.status == 2
    assert telling in result.stderr
    assert not guestmark.ledger.exists()


@pytest.mark.parametrize(
    ("options", "telling"),
    [
        (["--on", "hots"], "did you mean 'host'"),
        (["--on", "ssh:"], "e.g. ssh:user@example.org"),
        (["--set", "smp=2"], "smp cannot be set on host"),
        (["--set", "spm=2"], "did you mean 'smp'"),
        (["--scale", "0"], "--scale"),
        (["--scale", "much"], "--scale"),
        (["--only", "workload=z"], "known: long, short"),
        (["--only", "nonsense"], "is not NAME=LEVEL"),
        (["--baseline", "uml smp=2"], "unknown baseline"),
        (["--blocks", "3", "--precision", "2%"], "cannot be combined"),
        (["--blocks", "3", "--time-limit", "2m"], "cannot be combined"),
        (["--time-limit", "0"], "above 0"),
    ],
)
def test_bad_options(guestmark: CommandLine, plan: Path, options: list[str], telling: str) -> None:
    result = guestmark("run", plan, *options)
    assert result.status == 2
    assert telling in result.stderr
    assert not guestmark.trials_of()


def test_files_that_are_no_plans(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(os.urandom(4096) + b"\xff")
    (tmp_path / "empty.toml").write_text("")
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + "[" * 100_000)
    for wanted in ("binary.toml", "empty.toml", "deep.toml", "/dev/zero", tmp_path, "./no.toml", "no"):
        result = guestmark("run", wanted)
        assert result.status == 2, (wanted, result.stderr)
        assert len(result.stderr) < 3000


def test_a_factor_no_platform_of_the_plan_takes_is_no_mistake(guestmark: CommandLine, plan: Path) -> None:
    plan.write_text(
        PLAN.replace("[workloads.short]", "[factors]\nmemory = ['256M', '512M']\n[workloads.short]")
    )
    result = guestmark("run", plan, "--list", "--on", "host")
    assert result.status == 0
    assert "memory does not apply to host" in result.stderr
    assert "short host  # baseline" in result.stdout


def test_an_interrupted_plan_goes_on_where_it_stopped(guestmark: CommandLine, plan: Path) -> None:
    hold, count = plan.with_name("hold"), plan.with_name("count")
    held = f"echo >>{count}; while [ -e {hold} ] && [ $(wc -l <{count}) -gt 3 ]; do sleep 0.05; done"
    plan.write_text(PLAN.replace("sleep 0.08", held))
    whole = run(guestmark, plan, "--seed", 5)
    count.unlink()
    hold.touch()
    process = guestmark.start("run", plan, "--seed", 5, "--quiet")
    assert wait_until(lambda: len(guestmark.runs()) == 2 and guestmark.trials_stored() > 3)
    assert "running" in guestmark("runs").stdout
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    hold.unlink()
    assert 3 < len(guestmark.trials_of()) < len(all_trials(whole.document()))
    resumed = guestmark("resume", "last", "--quiet", "--json", "-")
    assert resumed.status == 0
    assert all_trials(resumed.document()) == all_trials(whole.document())
    assert resumed.document()["plan"]["cells"] == whole.document()["plan"]["cells"]


@pytest.mark.long
def test_a_plan_with_a_factor_of_its_workload_goes_on(guestmark: CommandLine, tmp_path: Path) -> None:
    plan = tmp_path / "writes.toml"
    plan.write_text(
        'schema = "guestmark-plan/1"\nname = "writes"\ntitle = "Which blocks?"\nplatforms = ["host"]\n'
        '[workloads.filewrite]\nparams.amount = "1M"\nfactors.block_size = ["64K", "1M"]\n'
        "[repetition]\nblocks = 6\n"
    )
    process = guestmark.start("run", plan, "--quiet")
    assert wait_until(lambda: guestmark.trials_stored() > 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    resumed = guestmark("resume", "last", "--quiet", "--json", "-", timeout=180)
    assert resumed.status == 0
    assert {cell["factors"]["block_size"] for cell in resumed.document()["cells"]} == {"64K", "1M"}
    assert len(all_trials(resumed.document())) == 3 * 6  # the null copy, too


def test_a_command_of_a_plan_that_is_not_there_starts_nothing(guestmark: CommandLine, plan: Path) -> None:
    plan.write_text(PLAN.replace('command = ["sh", "-c", ', 'command = ["slepe", '))
    result = guestmark("run", plan)
    assert result.status == 2
    assert "did you mean 'sleep'" in result.stderr
    plan.write_text(PLAN.replace('command = ["sh", "-c", "sleep 0.08"]', 'command = ["sleep 0.08"]'))
    result = guestmark("run", plan)
    assert result.status == 2
    assert 'did you mean: command = ["sleep", "0.08"]' in result.stderr
    assert not guestmark.ledger.exists()


def test_one_failing_workload_does_not_stop_the_others(guestmark: CommandLine, plan: Path) -> None:
    plan.write_text(PLAN.replace('"sleep 0.08"', '"echo broken >&2; exit 3"'))
    result = run(guestmark, plan, "--blocks", 3)
    assert result.status == 1
    cells = cells_of(result)
    assert cells["short host"]["status"] == "ok"
    assert cells["long host"]["status"] == "failed"
    assert "broken" in cells["long host"]["reason"]

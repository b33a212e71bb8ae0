"""`guestmark exec` on the host, end to end: what it measures, and every way a command can fail."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from guestmark.agent.client import Agent
from tests.framework.cells import cell_of
from tests.framework.command_line import CommandLine, Result, all_trials
from tests.framework.guests import prepared
from tests.framework.known import known
from tests.framework.processes import wait_until

METRICS = {"wall_s", "guest_wall_s", "user_s", "system_s", "max_rss_bytes"}
VERDICTS = {"faster", "slower", "no difference", "inconclusive"}


def reason_of(result: Result) -> str:
    """The reason of the first failed trial."""
    trials = (trial for cell in result.document()["cells"] for trial in cell["trials"])
    return str(next(trial["reason"] for trial in trials if trial["status"] == "failed"))


def test_the_result_document(guestmark: CommandLine) -> None:
    given = ("--blocks", 3, "--seed", 7, "--iterations", 2, "--null", "baseline")
    result = guestmark.measure(*given, "--", "sleep", "0.01")
    assert result.status == 0
    document = result.document()
    assert json.loads(result.stdout)["schema"] == "guestmark-result/2"
    (cell,) = document["cells"]
    (null,) = document["null_cells"]
    assert (cell["id"], cell["baseline"], cell["status"]) == ("host", True, "ok")
    assert (null["id"], null["null_of"]) == ("host#2", "host")
    assert [trial["block"] for trial in cell["trials"]] == [0, 1, 2]
    for trial in cell["trials"]:
        assert set(trial["measurements"]) == METRICS
        assert trial["measurements"]["wall_s"] >= 0.01
        assert len(trial["iterations"]["wall_s"]) == 2
        assert trial["attestation"]["binary_sha256"] == trial["attestation"]["host_binary_sha256"]
    assert cell["summary"]["wall_s"]["n"] == 3
    assert "PATH" not in str(document["plan"]["context"].get("env"))  # values of variables are private


def test_the_console_of_a_host_is_what_the_command_printed(guestmark: CommandLine) -> None:
    guestmark.measure(
        "--output", "pipe", "--blocks", 1, "--", "sh", "-c", "echo out; echo err >&2; seq 10000 | tr '\\n' x"
    )
    printed = guestmark("show", "--console", "host").stdout
    assert "err" in printed
    assert printed.count("9999x10000x") == 1
    assert len(printed) <= 4200


def test_a_null_comparison_claims_nothing(guestmark: CommandLine) -> None:
    result = guestmark.measure("--on", "host,host", "--blocks", 6, "--", "sleep", "0.02")
    assert result.status == 0
    _, null = result.document()["cells"]
    assert null["vs_baseline"]["wall_s"]["verdict"] in {"no difference", "inconclusive"}


def test_the_same_seed_gives_the_same_order(guestmark: CommandLine) -> None:
    orders = [
        all_trials(
            guestmark.measure(
                "--on", "host,host,host", "--blocks", 4, "--seed", seed, "--", "true"
            ).document()
        )
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    cells = [[cell for block, _, cell in orders[0] if block == number] for number in range(4)]
    assert all(sorted(block) == ["host", "host#2", "host#3"] for block in cells)
    assert len({tuple(block) for block in cells}) > 1  # the order changes from block to block


def test_directory_environment_and_input_are_the_callers(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tool").write_text('#!/bin/sh\nread line; echo "n=$line$COLOUR"; pwd >&2\n')
    (tmp_path / "sub" / "tool").chmod(0o755)
    (tmp_path / "input").write_text("4\n")
    result = guestmark.measure(
        "--blocks", 1, "--input", "../input", "--metric", r"n=n=(\d+)", "--metric", r"sub=/su(b)?x*(?P<value>)$|(\d+)$",
        "--", "./tool", cwd=tmp_path / "sub", env={"COLOUR": "2"},
    )  # fmt: skip
    # The second expression finds no number: the first one's value is only told when all are there.
    assert result.status == 3
    assert "metric sub" in reason_of(result)
    result = guestmark.measure(
        "--blocks", 1, "--input", "../input", "--metric", r"n:x/s:higher=n=(\d+)", "--", "./tool",
        cwd=tmp_path / "sub", env={"COLOUR": "2"},
    )  # fmt: skip
    assert result.document()["cells"][0]["trials"][0]["measurements"]["n"] == 42
    assert result.document()["cells"][0]["summary"]["n"]["better"] == "higher"


@pytest.mark.parametrize(
    ("command", "telling"),
    [
        (["sh", "-c", "echo oops >&2; exit 3"], "exit status 3: oops"),
        (["sh", "-c", "kill -SEGV $$"], "SIGSEGV"),
        (["sh", "-c", "kill -KILL $$"], "SIGKILL"),
    ],
)
def test_a_command_that_fails(guestmark: CommandLine, command: list[str], telling: str) -> None:
    result = guestmark.measure("--blocks", 1, "--null", "none", "--", *command)
    assert result.status == 3
    assert telling in reason_of(result)
    assert "\n" not in reason_of(result)
    assert result.document()["cells"][0]["status"] == "failed"


@pytest.mark.parametrize(
    ("command", "telling"),
    [
        (["no-such-command"], "command not found: 'no-such-command'"),
        (["slepe", "1"], "did you mean 'sleep'?"),
        (["sleep 0.01", "no-such-file"], "did you mean: -- sleep 0.01 no-such-file\n"),
        (["tool"], "write ./tool"),  # the working directory is not in PATH
        (["./no-such-file"], "no-such-file"),
        (["./sub/../tool/"], "tool/"),
        (["./text"], "chmod +x"),
        (["/etc/passwd"], "'/etc/passwd' is not executable"),
        (["/usr"], "'/usr' is a directory"),
        (["/dev/null"], "not a regular file"),
        (["locked"], "bin/locked' is not executable"),
    ],
)
@pytest.mark.parametrize("verb", ["exec", "shell"])
def test_a_command_that_cannot_be_run_is_told_before_anything_starts(
    guestmark: CommandLine, tmp_path: Path, verb: str, command: list[str], telling: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "locked").write_text("#!/bin/sh\n")
    (tmp_path / "text").write_text("text\n")
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    path = f"/usr/local/bin:/usr/bin:/bin:{tmp_path / 'bin'}"
    result = guestmark(verb, "--on", "uml", "--", *command, env={"PATH": path})
    assert result.status == 2
    assert telling in result.stderr
    assert len(result.stderr.splitlines()) == 2
    assert not guestmark.ledger.exists()  # nothing was begun


def test_a_command_is_looked_for_where_the_caller_would_find_it(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool with spaces").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tool with spaces").chmod(0o755)
    for command, path in (
        ("tool with spaces", "/bin:bin"),
        ("tool with spaces", f"{tmp_path}/bin"),
        ("bin/../bin/tool with spaces", ""),
    ):
        result = guestmark.measure(
            "--null", "none", "--blocks", 1, "--iterations", 1, "--", command, env={"PATH": path}
        )
        assert result.status == 0, result.stderr


def test_a_command_that_has_gone_is_told_when_its_run_is_resumed(
    guestmark: CommandLine, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho >>begun; [ $(wc -l <begun) -lt 2 ] || exec sleep 60\n")
    tool.chmod(0o755)
    process = guestmark.start(
        "exec", "--null", "none", "--warmup", 0, "--iterations", 1, "--blocks", 3, "--", "./tool"
    )
    begun = tmp_path / "begun"
    assert wait_until(lambda: begun.exists() and begun.read_text() == "\n\n", 30)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    tool.unlink()
    result = guestmark("resume", "last")
    assert result.status == 2
    assert "command not found: './tool'" in result.stderr
    assert len(guestmark.trials_of()) == 1


def test_a_time_limit_ends_the_whole_process_group(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--blocks",
        1,
        "--null",
        "none",
        "--trial-limit",
        "0.3s",
        "--",
        "sh",
        "-c",
        "sleep 271 & sleep 272",
        timeout=30,
    )
    assert result.status == 3
    assert "past its limit of 0.3 s" in reason_of(result)


def test_a_failing_command_can_be_measured_all_the_same(guestmark: CommandLine) -> None:
    result = guestmark.measure("--blocks", 1, "--ignore-failure", "--", "sh", "-c", "exit 3")
    assert result.status == 0
    assert "exit status 3" in str(result.document()["cells"][0]["trials"][0]["warnings"])


def test_some_trials_fail(guestmark: CommandLine) -> None:
    script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; [ $n -ne 2 ]"
    result = guestmark.measure(
        "--blocks", 4, "--null", "none", "--warmup", 0, "--iterations", 1, "--", "sh", "-c", script
    )
    assert result.status == 1
    (cell,) = result.document()["cells"]
    assert [trial["status"] for trial in cell["trials"]] == ["ok", "ok", "failed", "ok"]
    assert cell["status"] == "partial"
    assert cell["summary"]["wall_s"]["n"] == 3


def test_a_cell_that_never_succeeds_is_given_up(guestmark: CommandLine) -> None:
    result = guestmark("exec", "--null", "none", "--", "false")
    assert result.status == 3
    assert "failed 3 times" in result.stderr
    assert len(guestmark.trials_of()) == 3


def test_megabytes_of_output_are_marked(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--output",
        "pipe",
        "--blocks",
        1,
        "--null",
        "none",
        "--iterations",
        1,
        "--",
        "sh",
        "-c",
        "head -c 20000000 /dev/zero; echo x >&2",
    )
    assert result.status == 0
    (trial,) = result.document()["cells"][0]["trials"]
    assert any("stdout was longer" in warning for warning in trial["warnings"])


def test_output_that_is_not_text(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--blocks",
        1,
        "--null",
        "none",
        "--metric",
        r"n=n=(\d+)",
        "--",
        "sh",
        "-c",
        r"printf '\377\376\0 n=5 \300\n'",
    )
    assert result.status == 0
    assert result.document()["cells"][0]["trials"][0]["measurements"]["n"] == 5
    result = guestmark.measure(
        "--blocks", 1, "--null", "none", "--", "sh", "-c", r"printf '\377\033[31m\0' >&2; exit 1"
    )
    assert reason_of(result).isprintable()


def test_the_document_can_go_to_files(guestmark: CommandLine, tmp_path: Path) -> None:
    result = guestmark(
        "exec", "--blocks", 1, "--json", "r.json", "--csv", "r.csv", "--markdown", "r.md", "--", "true"
    )
    assert result.status == 0
    assert "guestmark show --details" in result.stdout
    assert '"guestmark-result/2"' in (tmp_path / "r.json").read_text()
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 1 + len(METRICS)
    assert "host" in (tmp_path / "r.md").read_text()


def test_runs_show_and_export(guestmark: CommandLine) -> None:
    assert "guestmark exec" in guestmark("runs").stderr  # says how to make a ledger
    guestmark.measure("--blocks", 2, "--", "true")
    assert "complete" in guestmark("runs").stdout
    shown = guestmark("show", "last", "--details")
    assert shown.status == 0
    assert "baseline" in shown.stdout
    assert guestmark("export", "last", "--format", "csv").stdout.startswith("run,")
    assert "host" in guestmark("export", "last", "-f", "markdown").stdout
    missing = guestmark("show", "nothing-like-it")
    assert missing.status == 3
    assert "guestmark runs" in missing.stderr


def test_a_complete_run_has_nothing_to_resume(guestmark: CommandLine) -> None:
    guestmark.measure("--blocks", 1, "--", "true")
    result = guestmark("resume", "last")
    assert result.status == 0
    assert "nothing is left to do" in result.stderr
    assert "--blocks" in result.stderr


def test_a_complete_run_goes_on_as_its_own_report_says(guestmark: CommandLine) -> None:
    short = guestmark.measure("--on", "host,host", "--blocks", 3, "--seed", 4, "--", "true").document()
    (command,) = re.findall(
        r"guestmark (resume \S+ --blocks 6)", guestmark("show", "last", "--details").stdout
    )
    assert short["more_time"]["blocks"] == 3
    result = guestmark(*command.split(), "--quiet", "--json", "-")
    assert result.status == 0
    longer = result.document()
    assert longer["run"]["id"] == short["run"]["id"]
    assert longer["run"]["blocks"] == 6
    assert set(all_trials(short)) < set(all_trials(longer))
    whole = guestmark.measure("--on", "host,host", "--blocks", 6, "--seed", 4, "--", "true").document()
    assert all_trials(longer) == all_trials(whole)
    assert longer["plan"]["context"]["extended"] == [{"after_blocks": 3, "blocks": 6}]
    stopped = guestmark(
        "resume", short["run"]["id"], "--precision", "0.01%", "--time-limit", "0.1s", "--json", "-"
    )
    assert stopped.document()["run"]["state"] == "stopped at the time limit"
    assert stopped.document()["run"]["blocks"] > 6


@pytest.mark.parametrize(
    ("arguments", "telling"),
    [
        (["--blocks", "2"], "has 2 blocks already"),
        (["--blocks", "4", "--precision", "1%"], "--blocks cannot be combined with --precision"),
        (["--precision", "2"], "did you mean 2%"),
        (["--time-limit", "0"], "--time-limit"),
    ],
)
def test_a_complete_run_does_not_go_on_to_nowhere(
    guestmark: CommandLine, arguments: list[str], telling: str
) -> None:
    before = guestmark.measure("--blocks", 2, "--", "true").document()
    result = guestmark("resume", "last", *arguments)
    assert result.status == 2
    assert telling in result.stderr
    assert guestmark("show", "last", "--json", "-").document()["plan"] == before["plan"]


@pytest.mark.parametrize(
    ("arguments", "telling"),
    [
        (["exec", "--on", "hots", "--", "true"], "did you mean 'host'"),
        (["exec", "--on", "host,", "--", "true"], "known: host"),
        (["exec", "--on", "tcg", "--set", "memroy=1G", "--", "true"], "did you mean 'memory'"),
        (
            ["exec", "--on", "host", "--set", "memory=1G", "--", "true"],
            "applies to bwrap, cloud-hypervisor, crun",
        ),
        (["exec", "--on", "tcg", "--set", "memory=x", "--", "true"], "not a size"),
        (["exec", "--metric", "n=(", "--", "true"], "^"),
        (["exec", "--blocks", "0", "--", "true"], "--blocks"),
        (["exec", "--blocks", "3", "--time-limit", "1m", "--", "true"], "cannot be combined"),
        (["exec", "--time-limit", "soon", "--", "true"], "--time-limit"),
        (["exec", "--trial-limit", "0", "--", "true"], "--trial-limit"),
        (["exec", "--precision", "2", "--", "true"], "did you mean 2%"),
        (["exec", "--baseline", "nowhere", "--", "true"], "known:"),
        (["exec", "--input", "/no/such/file", "--", "true"], "/no/such/file"),
        (["exec", "--json", "/no/such/folder/r.json", "--", "true"], "/no/such/folder"),
        (["exec", "--json", "-", "--csv", "-", "--", "true"], "only one document"),
        (["exec", "--frobnicate", "--", "true"], "--frobnicate"),
        (["exec"], "COMMAND"),
        (["exec", "--", ""], "no command"),
        (["exce"], "did you mean 'exec'"),
        (["export", "last", "--format", "xml"], "xml"),
    ],
)
def test_a_wrong_command_line(guestmark: CommandLine, arguments: list[str], telling: str) -> None:
    result = guestmark(*arguments)
    assert result.status == 2
    assert telling in result.stderr
    assert result.stdout == ""
    assert not guestmark.ledger.exists()  # nothing was begun


def test_a_ledger_that_is_none(guestmark: CommandLine) -> None:
    guestmark.ledger.write_text("this is not a database, but it has to be kept" * 100)
    result = guestmark("exec", "--", "true")
    assert result.status == 3
    assert str(guestmark.ledger) in result.stderr
    assert guestmark.ledger.read_text().startswith("this is not a database")


def test_a_reader_that_goes_away(guestmark: CommandLine) -> None:
    guestmark.measure("--blocks", 1, "--", "true")
    process = guestmark.start("export", "last")
    known(process.stdout).close()
    assert process.wait(30) == 141
    assert known(process.stderr).read() == b""
    known(process.stderr).close()


def test_an_executable_that_changes_is_seen_in_the_record(guestmark: CommandLine, tmp_path: Path) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!{sys.executable}\nopen('tool', 'a').write('#')\n")
    tool.chmod(0o755)
    result = guestmark.measure("--blocks", 2, "--null", "none", "--", "./tool")
    hashes = [trial["attestation"]["binary_sha256"] for trial in result.document()["cells"][0]["trials"]]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize("verb", ["exec", "run", "shell"])
def test_a_caller_whose_directory_is_gone(guestmark: CommandLine, tmp_path: Path, verb: str) -> None:
    arguments = {"exec": "exec -- true", "run": "run cpu", "shell": "shell --on host -- true"}[verb]
    (tmp_path / "gone").mkdir()
    script = f'rmdir ../gone; exec "{sys.executable}" -m guestmark {arguments}'
    ended = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path / "gone",
        env=guestmark.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "the current directory cannot be used: No such file" in ended.stderr
    assert not guestmark.ledger.exists()


def test_a_directory_that_is_gone(guestmark: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    process = guestmark.start(
        "exec", "--quiet", "--null", "none", "--blocks", 3, "--", "sh", "-c", "rmdir $OLD 2>/dev/null; true",
        cwd=tmp_path / "gone", env={"OLD": str(tmp_path / "gone")},
    )  # fmt: skip
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode in {1, 3}
    assert b"Traceback" not in stderr
    assert b"gone" in stdout
    assert os.path.exists(tmp_path)


def test_where_the_host_ran_is_attested_and_said(guestmark: CommandLine) -> None:
    usable = sorted(os.sched_getaffinity(0))
    one = usable[-1]
    result = guestmark.measure(
        "--blocks", 1, "--null", "none", "--set", f"placement=cpus={one}", "--metric", r"n=(\d+)", "--",
        "sh", "-c", "echo n=$(nproc)",
    )  # fmt: skip
    assert result.status == 0
    (cell,) = result.document()["cells"]
    (trial,) = cell["trials"]
    assert cell["id"] == f"host placement=cpus={one}"
    assert trial["attestation"]["placement"]["machine"] == str(one)
    assert trial["measurements"]["n"] == 1
    assert f"CPU {one}" in result.stdout


def test_processors_that_cannot_be_used_are_refused_before_anything_starts(guestmark: CommandLine) -> None:
    result = guestmark.measure("--set", "placement=cpus=9999", "--", "true")
    assert result.status == 2
    assert "this process may not use processor 9999" in result.stderr
    assert len(result.stderr.splitlines()) == 2


def test_a_run_of_which_every_cell_fails_ends_early_and_says_why(guestmark: CommandLine) -> None:
    levels = ",".join(map(str, range(8)))
    done = guestmark("exec", "-r", "20", "-L", "x", levels, "--", "sh", "-c", "exit $((3 + 0 * {x}))")
    assert done.status == 3
    assert done.stderr.count("the command failed with exit status 3") == 1
    assert done.stderr.count(" failed, too") == 7
    assert "all 8 trials failed, so nothing else is tried" in done.stderr
    assert len(guestmark.trials_of()) == 8
    again = guestmark("resume", "last", "-q")  # which somebody may have mended meanwhile
    assert again.status == 3
    assert len(guestmark.trials_of()) == 16


def test_a_disk_is_written_before_a_command_runs_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: synced.append("host"))
    monkeypatch.setattr(Agent, "sync", lambda _self: synced.append("machine"))
    for factors, expected in ({}, []), ({"location": str(tmp_path)}, ["machine", "host"]):
        synced.clear()
        with prepared(cell_of("host", "exec", factors, command=["true"])):
            assert synced == expected

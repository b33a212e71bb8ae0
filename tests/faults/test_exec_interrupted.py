"""Ctrl-C, SIGTERM and SIGKILL while `exec` measures: nothing is lost, nothing is left running."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine, all_trials, processes_with
from tests.framework.marks import long
from tests.framework.processes import wait_until

SEED = 11
BLOCKS = 6


def marked(tmp_path: Path, seconds: float) -> tuple[list[str], str]:
    """A command that can be recognised in the process table; it takes a twentieth of a second more than `seconds`."""
    mark = f"{seconds}.05{os.getpid()}{random.randrange(10**6):06}"
    return ["sleep", mark], mark


def started(process: subprocess.Popen[bytes], mark: str) -> bool:
    return wait_until(lambda: process.poll() is not None or processes_with(mark))


def gone(mark: str) -> bool:
    return wait_until(lambda: not processes_with(mark), 5)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_in_order(guestmark: CommandLine, tmp_path: Path, number: signal.Signals) -> None:
    command, mark = marked(tmp_path, 200)
    # The first cell's command is quick in the first blocks and hangs later.
    script = f"n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; [ $n -lt 3 ] || exec {' '.join(command)}"
    process = guestmark.start(
        "exec", "--warmup", 0, "--iterations", 1, "--blocks", 9, "--", "sh", "-c", script
    )
    assert started(process, mark)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert b"host" in stdout  # the summary of what there is
    assert gone(mark)
    assert len(guestmark.trials_of()) == 3
    assert "interrupted" in guestmark("runs").stdout


def test_a_second_signal_ends_at_once(guestmark: CommandLine, tmp_path: Path) -> None:
    command, mark = marked(tmp_path, 201)
    process = guestmark.start("exec", "--blocks", 3, "--", *command)
    assert started(process, mark)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert gone(mark)


def test_two_cannot_execute_the_same_run(guestmark: CommandLine, tmp_path: Path) -> None:
    command, mark = marked(tmp_path, 202)
    process = guestmark.start("exec", "--blocks", 3, "--", *command)
    try:
        assert started(process, mark)
        result = guestmark("resume", "last")
        assert result.status == 3
        assert str(process.pid) in result.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def shape(value: object) -> object:
    """The structure of a document without its figures: keys, lengths of lists, types."""
    if isinstance(value, dict):
        return {
            key: shape(part)
            for key, part in value.items()
            if key not in {"noise", "environment", "environments_resumed"}
        }
    if isinstance(value, list):
        return [shape(part) for part in value]
    return (
        "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__
    )


def plain(document: dict[str, Any]) -> list[dict[str, Any]]:
    """A document's parts that are made of trials, without those that depend on how quiet the host was."""
    keep = {"id", "platform", "factors", "baseline", "status", "trials", "summary"}
    trials = {"block", "order", "status", "measurements", "iterations"}
    cells = []
    for cell in document["cells"]:
        kept = {key: value for key, value in cell.items() if key in keep}
        kept["trials"] = [{key: trial[key] for key in trials} for trial in cell["trials"]]
        cells.append(kept)
    return cells


@pytest.mark.parametrize("attempts", [2, long(6)])
def test_sigkill_at_any_moment_then_resume(guestmark: CommandLine, attempts: int, tmp_path: Path) -> None:
    command, mark = marked(tmp_path, 0)
    arguments = (
        "--on",
        "host,host,host",
        "--blocks",
        BLOCKS,
        "--seed",
        SEED,
        "--iterations",
        2,
        "--",
        *command,
    )
    unbroken = guestmark.measure(*arguments)
    assert unbroken.status == 0
    moments = random.Random(SEED + attempts)
    for attempt in range(attempts):
        process = guestmark.start("exec", "--quiet", *arguments)
        runs = attempt + 2
        assert wait_until(lambda: len(guestmark.runs()) == runs)  # noqa: B023
        time.sleep(moments.uniform(0, 1.6))
        process.kill()
        process.communicate(timeout=10)
        assert gone(mark)
        before = guestmark.trials_of()
        kills = 0
        while True:  # the resumed run is killed, too, now and then
            process = guestmark.start("resume", "last", "--json", "-", "--quiet")
            if kills < 2 and moments.random() < 0.5:
                kills += 1
                time.sleep(moments.uniform(0.3, 1.2))
                process.kill()
            stdout, stderr = process.communicate(timeout=60)
            if process.returncode != -signal.SIGKILL:
                break
        assert process.returncode == 0, stderr
        resumed = json.loads(stdout)
        assert all_trials(resumed) == all_trials(unbroken.document())
        assert set(before) <= set(all_trials(resumed))
        assert shape(plain(resumed)) == shape(plain(unbroken.document()))
        assert set(resumed) == set(unbroken.document())
        assert gone(mark)


def test_no_temporary_file_stays_after_sigkill(guestmark: CommandLine, tmp_path: Path) -> None:
    command, mark = marked(tmp_path, 203)
    (tmp_path / "tmp").mkdir()
    process = guestmark.start("exec", "--quiet", "--", *command, env={"TMPDIR": str(tmp_path / "tmp")})
    assert started(process, mark)
    process.kill()
    process.communicate(timeout=10)
    assert gone(mark)
    assert wait_until(lambda: not list((tmp_path / "tmp").iterdir()), 5)
    assert "killed" in guestmark("runs").stdout

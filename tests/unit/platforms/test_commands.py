"""Commands of the user's: they end with guestmark, with their time and with their room; what they leave stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guestmark.core.errors import MachineError
from guestmark.platforms.commands import Ended, run_command, wait_for_success
from tests.framework import PACKAGES
from tests.framework.processes import alive, gone, wait_until


def shell(script: str, limit_s: float = 10.0, **more: object) -> Ended:
    return run_command(["sh", "-c", script], os.environ, limit_s, **more)  # type: ignore[arg-type]


def test_the_end_of_a_command_is_described() -> None:
    assert shell("echo out; echo why >&2; exit 3").describe() == "exited with status 3: why"
    assert shell("echo out; exit 3").describe() == "exited with status 3: out"
    assert shell("exit 3").describe() == "exited with status 3"
    assert shell("kill -KILL $$").describe() == "exited with status 137"
    # A signal that has no name in Python.
    assert shell("kill -40 $$").status == 168
    assert shell("echo begun; sleep 100", 0.3).describe() == "did not end within 0.3 s: begun"


def test_output_is_whole_and_apart() -> None:
    ended = shell("cat; echo err >&2", stdin=b"x" * 300_000, kept_output=1 << 20)
    assert (ended.ok, ended.stdout, ended.errors) == (True, b"x" * 300_000, b"err\n")
    assert shell("seq 100000").stdout.endswith(b"\n100000\n")
    # A command that reads none of its input.
    assert shell("true", stdin=b"x" * (4 << 20)).ok


def test_a_flood_is_ended_long_before_the_disk_is_full() -> None:
    begin = time.monotonic()
    ended = shell("exec yes", 60.0, most_output=1 << 20)
    assert ended.status is None
    assert ended.describe() == "printed more than 1M: y"
    assert time.monotonic() - begin < 20


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("x")
    for program, why in (
        ("no-such-program", "No such file"), (str(tmp_path / "text"), "not an executable file"), ("", "No such file"),
        (str(tmp_path), "not an executable file"),
    ):  # fmt: skip
        with pytest.raises(MachineError, match=why):
            run_command([program], os.environ, 5)
    with pytest.raises(MachineError, match="cannot be started"):
        run_command(["true", "a\0b"], os.environ, 5)
    with pytest.raises(MachineError, match="cannot be started"):
        run_command(["true", "x" * 300_000], os.environ, 5)


def test_what_a_command_leaves_stays_and_holds_nobody_up(tmp_path: Path) -> None:
    begin = time.monotonic()
    assert shell(f"setsid sleep 60 & echo $! > {tmp_path}/pid").ok
    assert time.monotonic() - begin < 10
    pid = int((tmp_path / "pid").read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_what_takes_too_long_goes_with_all_that_it_has_started(tmp_path: Path) -> None:
    script = f"(setsid sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60' &); sleep 0.2; exec sleep 60"
    assert shell(script, 1.0).status is None
    assert gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_of_a_command_outlives_guestmark(tmp_path: Path, number: signal.Signals) -> None:
    script = "trap '' TERM HUP; " + (
        f"(setsid sh -c 'echo $$ > {tmp_path}/a; exec sleep 60' &); echo $$ > {tmp_path}/b; sleep 60"
    )
    code = (
        "import os; from guestmark.platforms.commands import run_command; "
        f"run_command(['sh', '-c', {script!r}], os.environ, 60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(PACKAGES)})
    files = [tmp_path / "a", tmp_path / "b"]
    assert wait_until(lambda: all(file.exists() and file.read_text().strip() for file in files))
    process.send_signal(number)
    process.wait()
    assert gone(*(int(file.read_text()) for file in files))


def test_a_command_is_tried_until_it_succeeds(tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 3 ]"
    assert wait_for_success(lambda left_s: shell(script, left_s), 10.0, 0.01).ok
    assert (tmp_path / "tries").read_text() == "x\n" * 3
    assert wait_for_success(lambda left_s: shell("exit 4", left_s), 0.2, 0.05).status == 4
    assert wait_for_success(lambda left_s: shell("sleep 60", left_s), 0.3, 0.05).status is None

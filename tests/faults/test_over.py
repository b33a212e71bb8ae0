"""`--over`: a run's blocks are spread over time, also by a run that is interrupted and resumed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.framework.command_line import CommandLine

BRIEF = ("--on", "host", "--iterations", "1", "--warmup", "0", "--null", "none", "-q")


def begins(guestmark: CommandLine) -> list[float]:
    """When each block of the newest run began, in seconds after the first."""
    from datetime import datetime

    trials = json.loads(guestmark("export", "last").stdout)["cells"][0]["trials"]
    moments = [datetime.fromisoformat(trial["started_at"]).timestamp() for trial in trials]
    return [moment - moments[0] for moment in moments]


def test_blocks_are_spread_evenly(guestmark: CommandLine) -> None:
    done = guestmark("exec", *BRIEF, "--blocks", "5", "--over", "6s", "--", "true")
    assert done.status == 0, done.stderr
    found = begins(guestmark)
    assert len(found) == 5
    for block, at in enumerate(found):
        assert at >= 1.5 * block - 0.1  # never early; how late depends on what else runs


def test_without_a_number_of_blocks_there_are_enough_for_a_verdict(guestmark: CommandLine) -> None:
    done = guestmark("exec", *BRIEF, "--over", "2s", "--", "true")
    assert done.status == 0, done.stderr
    assert len(begins(guestmark)) >= 6


@pytest.mark.parametrize(
    "other", [("--precision", "1%"), ("--time-limit", "5m"), ("--over", "0s"), ("--over", "soon")]
)
def test_what_it_cannot_be_combined_with(guestmark: CommandLine, other: tuple[str, str]) -> None:
    done = guestmark("exec", *BRIEF, "--over", "2s", *other, "--", "true")
    assert done.status == 2
    assert "--over" in done.stderr
    assert done.stderr.count("\n") <= 2


@pytest.mark.long
def test_a_wait_is_ended_by_an_interruption_and_resumed_on_schedule(guestmark: CommandLine) -> None:
    run = guestmark.start("exec", *BRIEF, "--blocks", "3", "--over", "16s", "--", "true")
    began = time.monotonic()
    while time.monotonic() - began < 30 and '"trials": 1' not in guestmark("runs", "--json").stdout:
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    assert run.wait(10) == 130
    assert guestmark("resume", "last", "-q").status == 0
    found = begins(guestmark)
    assert len(found) == 3
    assert found[2] >= 15.9


BISECT = ("bisect", "--good", "HEAD", "--build", "true", "--fail-if", "> +5%")


@pytest.mark.parametrize(
    "words",
    [
        (*BISECT, "--over", "1h", "--", "{build}/x"),
        (*BISECT, "--quiet-host", "--", "{build}/x"),
        ("run", "cpu", "--prepare-only", "--over", "1h"),
        ("run", "cpu", "--prepare-only", "--quiet-host"),
        ("tune", "fastest-safe", "--over", "1h"),
    ],
)
def test_commands_that_could_not_do_it_say_so(guestmark: CommandLine, words: tuple[str, ...]) -> None:
    done = guestmark(*words)
    assert done.status in {2, 130}, done.stderr
    option = "--over" if "--over" in words else "--quiet-host"
    assert f"{option} cannot be used with" in done.stderr


def test_a_run_is_resumed_on_a_quiet_host(guestmark: CommandLine) -> None:
    """As far as the record of what was changed, which cannot be read here: so nothing of the host is."""
    assert guestmark("exec", *BRIEF, "--blocks", "1", "--", "true").status == 0
    if os.getuid() != 0:
        refused = guestmark("resume", "last", "--blocks", "2", "--quiet-host")
        assert (refused.status, "needs root" in refused.stderr) == (2, True)
        return
    script = 'mount -t tmpfs tmpfs /run && echo nonsense >/run/guestmark-quiet.json && exec "$@"'
    words = (sys.executable, "-m", "guestmark", "resume", "last", "--blocks", "2", "--quiet-host")
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *words],
        env=guestmark.environment, cwd=guestmark.folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "/run/guestmark-quiet.json cannot be read" in done.stderr
    assert len(begins(guestmark)) == 1

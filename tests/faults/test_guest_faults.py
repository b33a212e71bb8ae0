"""Guests that crash, hang, starve or are killed: the trial fails with a reason, and nothing is left behind."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.framework.command_line import CommandLine
from tests.framework.marks import long
from tests.framework.processes import cpu_seconds, kill, wait_until

GUESTS = ("uml", "tcg")
pytestmark = pytest.mark.usefixtures("guests_known")


# The kernel waits for a root that never comes: a guest that is starting as long as it lives.
NEVER_READY = ("--set", "kernel_args=rdinit=/no/such/program root=/dev/never rootwait")


def one_trial(platform: str, *arguments: object) -> tuple[object, ...]:
    return (
        "exec", "--quiet", "--json", "-", "--on", platform, "--null", "none", "--blocks", 1, "--warmup", 0,
        "--iterations", 1, *arguments,
    )  # fmt: skip


def only_trial(document: dict[str, Any]) -> dict[str, Any]:
    (cell,) = document["cells"]
    trial: dict[str, Any]
    (trial,) = cell["trials"]
    return trial


def failed(guestmark: CommandLine, platform: str, *arguments: object, **more: Any) -> dict[str, Any]:
    """The only trial of a run of one block on `platform`; it must have failed."""
    result = guestmark(*one_trial(platform, *arguments), timeout=150, **more)
    assert result.status == 3, result.stderr
    trial = only_trial(result.document())
    assert trial["status"] == "failed"
    guestmark.assert_nothing_left()
    return trial


@pytest.mark.parametrize("platform", [long("uml"), "tcg"])
def test_a_kernel_panic_is_the_reason(guestmark: CommandLine, platform: str) -> None:
    trial = failed(guestmark, platform, "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 60")
    assert trial["reason"].startswith("the guest ended: ")
    assert "Kernel panic" in trial["reason"]
    assert trial["cause"] == "ended"
    assert "Kernel panic" in trial["console"]


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_running_out_of_memory_is_the_reason(guestmark: CommandLine, platform: str) -> None:
    # A small program that keeps all it reads: of a large one, a guest that is short of memory reads the pages again.
    trial = failed(guestmark, platform, "--set", "memory=256M", "--", "tail", "/dev/zero")
    assert "memory" in trial["reason"]


@pytest.mark.parametrize("platform", ["uml", long("tcg")])
def test_a_command_past_its_limit(guestmark: CommandLine, platform: str) -> None:
    trial = failed(guestmark, platform, "--trial-limit", "1s", "--", "sleep", "300")
    assert "past its limit" in trial["reason"]
    assert trial["cause"] == "time limit"


def end_of_trial(guestmark: CommandLine, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The only trial of a call that has been started; it must have failed, with nothing left."""
    stdout, stderr = process.communicate(timeout=150)
    assert process.returncode == 3, stderr
    assert b"Traceback" not in stderr
    trial = only_trial(json.loads(stdout))
    assert trial["status"] == "failed"
    guestmark.assert_nothing_left()
    return trial


@pytest.mark.parametrize("platform", GUESTS)
def test_a_hypervisor_that_dies_while_it_boots(guestmark: CommandLine, platform: str) -> None:
    with guestmark.running(*one_trial(platform, *NEVER_READY, "--", "true")) as process:
        assert wait_until(guestmark.hypervisors, 60)
        kill(guestmark.hypervisors(), signal.SIGKILL)
        trial = end_of_trial(guestmark, process)
    assert "ready" not in trial["phases"]
    assert trial["cause"] == "killed"  # its death was noticed, not its silence


@pytest.mark.parametrize(
    ("platform", "number"),
    [
        pytest.param("uml", signal.SIGKILL, id="killed-uml"),
        long("uml", signal.SIGSTOP, name="hung-uml"),
        long("tcg", signal.SIGKILL, name="killed-tcg"),
        long("tcg", signal.SIGSTOP, name="hung-tcg"),
    ],
)
def test_a_hypervisor_that_dies_or_hangs(
    guestmark: CommandLine, marker: Path, platform: str, number: signal.Signals
) -> None:
    """While the command runs."""
    command = ["--trial-limit", "5s", "--", "sh", "-c", f"sleep 4 <{marker}"]
    with guestmark.running(*one_trial(platform, *command)) as process:
        assert wait_until(lambda: guestmark.reads(marker), 120)
        kill(guestmark.hypervisors(), number)
        trial = end_of_trial(guestmark, process)
    assert trial["phases"]["ready"] > 0
    assert trial["cause"] == ("ended" if number == signal.SIGKILL else "hangs"), trial["reason"]


@pytest.mark.parametrize("platform", GUESTS)
@pytest.mark.parametrize("phase", ["starting", "booting", "running"])
def test_a_killed_controller_leaves_nothing(
    guestmark: CommandLine, marker: Path, platform: str, phase: str
) -> None:
    hang = NEVER_READY if phase == "booting" else ()
    command = ["exec", "--on", platform, "--null", "none", "--blocks", 2, *hang]
    with guestmark.running(*command, "--", "sh", "-c", f"sleep 30 <{marker}") as process:
        if phase == "running":
            assert wait_until(lambda: guestmark.reads(marker), 120)
        else:
            assert wait_until(guestmark.hypervisors, 60)
        if phase == "booting":
            assert wait_until(lambda: sum(map(cpu_seconds, guestmark.hypervisors())) > 0.1, 60)
        assert guestmark.hypervisors()
        assert guestmark.reads(marker) == (phase == "running")
        assert process.poll() is None
    guestmark.assert_nothing_left()
    assert guestmark("runs").status == 0


@pytest.mark.parametrize("platform", GUESTS)
def test_a_guest_larger_than_the_host_is_not_started(guestmark: CommandLine, platform: str) -> None:
    """No hypervisor is found either, so anything that was started would be told instead."""
    settings = ("--on", platform, "--set", "memory=900T")
    for verb in ("exec", "shell"):
        result = guestmark(verb, *settings, "--", "/bin/true", env={"PATH": "/nowhere"})
        assert result.status == 3
        said, hint = result.stderr.splitlines()
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        assert f"needs 900T of memory and 64M for its hypervisor, but this host has {total:.1f}G" in said
        assert "--set memory=512M" in hint
    assert not guestmark.trials_of()


@pytest.mark.parametrize("platform", GUESTS)
@pytest.mark.parametrize("verb", ["exec", "shell"])
def test_a_file_that_is_no_kernel_is_told_before_anything_starts(
    guestmark: CommandLine, platform: str, verb: str
) -> None:
    result = guestmark(verb, "--on", platform, "--kernel", "/etc/passwd", "--", "true")
    assert result.status == 2
    said, hint = result.stderr.splitlines()
    assert "/etc/passwd is not a Linux kernel" in said
    assert "vmlinuz" in hint
    assert not guestmark.ledger.exists()


def test_a_level_larger_than_the_host_is_left_out_alone(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--on", "uml", "--set", "memory=512M,900T", "--null", "none", "--blocks", 1, "--", "true"
    )
    assert result.status == 1
    cells = {cell["id"]: cell for cell in result.document()["cells"]}
    assert cells["uml memory=512M"]["status"] == "ok"
    assert cells["uml memory=900T"]["status"] == "unusable"


def test_a_guest_that_refuses_to_start_does_not_stop_the_others(guestmark: CommandLine) -> None:
    result = guestmark.measure(
        "--on", "host,tcg", "--set", "machine=no-such-machine", "--null", "none", "--blocks", 1, "--", "true",
        timeout=60,
    )  # fmt: skip
    assert result.status == 1
    host, tcg = result.document()["cells"]
    assert host["status"] == "ok"
    assert tcg["status"] == "failed"
    assert "unsupported machine type" in tcg["trials"][0]["reason"]

"""Guests that may not start, or do not get far: the reason in words, the phases so far, and nothing left behind."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.framework import FRAMEWORK
from tests.framework.command_line import CommandLine, Result
from tests.framework.marks import long

HELPER = FRAMEWORK / "without_ptrace.py"


def boot(guestmark: CommandLine, *arguments: object, **more: Any) -> Result:
    return guestmark("boot", "--quiet", "--json", "-", "--blocks", 1, *arguments, **{"timeout": 150, **more})


def only_trial(result: Result) -> Any:
    (cell,) = result.document()["cells"]
    (trial,) = cell["trials"]
    return trial


@pytest.mark.parametrize("filtered", [[], long(["--kill"])], ids=["refused", "killed"])
def test_uml_without_ptrace_says_what_the_host_forbids(guestmark: CommandLine, filtered: list[str]) -> None:
    command: list[str | Path] = [
        sys.executable,
        HELPER,
        *filtered,
        sys.executable,
        "-m",
        "guestmark",
        "boot",
        "--on",
        "uml",
        "--blocks",
        "1",
    ]
    done = subprocess.run(
        command,
        env=guestmark.environment,
        cwd=guestmark.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "does not let User-Mode Linux trace" in done.stderr
    assert "SYS_PTRACE" in done.stderr
    assert "Traceback" not in done.stderr
    assert not guestmark.leftovers()
    # What holds for a process with a filter must not be believed by one without.
    assert boot(guestmark, "--on", "uml").status == 0


@pytest.mark.usefixtures("guests_known")
@pytest.mark.parametrize(
    ("platform", "reached"), [("uml", {"handover"}), ("tcg", {"firmware", "handover", "first_line"})]
)
def test_a_kernel_that_panics_has_the_phases_until_then(
    guestmark: CommandLine, platform: str, reached: set[str]
) -> None:
    result = boot(guestmark, "--on", platform, "--set", "kernel_args=rdinit=/no/such/program")
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert trial["status"] == "failed"
    assert "panic" in trial["reason"]
    assert "Kernel panic" in trial["console"]
    assert set(trial["phases"]) == reached
    assert not guestmark.leftovers()


@pytest.mark.usefixtures("guests_known")
def test_a_kernel_that_hangs_has_the_phases_until_then(guestmark: CommandLine) -> None:
    waiting = "kernel_args=rdinit=/no/such/program root=/dev/never rootwait"
    result = boot(guestmark, "--on", "uml", "--trial-limit", "5s", "--set", waiting)
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert "was not ready after 5" in trial["reason"]
    assert "Checking PROT_EXEC" in trial["console"]
    assert "handover" in trial["phases"]
    assert "kernel" not in trial["phases"]
    assert not guestmark.leftovers()


@pytest.mark.usefixtures("guests_known")
def test_a_command_that_fails_fails_the_trial(guestmark: CommandLine) -> None:
    result = boot(guestmark, "--on", "uml", "--", "sh", "-c", "exit 7")
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert "7" in trial["reason"]
    assert trial["phases"]["ready"] > 0
    assert not guestmark.leftovers()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "host"], "cannot be booted"),
        (["--on", "uml", "--guestfish"], "tcg and kvm only"),
        (["--on", "uml", "--set", "cpu=max"], "cpu"),
    ],
)
def test_what_cannot_be_booted_is_said_first(guestmark: CommandLine, arguments: list[str], said: str) -> None:
    result = boot(guestmark, *arguments)
    assert result.status == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2

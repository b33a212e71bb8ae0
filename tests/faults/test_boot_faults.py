"""Guests that may not start, or do not get far: the reason in words, the phases so far, and nothing left behind."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from test_guest_faults import leftovers

HELPER = Path(__file__).with_name("without_ptrace.py")


@pytest.fixture
def cli(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command_line = CommandLine(tmp_path)
    command_line.environment |= {"TMPDIR": str(scratch)}
    return command_line


def boot(cli, *arguments, **more):
    return cli("boot", "--quiet", "--json", "-", "--blocks", 1, *arguments, **{"timeout": 150, **more})


def only_trial(result):
    (cell,) = result.document()["cells"]
    (trial,) = cell["trials"]
    return trial


@pytest.mark.parametrize("filtered", [[], ["--kill"]], ids=["refused", "killed"])
def test_uml_without_ptrace_says_what_the_host_forbids(cli, filtered):
    command = [
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
        env=cli.environment,
        cwd=cli.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "does not let User-Mode Linux trace" in done.stderr
    assert "SYS_PTRACE" in done.stderr
    assert "Traceback" not in done.stderr
    assert not leftovers(cli)
    # What holds for a process with a filter must not be believed by one without.
    assert boot(cli, "--on", "uml").status == 0


@pytest.mark.parametrize(
    ("platform", "reached"), [("uml", {"handover"}), ("tcg", {"firmware", "handover", "first_line"})]
)
def test_a_kernel_that_panics_has_the_phases_until_then(cli, platform, reached):
    result = boot(cli, "--on", platform, "--set", "kernel_args=rdinit=/no/such/program")
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert trial["status"] == "failed"
    assert "panic" in trial["reason"]
    assert "Kernel panic" in trial["console"]
    assert set(trial["phases"]) == reached
    assert not leftovers(cli)


def test_a_kernel_that_hangs_has_the_phases_until_then(cli):
    waiting = "kernel_args=rdinit=/no/such/program root=/dev/never rootwait"
    result = boot(cli, "--on", "uml", "--trial-limit", "5s", "--set", waiting)
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert "was not ready after 5" in trial["reason"]
    assert "Checking PROT_EXEC" in trial["console"]
    assert "handover" in trial["phases"]
    assert "kernel" not in trial["phases"]
    assert not leftovers(cli)


def test_a_command_that_fails_fails_the_trial(cli):
    result = boot(cli, "--on", "uml", "--", "sh", "-c", "exit 7")
    assert result.status == 3, result.stderr
    trial = only_trial(result)
    assert "7" in trial["reason"]
    assert trial["phases"]["ready"] > 0
    assert not leftovers(cli)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "host"], "not booted"),
        (["--on", "uml", "--guestfish"], "tcg and kvm only"),
        (["--on", "uml", "--set", "cpu=max"], "cpu"),
    ],
)
def test_what_cannot_be_booted_is_said_first(cli, arguments, said):
    result = boot(cli, *arguments)
    assert result.status == 2
    assert said in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 2

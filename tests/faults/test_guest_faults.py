"""Guests that crash, hang, starve or are killed: the trial fails with a reason, and nothing is left behind."""

import contextlib
import os
import signal
import time

import pytest
from command_line import CommandLine

from processes import kill, others, wait_until

GUESTS = ("uml", "tcg")


@pytest.fixture
def guestmark(tmp_path):
    return CommandLine.with_scratch(tmp_path)


def hypervisors(guestmark):
    """Ids of hypervisor processes whose scratch directory or console is this test's."""
    found = []
    for folder, command in others():
        if command[0].rpartition(b"/")[2] in (b"qemu-system-x86_64", b"linux.uml"):
            with contextlib.suppress(OSError):
                if (guestmark.folder / "scratch") in (folder / "cwd").readlink().parents:
                    found.append(int(folder.name))
    return found


def leftovers(guestmark):
    return [*hypervisors(guestmark), *(guestmark.folder / "scratch").iterdir()]


def failed(guestmark, platform, *arguments, **more):
    """The only trial of a run of one block on `platform`; it must have failed."""
    result = guestmark.measure(
        "--on", platform, "--null", "none", "--blocks", 1, "--warmup", 0, "--iterations", 1, *arguments,
        timeout=150, **more,
    )  # fmt: skip
    assert result.status == 3, result.stderr
    (cell,) = result.document()["cells"]
    (trial,) = cell["trials"]
    assert trial["status"] == "failed"
    assert wait_until(lambda: not leftovers(guestmark), 5), leftovers(guestmark)
    return trial


@pytest.mark.parametrize("platform", GUESTS)
def test_a_kernel_panic_is_the_reason(guestmark, platform):
    trial = failed(guestmark, platform, "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 60")
    assert trial["reason"].startswith("the guest ended: ")
    assert "Kernel panic" in trial["reason"]
    assert "Kernel panic" in trial["console"]


@pytest.mark.parametrize("platform", GUESTS)
def test_running_out_of_memory_is_the_reason(guestmark, platform):
    eat = "x = []\nwhile True: x.append(b'x' * (16 << 20))"  # at once: near the end a guest only moves pages about
    trial = failed(guestmark, platform, "--set", "memory=256M", "--", "python3", "-c", eat)
    assert "memory" in trial["reason"]


@pytest.mark.parametrize("platform", GUESTS)
def test_a_command_past_its_limit(guestmark, platform):
    trial = failed(guestmark, platform, "--trial-limit", "1s", "--", "sleep", "300")
    assert "past its limit" in trial["reason"]


@pytest.mark.parametrize("platform", GUESTS)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_hypervisor_that_dies_or_hangs(guestmark, platform, number):
    process = guestmark.start(
        "exec", "--quiet", "--json", "-", "--on", platform, "--null", "none", "--blocks", 1, "--warmup", 0,
        "--iterations", 1, "--trial-limit", "10s", "--", "sleep", "9",
    )  # fmt: skip
    try:
        assert wait_until(lambda: hypervisors(guestmark), 60)
        time.sleep(0.5 if number == signal.SIGKILL else 6)  # while it boots; while the command runs
        kill(hypervisors(guestmark), number)
        stdout, stderr = process.communicate(timeout=150)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 3, stderr
    assert b"Traceback" not in stderr
    assert b'"failed"' in stdout
    assert wait_until(lambda: not leftovers(guestmark), 5), leftovers(guestmark)


@pytest.mark.parametrize("platform", GUESTS)
@pytest.mark.parametrize("after", [0.05, 1.0, 4.0])
def test_a_killed_controller_leaves_nothing(guestmark, platform, after):
    process = guestmark.start("exec", "--on", platform, "--null", "none", "--blocks", 2, "--", "sleep", "30")
    try:
        assert wait_until(lambda: hypervisors(guestmark), 60)
        time.sleep(after)
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: not leftovers(guestmark), 5), leftovers(guestmark)
    assert guestmark("runs").status == 0


@pytest.mark.parametrize("platform", GUESTS)
def test_a_guest_larger_than_the_host_is_not_started(guestmark, platform):
    """No hypervisor is found either, so anything that was started would be told instead."""
    settings = ("--on", platform, "--set", "memory=900T")
    for verb in ("exec", "shell"):
        result = guestmark(verb, *settings, "--", "/bin/true", env={"PATH": "/nowhere"})
        assert result.status == 3
        said, hint = result.stderr.splitlines()
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
        assert f"needs 900T of memory and 64M for its hypervisor, this host has {total:.1f}G" in said
        assert "--set memory=512M" in hint
    assert not guestmark.trials_of()


@pytest.mark.parametrize("platform", GUESTS)
@pytest.mark.parametrize("verb", ["exec", "shell"])
def test_a_file_that_is_no_kernel_is_told_before_anything_starts(guestmark, platform, verb):
    result = guestmark(verb, "--on", platform, "--kernel", "/etc/passwd", "--", "true")
    assert result.status == 2
    said, hint = result.stderr.splitlines()
    assert "/etc/passwd is not a Linux kernel" in said
    assert "vmlinuz" in hint
    assert not guestmark.ledger.exists()


def test_a_level_larger_than_the_host_is_left_out_alone(guestmark):
    result = guestmark.measure(
        "--on", "uml", "--set", "memory=512M,900T", "--null", "none", "--blocks", 1, "--", "true"
    )
    assert result.status == 1
    cells = {cell["id"]: cell for cell in result.document()["cells"]}
    assert cells["uml memory=512M"]["status"] == "ok"
    assert cells["uml memory=900T"]["status"] == "unusable"


def test_a_guest_that_refuses_to_start_does_not_stop_the_others(guestmark):
    result = guestmark.measure(
        "--on", "host,tcg", "--set", "machine=no-such-machine", "--null", "none", "--blocks", 1, "--", "true",
        timeout=60,
    )  # fmt: skip
    assert result.status == 1
    host, tcg = result.document()["cells"]
    assert host["status"] == "ok"
    assert tcg["status"] == "failed"
    assert "unsupported machine type" in tcg["trials"][0]["reason"]

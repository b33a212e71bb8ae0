"""Set-up killed, interrupted or started twice: the next start completes it and nothing is left running."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.framework import CHECKOUT
from tests.framework.checkouts import STUB_STATUS, Checkout, copy_checkout, handed_over
from tests.framework.processes import wait_until


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    checkout = copy_checkout(tmp_path / "checkout", venv=False)
    checkout.tiny_lock()
    return checkout


def gone(checkout: Checkout) -> bool:
    return wait_until(lambda: not checkout.processes(), 10)


MOMENTS = {
    "at once": ".setup/lock",
    "environment begun": ".venv/pyvenv.cfg",
    "pip half there": ".venv/lib/python3*/site-packages/pip/__init__.py",
    "dependencies installed": ".venv/lib/python3*/site-packages/iniconfig/__init__.py",
}


def killed_at(checkout: Checkout, moment: str, number: signal.Signals, *, group: bool) -> int:
    """Starts set-up, sends the signal when the moment's file appears, and returns the launcher's exit status."""
    launcher = checkout.start()
    end = time.monotonic() + 40
    while not list(checkout.path.glob(MOMENTS[moment])):
        assert launcher.poll() is None, launcher.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)
    if group:
        os.killpg(launcher.pid, number)
    else:
        launcher.send_signal(number)
    launcher.communicate(timeout=30)
    return launcher.returncode


def assert_completed(checkout: Checkout) -> None:
    """The next start completes what was broken off, and the one after that finds nothing to do."""
    assert not (checkout.path / ".setup/stamp").exists()
    handed_over(checkout.run())
    assert gone(checkout)
    assert not list((checkout.path / ".setup").glob("begin.*"))
    again = checkout.run()
    handed_over(again)
    assert again.stderr == ""


def test_groups_are_ended_in_words_that_every_shell_knows() -> None:
    """dash takes `kill -TERM -- -GROUP` for a number that it cannot read, and ends nobody."""
    scripts = [CHECKOUT / "guestmark", CHECKOUT / "test", *sorted((CHECKOUT / "tools").glob("*.sh"))]
    kills = [line for script in scripts for line in script.read_text().splitlines() if '-- "-$' in line]
    assert kills
    assert all("kill -s TERM -- " in line for line in kills)


@pytest.mark.long
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_set_up_is_completed_by_the_next_start(bare: Checkout, moment: str) -> None:
    assert killed_at(bare, moment, signal.SIGKILL, group=False) == -signal.SIGKILL
    assert_completed(bare)


@pytest.mark.long
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_and_then_killed_set_up_leaves_nothing_running(
    bare: Checkout, number: signal.Signals, status: int
) -> None:
    assert killed_at(bare, "environment begun", number, group=True) == status
    assert gone(bare)
    assert not (bare.path / ".setup/stamp").exists()
    assert killed_at(bare, "dependencies installed", signal.SIGKILL, group=False) == -signal.SIGKILL
    assert_completed(bare)


@pytest.mark.long
def test_two_first_starts_at_once(bare: Checkout) -> None:
    first = bare.start()
    assert wait_until((bare.path / ".venv").exists, 30)
    second = bare.start()
    errors = [launcher.communicate(timeout=60)[1] for launcher in (first, second)]
    assert [first.returncode, second.returncode] == [STUB_STATUS, STUB_STATUS], errors
    assert "another set-up of this checkout is running" in errors[1]
    assert "making the Python environment" not in errors[1]
    assert (bare.path / ".venv/.guestmark").read_text().strip() == bare.key("venv_key")


@pytest.mark.long
def test_changed_lock_updates_the_environment_in_place(bare: Checkout) -> None:
    handed_over(bare.run())
    cfg = (bare.path / ".venv/pyvenv.cfg").stat().st_ino
    lock = bare.path / "requirements.txt"
    lock.write_text(lock.read_text().replace("    # run", "    # run dev"))
    run = bare.run()
    handed_over(run)
    assert "installing the Python dependencies" in run.stderr
    assert (bare.path / ".venv/pyvenv.cfg").stat().st_ino == cfg


@pytest.mark.long
def test_vanished_interpreter_makes_the_environment_anew(bare: Checkout) -> None:
    handed_over(bare.run())
    python = bare.path / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/usr/bin/python3.0-was-upgraded")
    handed_over(bare.run())
    assert python.resolve().exists()

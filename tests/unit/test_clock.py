"""A run's time is that of its command, without what the launcher set up first."""

import subprocess
import sys
import time

from tests.framework import IMPORTABLE

PROGRAM = """
import sys, time
sys.path[:0] = sys.argv[2].split(":")
from guestmark.engine import clock
clock.set_up(float(sys.argv[1]))
time.sleep(0.5)
print(clock.of_process().elapsed_s)
"""


def elapsed(set_up_s: float) -> float:
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(set_up_s), IMPORTABLE], capture_output=True, text=True, check=True
    )
    found = float(done.stdout)
    assert found < time.monotonic() - begin + 0.1
    return found


def test_a_run_has_taken_what_its_process_has() -> None:
    assert elapsed(0.0) > 0.4


def test_set_up_is_left_out() -> None:
    assert elapsed(3600.0) < 0.1

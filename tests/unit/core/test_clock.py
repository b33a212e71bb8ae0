"""A run's time is that of its command, without what the launcher set up first."""

import subprocess
import sys
import time

from guestmark.core.findings import Facts, add_fact
from guestmark.core.machine_facts import TemplateFacts
from guestmark.core.model import Trial, TrialStatus
from guestmark.report.sections.footer import describe_time_spent
from tests.framework import IMPORTABLE, made_facts

PROGRAM = """
import sys, time
sys.path[:0] = sys.argv[2].split(":")
from guestmark.engine import clock
clock.exclude_set_up(float(sys.argv[1]))
time.sleep(0.5)
print(clock.start_process_clock().elapsed_s)
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


def test_a_template_is_part_of_a_start() -> None:
    """Of whichever guest waited for it, and of no other that goes on from it."""

    def trial(clone: int, template_s: float) -> Trial:
        machine = made_facts.guest()
        machine.restored = TemplateFacts(template="t", clone=clone, generation_id=True, template_s=template_s)
        facts = add_fact(Facts(), machine)
        return Trial("tcg", 0, clone, TrialStatus.OK, phases={"ready": 0.1}, duration_s=5.0, facts=facts)

    assert "22 % starting" in describe_time_spent((trial(1, 2.0), trial(2, 0.0)))

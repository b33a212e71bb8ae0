"""numpy's linear algebra must not run beside what is measured, and nothing that is measured may know of it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
import guestmark.stats
import numpy as np

square = np.ones((500, 500))
square @ square  # large enough for any BLAS to divide
print(len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""


def threads_and_variable(**environment: str) -> list[str]:
    known = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=known | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_statistics_have_one_thread_and_leave_no_variable() -> None:
    assert threads_and_variable() == ["1", "None"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a BLAS has one thread on one processor anyway")
def test_what_the_user_has_set_stands() -> None:
    assert threads_and_variable(OPENBLAS_NUM_THREADS="2") == ["2", "2"]

"""The short form of the kill storm; the full one is `python -m tests.storm`."""

import time
from pathlib import Path

import pytest

from tests.framework.marks import thorough
from tests.storm.storm import MODES, Outcome, Storm

# Each run of these starts libguestfs's appliance, which may take a minute beside three other tests; storage and
# virtiofs have disks, too.
SLOW = pytest.param("disk", marks=(pytest.mark.timeout(900), pytest.mark.thorough))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["exec", SLOW, "sandboxes", "restored", "own"])
def test_kills_at_random_moments_leave_nothing_and_lose_nothing(mode: str, tmp_path: Path) -> None:
    outcome = Outcome()
    Storm(MODES[mode], tmp_path, seed=time.time_ns()).rage(12, time.monotonic() + 25, outcome)
    assert outcome.kills
    assert outcome.problems == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "mode"),
    [("interrupt", "exec"), ("hangup", "oltp"), ("terminal", "exec"),
     thorough("terminate", "exec"), ("stop", "storage"), thorough("sleep", "exec"), ("helper", "storage"),
     ("helper", "virtiofs"), thorough("helper", "oltp"), thorough("helper", "exec"), ("keepers", "own"),
     ("stop", "own")],
)  # fmt: skip
def test_other_ends_leave_nothing_and_lose_nothing(way: str, mode: str, tmp_path: Path) -> None:
    outcome = Outcome()
    Storm(MODES[mode], tmp_path, time.time_ns(), way).rage(3, time.monotonic() + 30, outcome)
    assert outcome.kills or outcome.whole
    assert outcome.problems == []

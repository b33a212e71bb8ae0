"""What the report says of why something was lost, and of what was tried against it."""

import msgspec
import pytest

from guestmark.core.findings import Durability, Explanation, Proven
from guestmark.workloads.powercut.sections import describe_explanation

LOST = Proven(
    word=Durability.LOST, why="", method="a program", acknowledged=1, states=10, losing=1, repaired=0, controls=[],
    below=[], writes=1, flushes=1, run_s=0.0, judge_s=0.0,
)  # fmt: skip
FILE, CALL = "db has other content", "what was written to db was never followed by a sync of it"
ENOUGH = f"it is enough for 'a row is lost' that {FILE}: {CALL}"


@pytest.mark.parametrize(
    ("why", "said"),
    [
        (Explanation(said="a row is lost", files=[FILE], calls=[CALL]), ENOUGH),
        (
            Explanation(said="a row is lost", files=[FILE], calls=[CALL], added=["write db"], states=9),
            f"{ENOUGH}. With a sync added after write db, none of 9 fails",
        ),
        (
            Explanation(said="a row is lost", files=[FILE], calls=[CALL], each=True, states=9, losing=2),
            f"{ENOUGH}. With a sync added before each acknowledgement, 2 of 9 crash states still fail",
        ),
        (
            Explanation(
                said="a row is lost", files=[FILE], calls=[CALL], added=["write db"], each=True, states=9
            ),
            f"{ENOUGH}. With a sync added after write db and before each acknowledgement, none of 9 fails",
        ),
        (
            Explanation(said="a row is lost", files=[], each=True, states=9, losing=1),
            "no files were found that are enough for 'a row is lost'. With a sync added before each acknowledgement, "
            "1 of 9 crash states still fail",
        ),
        (
            Explanation(said="", files=[], without=["synchronous_commit=off"], states=9),
            "a commit does not wait for its sync with synchronous_commit=off: without that, none of 9 loses a row",
        ),
        (
            Explanation(said="", files=[], without=["x=1"], states=9, losing=3),
            "3 of 9 crash states lose a row without x=1, too",
        ),
    ],
)
def test_what_was_tried_is_said(why: Explanation, said: str) -> None:
    assert describe_explanation(msgspec.structs.replace(LOST, explanation=why)) == said

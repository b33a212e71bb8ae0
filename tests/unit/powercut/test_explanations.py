"""What the report says of why something was lost, and of what was tried against it."""

import msgspec
import pytest

from guestmark.core.findings import Durability, Explanation, LossCause, Proven, Untorn
from guestmark.workloads.powercut.sections import describe_explanation

LOST = Proven(
    word=Durability.LOST, why="", method="a program", acknowledged=1, states=10, losing=1, repaired=0, controls=[],
    below=[], writes=1, flushes=1, run_s=0.0, judge_s=0.0,
)  # fmt: skip
FILE, CALL = "db has other content", "what was written to db was never synced"
ALL_SYNCS = "With a sync added after every call that changes the disk and before each acknowledgement"
ENOUGH = f"this alone causes 'a row is lost': {FILE}: {CALL}"


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
            "no files were found that alone cause 'a row is lost'. With a sync added before each acknowledgement, "
            "1 of 9 crash states still fail",
        ),
        (
            Explanation(
                said="a row is lost",
                files=[FILE],
                calls=[CALL],
                added=["write db", "rename b"],
                states=9,
                further=[
                    LossCause(files=["b is missing"], calls=["the rename of a to b"]),
                    LossCause(files=[FILE], calls=[CALL]),
                ],
            ),
            f"{ENOUGH}. With that cured, this alone causes it: b is missing: the rename of a to b. "
            "With a sync added after write db, rename b, none of 9 fails",
        ),
        (
            Explanation(
                said="a row is lost",
                files=[FILE],
                calls=[CALL],
                each=True,
                every=True,
                states=9,
                losing=2,
                untorn=Untorn(7, 0, 0),
            ),
            f"{ENOUGH}. {ALL_SYNCS}, 2 of 9 crash states still fail. A write is torn in each of them: where writes are "
            "whole, none of 7 fails, so that no sync cures it",
        ),
        (
            Explanation(
                said="a row is lost",
                files=[FILE],
                calls=[CALL],
                each=True,
                every=True,
                states=9,
                losing=4,
                untorn=Untorn(7, 4, 3),
            ),
            f"{ENOUGH}. {ALL_SYNCS}, 4 of 9 crash states still fail, 3 of them although they hold all that the "
            "program had written when it acknowledged a record: it acknowledges before it writes, which no sync cures",
        ),
        (
            Explanation(
                said="a row is lost",
                files=[FILE],
                calls=[CALL],
                each=True,
                every=True,
                states=9,
                losing=4,
                untorn=Untorn(7, 4, 0),
            ),
            f"{ENOUGH}. {ALL_SYNCS}, 4 of 9 crash states still fail: no sync after any of its calls cures it",
        ),
        # Whether the program writes too late cannot be known if no files make the check fail.
        (
            Explanation(
                said="kill: no such process",
                files=[],
                each=True,
                every=True,
                states=9,
                losing=4,
                untorn=Untorn(7, 4, 3),
            ),
            "no files were found that alone cause 'kill: no such process'. "
            f"{ALL_SYNCS}, 4 of 9 crash states still fail",
        ),
        (
            Explanation(said="", files=[], without=["synchronous_commit=off"], states=9),
            "with synchronous_commit=off, a commit does not wait for its sync; without it, none of 9 crash states "
            "loses a row",
        ),
        (
            Explanation(said="", files=[], without=["x=1"], states=9, losing=3),
            "3 of 9 crash states lose a row without x=1, too",
        ),
    ],
)
def test_what_was_tried_is_said(why: Explanation, said: str) -> None:
    assert describe_explanation(msgspec.structs.replace(LOST, explanation=why)) == said


def test_where_only_torn_writes_matter_that_is_said_without_a_trial() -> None:
    why = Explanation(said="a row is lost", files=[FILE], calls=["a write to db was torn"])
    said = describe_explanation(msgspec.structs.replace(LOST, explanation=why, untorn=Untorn(6, 0, 0)))
    assert said.endswith("A write is torn in each of them: where writes are whole, none of 6 fails")

"""What the end of a check says about a disk."""

import signal

import pytest

from guestmark.powercut import survey
from guestmark.powercut.check_answer import Answer, Ending, classify_end
from guestmark.powercut.cuts import Cut, Survival
from guestmark.powercut.survey import CrashState

OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU", "SIGXFSZ")


@pytest.mark.parametrize("status", range(256))
def test_every_status_says_one_thing(status: int) -> None:
    ending = classify_end(status, None, apart=True)
    if status == 0:
        assert ending is Ending.PASSED
    elif status in {125, 126, 127}:
        assert ending is Ending.UNSTARTED
    elif status - 128 in {signal.Signals[name] for name in OUTSIDE}:
        assert ending is Ending.KILLED
    else:
        assert ending is Ending.FAILED


@pytest.mark.parametrize("number", sorted(signal.valid_signals()))
def test_every_signal_comes_from_outside_or_from_what_was_read(number: int) -> None:
    names = {signal.Signals[name] for name in OUTSIDE}
    assert classify_end(None, number, apart=True) is (Ending.KILLED if number in names else Ending.FAILED)


def test_without_a_world_its_status_is_the_check_s_own() -> None:
    assert classify_end(125, None, apart=False) is Ending.FAILED


@pytest.mark.parametrize("ending", Ending)
def test_what_was_not_judged_has_a_remedy(ending: Ending) -> None:
    answer = Answer(ending, None, (), ("its last words",), 2.0)
    assert answer.is_conclusive == (not answer.remedy)
    assert answer.summary.endswith("its last words")


@pytest.mark.parametrize(("status", "ended_by"), [(1, None), (125, None), (139, None), (None, 11)])
def test_where_there_was_no_room_nothing_is_said_of_the_disk(
    status: int | None, ended_by: int | None
) -> None:
    assert classify_end(status, ended_by, apart=True, was_full=True) is Ending.OUT_OF_ROOM
    assert classify_end(0, None, apart=True, was_full=True) is Ending.PASSED


class RepeatingPool:
    """Judges states again with these endings, one after the other."""

    def __init__(self, *endings: Ending) -> None:
        self._endings = list(endings)

    def judge_alone(self, cut: Cut) -> CrashState:
        return state_with(self._endings.pop(0), cut)

    def judge_with_next_line(self, state: CrashState) -> CrashState | None:
        return None if state else state


def state_with(ending: Ending, cut: Cut) -> CrashState:
    return CrashState(cut, 0, Answer(ending, None, (), ("row 7 is missing",), 1.0))


@pytest.mark.parametrize(
    ("repeated", "losing", "unjudged"),
    [
        ((Ending.FAILED,) * 9, 1, 0),
        ((Ending.LATE,) * 9, 0, 1),
        ((Ending.FAILED, Ending.OUT_OF_MEMORY), 0, 1),
        ((Ending.KILLED,), 0, 1),
    ],
)
def test_only_a_state_that_fails_again_is_a_loss(
    repeated: tuple[Ending, ...], losing: int, unjudged: int
) -> None:
    found = survey.Survey(1)
    states = [state_with(Ending.FAILED, Cut(5, 5, Survival.NONE, ()))]
    survey._record_states(RepeatingPool(*repeated), found, states, lambda _: True)  # type: ignore[arg-type]
    assert (found.losing_count, len(found.unjudged_states)) == (losing, unjudged)
    assert found.unsteady is None

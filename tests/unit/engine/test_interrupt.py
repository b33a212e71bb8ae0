"""Signals are handled in order: remembered outside of trials, raised inside."""

import os
import signal

import pytest

from guestmark.core.errors import Interrupted
from guestmark.engine.interrupt import Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_inside_a_trial_is_raised(number: signal.Signals, request: pytest.FixtureRequest) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # under nohup a hang-up is ignored, which is respected
    request.addfinalizer(lambda: signal.signal(number, before))
    interruption = Interruption()

    def trial() -> None:
        with interruption.interruptible():
            os.kill(os.getpid(), number)
            signal.sigtimedwait([], 5)
            pytest.fail("the trial must not go on")

    with interruption.handle_signals(), pytest.raises(Interrupted):
        trial()
    assert interruption.received == number


def test_a_signal_between_trials_waits_for_the_next_one() -> None:
    interruption = Interruption()
    with interruption.handle_signals():
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.received == signal.SIGINT
        with pytest.raises(Interrupted), interruption.interruptible():
            pytest.fail("the trial must not begin")


def test_cleaning_up_is_not_interrupted() -> None:
    interruption = Interruption()
    with interruption.handle_signals():
        with interruption.interruptible():
            pass
        os.kill(os.getpid(), signal.SIGTERM)
    assert interruption.received == signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with Interruption().handle_signals():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_nohup_is_respected() -> None:
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption().handle_signals():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)

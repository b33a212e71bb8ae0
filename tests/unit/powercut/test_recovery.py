"""A disk that another copy keeps from being mounted for a moment is not damaged."""

import errno
import time
from pathlib import Path
from typing import Any, cast

import pytest

from guestmark.agent import wire
from guestmark.agent.client import Agent
from guestmark.agent.results import CallError
from guestmark.powercut import recovery


class RefusingAgent:
    """Refuses to mount, with one error, as often as it is told."""

    def __init__(self, number: int, times: int) -> None:
        self._number, self._times = number, times
        self.calls = 0

    def mount(self, *_: Any, **__: Any) -> None:
        """Count the call."""
        self.calls += 1
        if self.calls <= self._times:
            raise CallError(wire.Failure(kind=wire.Kind.OS, message="mount: refused", errno=self._number))


def mounted(agent: RefusingAgent, folder: Path) -> str:
    """Return why the image was not mounted."""
    recovers = recovery.MountedRecovery("btrfs", cast("Agent", agent), folder)
    return recovers._mount_image("/dev/loop0", "ro")


def test_a_copy_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    agent = RefusingAgent(errno.EEXIST, 3)
    assert (mounted(agent, tmp_path), agent.calls) == ("", 4)


def test_a_copy_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_TWIN_S", 0.3)
    begin = time.monotonic()
    assert "refused" in mounted(RefusingAgent(errno.EEXIST, 10_000), tmp_path)
    assert time.monotonic() - begin >= 0.3


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN, errno.EINVAL])
def test_damage_is_said_at_once(tmp_path: Path, number: int) -> None:
    agent = RefusingAgent(number, 10_000)
    assert "refused" in mounted(agent, tmp_path)
    assert agent.calls == 1

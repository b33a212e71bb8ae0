"""Real guests. Most tests share one per platform; those that harm it start their own."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guestmark.platforms.base import Machine
from tests.framework.guests import start

GUESTS = ("uml", "tcg")


@pytest.fixture(scope="session", params=GUESTS)
def guest(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(start(request.param))


@pytest.fixture
def run(guest: Machine) -> Callable[..., str]:
    """Runs a shell script in the shared guest and returns its standard output."""

    def script(text: str, **more: Any) -> str:
        result = guest.agent.exec(["sh", "-c", text], timeout_s=60, **more)
        assert result.status == 0, result
        return result.stdout.decode()

    return script

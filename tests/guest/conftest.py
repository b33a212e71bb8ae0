"""Real guests. Most tests share one per platform; those that harm it start their own."""

import contextlib

import pytest

from tests.framework.guests import start

GUESTS = ("uml", "tcg")


@pytest.fixture(scope="session", params=GUESTS)
def guest(request: pytest.FixtureRequest):
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(start(request.param))


@pytest.fixture
def run(guest):
    """Runs a shell script in the shared guest and returns its standard output."""

    def script(text, **more):
        result = guest.agent.exec(["sh", "-c", text], timeout_s=60, **more)
        assert result.status == 0, result
        return result.stdout.decode()

    return script

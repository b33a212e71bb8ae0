"""Real guests. Most tests share one per platform; those that harm it start their own."""

import contextlib

import pytest

from guestmark.plan.model import Cell, WorkloadSpec
from guestmark.platforms import registry

GUESTS = ("uml", "tcg")


def start(platform, **factors):
    """A fresh guest, as a trial would start it."""
    return registry.get(platform).start(Cell("test", WorkloadSpec("test"), platform, factors))


@pytest.fixture(scope="session", params=GUESTS)
def guest(request):
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

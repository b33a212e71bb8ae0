"""What every test may ask for, and how the programs it starts hear signals."""

import os
import signal
from pathlib import Path

import pytest

from tests.framework.caches import TriedPlatforms
from tests.framework.command_line import CommandLine

# Programs started by tests hear signals as at a terminal, also under nohup and in the background of a script. There
# signals are ignored, which every child would inherit; a handler that does nothing ends with exec.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture
def guestmark(tmp_path: Path) -> CommandLine:
    """The command line with a ledger, a cache and a scratch directory that only this test has."""
    return CommandLine.with_scratch(tmp_path)


@pytest.fixture(scope="session")
def tried_platforms(tmp_path_factory: pytest.TempPathFactory) -> TriedPlatforms:
    """What is known of this host's platforms, shared by all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "tried"
    folder.mkdir(exist_ok=True)
    return TriedPlatforms(folder)


@pytest.fixture
def guests_known(guestmark: CommandLine, tried_platforms: TriedPlatforms) -> None:
    """The command line does not try again whether uml and tcg can be used."""
    guestmark.knows(tried_platforms, "uml", "tcg")


@pytest.fixture
def nested_known(guestmark: CommandLine, tried_platforms: TriedPlatforms) -> None:
    """The command line does not try again whether tcg/uml can be used."""
    guestmark.knows(tried_platforms, "tcg/uml")


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file for commands in guests to read, so that their running can be seen from outside."""
    file = tmp_path / "marker"
    file.touch()
    return file

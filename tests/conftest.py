"""What every test may ask for, and how the programs it starts hear signals."""

import signal
from pathlib import Path

import pytest

from tests.framework.command_line import CommandLine

# Programs started by tests hear signals as at a terminal, also under nohup and in the background of a script. There
# signals are ignored, which every child would inherit; a handler that does nothing ends with exec.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


@pytest.fixture
def guestmark(tmp_path: Path) -> CommandLine:
    """The command line with a ledger and a scratch directory that only this test has."""
    return CommandLine.with_scratch(tmp_path)

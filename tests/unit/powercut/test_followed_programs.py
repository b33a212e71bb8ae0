"""Programs whose own syncs are followed, as far as that needs no disk."""

import os
from pathlib import Path

import pytest

from guestmark.agent.binary import start_host_agent
from guestmark.agent.client import Agent
from guestmark.agent.results import CommandError
from guestmark.core.cause import Cause
from guestmark.workloads.powercut.command import Program, SyncingProgram


@pytest.mark.parametrize("name", ["./nothing-here", "nothing-of-this-name", "/nowhere/at-all"])
def test_a_program_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    """A guest with a root of its own may lack what this host has."""
    process, transport = start_host_agent()
    agent = Agent(transport)
    try:
        program = SyncingProgram(Program([name], {"PATH": os.defpath}))
        with pytest.raises(CommandError, match=name) as raised:
            program.run(agent, str(tmp_path), lambda number: None, 10.0)
        assert raised.value.cause is Cause.NOT_FOUND
    finally:
        agent.close()
        process.wait(10)


@pytest.mark.parametrize(("argv", "promises"), [(["true"], 0), (["sh", "-c", "echo x > a; sync a"], 1)])
def test_a_program_that_is_there_is_followed(tmp_path: Path, argv: list[str], promises: int) -> None:
    process, transport = start_host_agent()
    agent, marks = Agent(transport), list[int]()
    try:
        program = SyncingProgram(Program(argv, {"PATH": os.defpath}))
        assert program.run(agent, str(tmp_path), marks.append, 10.0) == promises
    finally:
        agent.close()
        process.wait(10)
    assert len(marks) == promises

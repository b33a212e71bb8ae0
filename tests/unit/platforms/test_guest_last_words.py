"""What is said of guests that do not get ready: what they did, and no more about their console than it says."""

import pytest

from guestmark.agent.client import Agent
from guestmark.core.errors import MachineError
from guestmark.platforms.guest import await_ready
from guestmark.platforms.place import Socketpair
from guestmark.platforms.process import SupervisedProcess


def words(script: str, deadline_s: float) -> str:
    """The error of a start in which a shell stands for the hypervisor."""
    process = SupervisedProcess("test")
    line = Socketpair()
    try:
        process.start(["sh", "-c", script], pass_fds=line.fds)
        line.close_inherited()
        with pytest.raises(MachineError) as error:
            await_ready(Agent(line.transport()), process, deadline_s, {})
        return error.value.message
    finally:
        process.stop()
        line.close()


def test_a_harmless_last_line_is_not_given_as_the_reason() -> None:
    said = words("echo 'ubd0: unknown partition table'; sleep 60", 1.5)
    assert "; the last line of its console is 'ubd0: unknown partition table'" in said
    assert ": ubd0" not in said


def test_a_panic_is() -> None:
    said = words("echo 'Kernel panic - not syncing: no root'; echo 'ubd0: x'; sleep 60", 1.5)
    assert said.endswith(": Kernel panic - not syncing: no root")


def test_what_a_program_said_when_it_ended_is() -> None:
    assert words("echo 'linux: no such option'; exit 1", 20).endswith(": linux: no such option")


def test_an_agent_that_is_silent_is_told_in_a_sentence() -> None:
    """The words that the error of a call is made of: `the agent gave no answer in time`."""
    from guestmark.core.errors import AgentError

    process = SupervisedProcess("test")
    line = Socketpair()
    try:
        process.start(["sleep", "60"], pass_fds=line.fds)
        line.close_inherited()
        with pytest.raises(AgentError, match="the agent gave no answer in time"):
            Agent(line.transport()).hello(timeout_s=0.2)
    finally:
        process.stop()
        line.close()

"""The user on a machine with users of its own."""

from __future__ import annotations

from guestmark.agent.client import Agent
from guestmark.core.context import Caller

_ENVIRONMENT_BYTES = 1 << 20


def read_caller(agent: Agent, *, home: str) -> Caller:
    """Return the agent's user, with the environment of their commands, and `home` if that sets no home directory."""
    hello = agent.hello()
    # A child inherits the agent's environment, and every machine has `cat`.
    done = agent.exec(
        ["cat", "/proc/self/environ"], timeout_s=20.0, output_limit=_ENVIRONMENT_BYTES, question=True
    )
    words = (word.partition("=") for word in done.stdout.decode(errors="replace").split("\0") if word)
    # ssh's variables about its connection are not meant for programs.
    env = {name: value for name, _, value in words if not name.startswith("SSH_")}
    return Caller(env.get("HOME", home), env, hello.uid, hello.uid, ())

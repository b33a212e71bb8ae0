"""Reads the user and environment of commands on a machine that has its own users."""

from __future__ import annotations

from guestmark.agent.client import Agent
from guestmark.core.context import Caller

_ENVIRONMENT_BYTES = 1 << 20


def read_caller(agent: Agent, *, home: str) -> Caller:
    """Return the agent's user, with the environment of commands; `home` is used if that has no HOME."""
    hello = agent.hello()
    # `cat`, which every machine has, inherits the agent's environment.
    done = agent.exec(
        ["cat", "/proc/self/environ"], timeout_s=20.0, output_limit=_ENVIRONMENT_BYTES, question=True
    )
    env = {}
    for variable in done.stdout.decode(errors="replace").split("\0"):
        name, _, value = variable.partition("=")
        # ssh's variables about its connection are not meant for programs.
        if variable and not name.startswith("SSH_"):
            env[name] = value
    return Caller(env.get("HOME", home), env, hello.uid, hello.uid, ())

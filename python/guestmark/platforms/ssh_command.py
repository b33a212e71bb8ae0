"""The system's ssh program: how to call it so that it never asks, and which of its refusals are final."""

from __future__ import annotations

import os
import shlex

from guestmark.core.cause import Cause, Speaker, classify_message
from guestmark.core.errors import UsageError

_SSH = "ssh"
_VARIABLE = "GUESTMARK_SSH"
# ssh's name for the other end of a ProxyJump's or ProxyCommand's pipe.
ON_THE_WAY = "UNKNOWN port 65535"
# All other options are those of the user's ssh_config. ssh never prompts, gives up a machine that is silent for 15 s,
# and opens no shared connection, which would have to outlive this process.
UNATTENDED = (
    "-T", "-a", "-x", "-e", "none",
    "-o", "BatchMode=yes",
    "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5",
    "-o", "ServerAliveCountMax=3",
    "-o", "ControlMaster=no",
    "-o", "PermitLocalCommand=no",
    "-o", "RemoteCommand=none",
    "-o", "StdinNull=no",
    "-o", "ForkAfterAuthentication=no",
    "-o", "SessionType=default",
)  # fmt: skip


def build_ssh_command() -> list[str]:
    """Returns the words of `GUESTMARK_SSH`, split as by a shell, or `ssh`: the program and the user's own options.

    Raises `UsageError` if they cannot be split.
    """
    return read_command_variable(_VARIABLE, _SSH)


def read_command_variable(variable: str, usual: str) -> list[str]:
    """Returns the words of the variable, split as by a shell; the `usual` program if it is unset.

    Raises `UsageError` if they cannot be split.
    """
    try:
        words = shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise UsageError(f"{variable}: {error}", hint=f"e.g. {variable}='{usual} OPTION…'") from error
    return words or [usual]


def is_final(said: str) -> bool:
    """Returns whether another attempt would fail in the same way, because a key, a name or a setting is wrong."""
    said = "\n".join(line for line in said.splitlines() if ON_THE_WAY not in line)
    cause = classify_message(Speaker.SSH, said).cause
    return cause is not Cause.OTHER and not cause.may_answer_later

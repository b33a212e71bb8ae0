"""Finds and starts the agent's binary."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterator, Sequence

from guestmark.agent.frames import Transport
from guestmark.core.own_program import find_agent_binary

NAME = "guestmark-agent"
# Executed by a child of the agent, this is the agent itself, wherever its file is.
PROGRAM = "/proc/self/exe"


@functools.cache
def read_tsc_khz() -> int | None:
    """Returns the rate of this host's time-stamp counter in kHz; None if there is no such counter."""
    done = subprocess.run(
        [str(find_agent_binary()), "tsc"], capture_output=True, text=True, check=True, timeout=10
    )
    return int(done.stdout) if done.stdout.strip() else None


def start_host_agent(
    within: Sequence[str] = (), *, hold: Sequence[int] = (), named: bool = False
) -> tuple[subprocess.Popen[bytes], Transport]:
    """Starts an agent on this machine over a pair of pipes; returns the process and its transport.

    `within` is a command that executes the agent, whose path is appended to it, such as `unshare --mount`. With
    `named`, the path of the agent is already part of `within`. Descriptors in `hold` stay open until the agent has
    ended what it started. When the transport is closed, or this process ends for any reason, the agent kills everything
    it started and exits.
    """
    command = [*within]
    if not named:
        command += [str(find_agent_binary()), "serve"]
        for fd in hold:
            command.append(f"--hold={fd}")
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        pass_fds=tuple(hold),
        start_new_session=True,
    )
    return process, Transport.of_process(process)


def build_supervise_command(
    command: Sequence[str],
    *,
    lifeline_fd: int,
    remove: Sequence[str] = (),
    hold: Sequence[int] = (),
    grace_ms: int = 0,
    spare_keepers: bool = False,
    keep_started: bool = False,
) -> list[str]:
    """Returns arguments that run `command` under a supervisor, which ends all of it when the lifeline closes.

    `lifeline_fd` is the read end of a pipe (to be in `pass_fds`) whose only write end this process keeps open. Paths in
    `remove` (base names that start with `guestmark-`) are removed then, or when the command ends. Descriptors in `hold`
    stay open until that is done. With `spare_keepers` the keepers of guestmark processes in it stay alive, to remove
    what these have created.
    """
    words = [str(find_agent_binary()), "supervise", "--lifeline", str(lifeline_fd)]
    for path in remove:
        words += ["--remove", path]
    for fd in hold:
        words += ["--hold", str(fd)]
    if grace_ms:
        words += ["--grace", str(grace_ms)]
    if spare_keepers:
        words.append("--spare-keepers")
    if keep_started:
        words.append("--keep-started")
    return [*words, "--", *command]


@contextlib.contextmanager
def supervise_command(command: Sequence[str], *, grace_ms: int = 0) -> Iterator[tuple[list[str], int]]:
    """Yields arguments that run `command` under a supervisor, and a descriptor to pass on: it ends with this process.

    It also ends when the block is left: by SIGTERM, and by SIGKILL after `grace_ms`.
    """
    theirs, ours = os.pipe()
    try:
        yield build_supervise_command(command, lifeline_fd=theirs, grace_ms=grace_ms), theirs
    finally:
        os.close(theirs)
        os.close(ours)

"""What a call to the agent returns: a result, or an error that leaves the agent usable."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.core.errors import AgentError, WorkloadError


class CallError(AgentError):
    """The agent refused a call or a system call failed; the agent itself is fine. `kind` as `messages.Failure`."""

    def __init__(self, message: str, kind: str, errno: int | None) -> None:
        super().__init__(message)
        self.kind = kind
        self.errno = errno


class CommandError(WorkloadError):
    """The command could not be started. `kind`: not_found, permission_denied, bad_format or bad_cwd."""

    def __init__(self, message: str, kind: str, errno: int | None) -> None:
        super().__init__(message, hint=_COMMAND_HINTS.get(kind, ""))
        self.kind = kind
        self.errno = errno


_COMMAND_HINTS = {
    "not_found": "check its spelling and PATH, or give its path; a shell's syntax needs `sh -c '...'`",
    "permission_denied": "check that the file is executable for the user that runs it",
    "bad_format": "a script needs a first line such as #!/bin/sh; a program must be made for this architecture",
    "bad_cwd": "start in a directory that also exists on the machine",
}


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended and what it used. Times in seconds.

    `wall_s` is the host's monotonic clock's (uncertain by `wall_error_s`, 0 when host and machine share the clock),
    `guest_wall_s` the machine's own. `clock_warning` is set when the two could not be brought together.
    """

    argv: tuple[str, ...]
    status: int | None
    signal: int | None
    timed_out: bool
    oom_killed: bool
    stdout: bytes
    stderr: bytes
    stdout_discarded: int
    stderr_discarded: int
    wall_s: float
    wall_error_s: float
    guest_wall_s: float
    clock_warning: str
    user_s: float
    system_s: float
    max_rss_bytes: int
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    leftovers: int
    pid: int
    started_ns: int
    ended_ns: int
    counted: tuple[
        int, ...
    ] = ()  # by the performance events asked for; negative error numbers of those not had

    @property
    def ok(self) -> bool:
        """Whether it exited with status 0."""
        return self.status == 0


def refusal(message: str, kind: str, errno: int | None, *, command: bool) -> CallError | CommandError:
    """The error for a failed call; `command` is true if the call was to start a command of the user."""
    if command and kind in _COMMAND_HINTS:
        return CommandError(message, kind, errno)
    return CallError(message, kind, errno)

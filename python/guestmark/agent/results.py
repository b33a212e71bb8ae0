"""Results of calls to the agent, and errors that leave the agent usable."""

from __future__ import annotations

from dataclasses import dataclass

from guestmark.agent.wire import Failure, Kind
from guestmark.core.cause import Cause, classify_errno
from guestmark.core.errors import AgentError, WorkloadError


class CallError(AgentError):
    """The agent refused a call, or a system call failed; the agent itself still works."""

    def __init__(self, failure: Failure) -> None:
        cause = classify_errno(failure.errno)
        if failure.kind is Kind.NO_DIRECT_IO:
            cause = Cause.NO_DIRECT_IO
        super().__init__(failure.message, cause=cause)
        self.kind = failure.kind
        self.errno = failure.errno


class CommandError(WorkloadError):
    """The command could not be started."""

    def __init__(self, failure: Failure) -> None:
        cause = Cause.NOT_FOUND if failure.kind is Kind.NOT_FOUND else None
        super().__init__(failure.message, hint=_COMMAND_HINTS[failure.kind], cause=cause)
        self.kind = failure.kind


_COMMAND_HINTS = {
    Kind.NOT_FOUND: "check its spelling and PATH, or give its path; shell syntax needs `sh -c '...'`",
    Kind.PERMISSION_DENIED: "check that the file is executable for the user that runs it",
    Kind.BAD_FORMAT: "a script needs a first line such as #!/bin/sh; a program must be built for this architecture",
    Kind.BAD_CWD: "run guestmark in a directory that also exists on the machine",
}


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a program ended and what it used. Times are in seconds.

    `wall_s` is on the host's monotonic clock (uncertain by `wall_error_s`, which is 0 if host and machine share the
    clock), `guest_wall_s` on the machine's own. `clock_warning` is set if the two do not fit together.
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
    # Counts of the performance events that were asked for; a negative error number for one that is not available.
    counted: tuple[int, ...] = ()
    # False for a command that was timed from outside the machine: only its end, its output and `wall_s` are its own.
    in_machine: bool = True

    @property
    def ok(self) -> bool:
        """Whether it exited with status 0."""
        return self.status == 0


def make_refusal(failure: Failure, *, command: bool) -> CallError | CommandError:
    """Returns the error for a failed call; `command` is true if the call was to start the user's command."""
    if command and failure.kind in _COMMAND_HINTS:
        return CommandError(failure)
    return CallError(failure)

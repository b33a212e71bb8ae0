"""The errors a user can meet: one line what is wrong, one line what to do.

Every deliberate error derives from `GuestmarkError`; the CLI prints `message` and `hint` and exits with
`exit_status`. Any other exception that reaches the CLI is a bug in guestmark.
"""

from collections.abc import Mapping
from enum import IntEnum


class ExitStatus(IntEnum):
    """Exit status of the `guestmark` command; a stable interface."""

    ALL_MEASURED = 0
    SOME_FAILED = 1
    USAGE = 2
    NOTHING_MEASURED = 3
    INTERRUPTED = 130


class GateStatus(IntEnum):
    """Exit status of commands that were given a gate, as `git bisect run` reads it; a stable interface.

    Anything that kept a gate from being judged is `FAILED` plus the status it has elsewhere, so that no mistake is
    taken for a slow program.
    """

    KEPT = 0
    BROKEN = 1
    UNDECIDED = 125
    FAILED = 128


class GuestmarkError(Exception):
    """Base of every expected error: `message` says what is wrong, `hint` what to do about it (may be empty)."""

    exit_status: ExitStatus = ExitStatus.NOTHING_MEASURED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GuestmarkError):
    """The command line or the plan is wrong."""

    exit_status = ExitStatus.USAGE


class PlatformUnusableError(GuestmarkError):
    """A platform cannot be used on this host at all (as opposed to one start of it that failed)."""


class MachineError(GuestmarkError):
    """One machine failed to start, died, hung or is not what was asked for.

    `console` is what it printed; `phases` how far its start came, as `Machine.phases`.
    """

    def __init__(
        self, message: str, *, hint: str = "", console: str = "", phases: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.console = console
        self.phases = phases or {}


class AttestationError(MachineError):
    """The machine is not what was asked for; the message shows what was asked and what is."""


class AgentError(MachineError):
    """The agent cannot be reached (silence, garbage, truncation, end of stream) or refused a call."""


class WorkloadError(GuestmarkError):
    """The workload itself failed: not found, exit status, signal, time limit, missing metric."""


class LedgerError(GuestmarkError):
    """The ledger cannot be opened, read or written."""

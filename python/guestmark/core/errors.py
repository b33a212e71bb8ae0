"""The errors that users can get: one line on what is wrong, one line on what to do.

Every deliberate error derives from `GuestmarkError`; the CLI prints `message` and `hint` and exits with `exit_status`.
Any other exception that reaches the CLI is a bug in guestmark.
"""

import re
from collections.abc import Iterable, Mapping
from enum import IntEnum

from guestmark.core.cause import Cause


class ExitStatus(IntEnum):
    """Exit status of the `guestmark` command; a stable interface."""

    ALL_MEASURED = 0
    SOME_FAILED = 1
    USAGE = 2
    NOTHING_MEASURED = 3
    INTERRUPTED = 130


class GateStatus(IntEnum):
    """Exit status of commands that were given a gate, as `git bisect run` reads it; a stable interface.

    If something prevents a gate from being judged, the status is `FAILED` plus the usual status, so that no mistake is
    taken for a slow program.
    """

    KEPT = 0
    BROKEN = 1
    UNDECIDED = 125
    FAILED = 128


class BlockStatus(IntEnum):
    """Exit status of `guestmark block`, for scripts that call it repeatedly; a stable interface.

    Other errors have their status of `ExitStatus`. 69 and 75 mean what they mean in `sysexits.h`.
    """

    DONE = 0
    # Done, but some of its trials failed.
    SOME_FAILED = 1
    NO_TIME_LEFT = 4  # the run has all its blocks
    # This machine cannot measure it, another may.
    NOT_POSSIBLE = 69
    INTERRUPTED = 130
    # Another process took the block, others measure the last ones, or the ledger is unreachable: try again later.
    LOST = 75


class Interrupted(BaseException):
    """The user interrupted the run; raised inside `engine.interrupt.Interruption.interruptible` by the first signal."""


class GuestmarkError(Exception):
    """Base of every expected error: `message` says what is wrong, `hint` what to do about it (may be empty).

    Decisions are based on `cause`; a class of errors may have a default cause.
    """

    exit_status: ExitStatus = ExitStatus.NOTHING_MEASURED
    CAUSE = Cause.OTHER

    def __init__(self, message: str, *, hint: str = "", cause: Cause | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.cause = cause or self.CAUSE


class UsageError(GuestmarkError):
    """The command line or the plan is wrong."""

    exit_status = ExitStatus.USAGE


class PlatformUnusableError(GuestmarkError):
    """A platform cannot be used on this host at all, as opposed to one failed start of it."""


class MachineError(GuestmarkError):
    """One machine failed to start, died, hung or is not what was asked for.

    `console` is its console output; `phases` shows how far its start got, like `Machine.phases`.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        cause: Cause | None = None,
        console: str = "",
        phases: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, cause=cause)
        self.console = console
        self.phases = phases or {}


class AttestationError(MachineError):
    """The machine is not what was asked for; the message shows what was asked for and what was found."""

    CAUSE = Cause.NOT_AS_ASKED


class AgentError(MachineError):
    """The agent cannot be reached (silence, garbage, truncation, end of stream) or refused a call."""

    CAUSE = Cause.SILENT


class WorkloadError(GuestmarkError):
    """The workload itself failed: not found, exit status, signal, time limit, missing metric."""


class LedgerError(GuestmarkError):
    """The ledger cannot be opened, read or written."""


class TakenError(LedgerError):
    """Another process executes the run, or has taken over what this one was about to measure or store."""


def make_unknown_name_error(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Make the error for an unknown name; it suggests the nearest known name, then lists all of them.

    A known name may be a pattern with a part to fill in, such as `ssh:DEST`.
    """
    import difflib

    names = sorted(known)
    # The bare name in a form such as `tcg[@ARCH]`.
    bare = {re.split(r"[\[@:]", form, maxsplit=1)[0]: form for form in names}
    close = difflib.get_close_matches(name.lower(), bare, n=1, cutoff=0.5)
    nearest = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}", hint=f"{nearest}known: {', '.join(names)}")

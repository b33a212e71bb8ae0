"""How errors reach the user: one line on what is wrong, one on what to do, and the right exit status."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import traceback
from pathlib import Path

from guestmark.cli.exit_status import derive_unjudged_status, has_gate_on_command_line
from guestmark.core.errors import ExitStatus, GuestmarkError
from guestmark.core.home import find_state_directory
from guestmark.core.redaction import redact_text, redact_words
from guestmark.page.say import say

# EX_SOFTWARE of sysexits.h.
BUG_STATUS = 70
# 128 plus the number of SIGPIPE, the signal that ends other programs.
_PIPE_CLOSED_STATUS = 141


def show_error(error: GuestmarkError) -> None:
    """Writes the message and the hint to standard error."""
    say(error.message)
    for line in error.hint.splitlines():
        say(line.replace("\t", " "), prefix="  ")


def report_error(error: BaseException) -> int:
    """Reports whatever ended the program and returns the exit status."""
    status = _show_by_kind(error)
    return derive_unjudged_status(status) if has_gate_on_command_line() else status


def _show_by_kind(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return _derive_exit_status(error)
    if isinstance(error, GuestmarkError):
        show_error(error)
        return int(error.exit_status)
    # Python turns Ctrl-C in the middle of a class definition into a RuntimeError.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return int(ExitStatus.INTERRUPTED)
    # EIO: the terminal has been closed.
    if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == errno.EIO):
        return _end_quietly()
    if isinstance(error, Exception):
        return _report_bug(error)
    raise error


def _derive_exit_status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    say(str(end.code), prefix="")
    return 1


def _end_quietly() -> int:
    """Ends as a program killed by SIGPIPE would."""
    # The interpreter flushes standard output once more at exit, which must not fail.
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
    return _PIPE_CLOSED_STATUS


def _report_bug(error: Exception) -> int:
    """Writes the traceback of a bug to a file and reports that in one line."""
    text = redact_text("".join(traceback.format_exception(error)))
    path = find_state_directory() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    summary = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The command line may hold secrets, so the file is created readable by its owner only.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{redact_words(sys.argv)!r}\n{text}")
        where = f"the details are in {path}"
    except OSError:
        where = text
    if _has_installation_changed():
        say(
            f"guestmark's own files were changed while it ran ({summary})\n"
            f"  start it again; guestmark resume continues a run; {where}"
        )
        return BUG_STATUS
    say(f"sorry, this is a bug in guestmark ({summary})\n  {where}")
    return BUG_STATUS


def _has_installation_changed() -> bool:
    """Returns whether a file of the package is newer than this process, or gone: what was loaded is then outdated."""
    package = Path(__file__).parents[1]
    try:
        # Field 22 of proc(5)'s stat is the start time in ticks since boot; the name before it may contain blanks.
        start_ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        started_after_boot_s = int(start_ticks) / os.sysconf("SC_CLK_TCK")
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        started_at = booted_at + started_after_boot_s
        # Package managers set the mtime of what they unpack, but the ctime cannot be set.
        return any(file.stat().st_ctime > started_at for file in package.rglob("*.py"))
    except OSError:
        # A file has just been removed.
        return True

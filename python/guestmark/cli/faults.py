"""How errors reach the user: one line what is wrong, one line what to do, and the right exit status."""

import contextlib
import errno
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from guestmark.cli import gates
from guestmark.core.errors import ExitStatus, GuestmarkError, UsageError
from guestmark.core.home import state_directory
from guestmark.core.redaction import redact, redact_words
from guestmark.page.say import say

_OTHER_NAMES = re.compile(r"('--[\w-]+')(?: / '-[^']*')+")  # of an option: `'--blocks' / '-r' / '--runs'`
BUG_STATUS = 70  # EX_SOFTWARE of sysexits.h


class PipeClosed(Exception):  # noqa: N818 - the reader closed the pipe, which is not an error
    """The reader of our output closed the pipe."""


def show(error: GuestmarkError) -> None:
    """Writes message and hint to standard error."""
    say(error.message)
    for line in error.hint.splitlines():
        say(line.replace("\t", " "), prefix="  ")


def status_after(error: BaseException) -> int:
    """Reports whatever ended the program and returns the exit status."""
    status = _status_after(error)
    return gates.failed(status) if gates.asked() else status


def _status_after(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return _status_of(error)
    if isinstance(error, GuestmarkError):
        show(error)
        return int(error.exit_status)
    if hasattr(error, "format_message"):
        return _mistyped(error)
    # What Python makes of Ctrl-C in the middle of a class's definition is a RuntimeError.
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return int(ExitStatus.INTERRUPTED)
    if isinstance(error, PipeClosed) or (isinstance(error, OSError) and error.errno == errno.EIO):
        return _pipe_closed()  # EIO: the terminal has been closed
    if isinstance(error, Exception):
        return _crashed(error)
    raise error


def _mistyped(error: Any) -> int:
    """Says what the parser of the command line found (typer's kinds of error have no public base) in our own form."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return int(error.exit_code)
    message, _, nearest = (
        " ".join(error.format_message().split()).rstrip(".").partition(" (Possible options: ")
    )
    # What pydantic says around a reason, which is there for programmers.
    message = (
        message.replace(": Value error, ", ": ").replace(": Input ", ": it ").partition(", unable to")[0]
    )
    message = _OTHER_NAMES.sub(r"\1", message)
    verb = error.ctx.command_path if getattr(error, "ctx", None) else _as_typed()
    if instead := _of_hyperfine(error):
        show(UsageError(message[0].lower() + message[1:], hint=instead))
        return int(error.exit_code)
    hint = f"did you mean {nearest.rstrip(')')}? " if nearest else ""
    hint += f"{verb} --help shows what can be given"
    show(UsageError(message[0].lower() + message[1:], hint=hint))
    return int(error.exit_code)


def _as_typed() -> str:
    """The command whose help is meant where the parser does not say."""
    from guestmark.cli.verbs import VERBS

    return " ".join(["guestmark", *(word for word in sys.argv[1:2] if word in VERBS)])


def _of_hyperfine(error: Any) -> str:
    """What to use instead of an option of hyperfine; empty for any other."""
    from guestmark.cli.hyperfine import INSTEAD

    return INSTEAD.get(getattr(error, "option_name", ""), "")  # that there is no such option


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    say(str(end.code), prefix="")
    return 1


def _pipe_closed() -> int:
    """Ends quietly, as a program killed by SIGPIPE would."""
    # The interpreter flushes standard output once more at exit, which must not fail.
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
    return 141


def _crashed(error: Exception) -> int:
    """Writes the traceback of a bug to a file and reports that in one line."""
    import traceback

    text = redact("".join(traceback.format_exception(error)))
    path = state_directory() / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    summary = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(f"{redact_words(sys.argv)!r}\n{text}")
        where = f"the details are in {path}"
    except OSError:
        where = text
    if _installation_changed():
        say(
            f"guestmark's own files were changed while it ran ({summary})\n"
            f"  start it again; guestmark resume continues a run; {where}"
        )
        return BUG_STATUS
    say(f"sorry, this is a bug in guestmark ({summary})\n  {where}")
    return BUG_STATUS


def _installation_changed() -> bool:
    """Whether a file of the package is newer than this process, or gone: half of what runs is of another version."""
    package = Path(__file__).parents[1]
    try:
        began = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        since_boot = int(began) / os.sysconf("SC_CLK_TCK")
        begun_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
        return any(file.stat().st_mtime > begun_at for file in package.rglob("*.py"))
    except OSError:  # one has just gone
        return True
